"""The provider's metadata, which Airflow reads before it imports anything of this package. Imports nothing."""

from __future__ import annotations

from typing import Any

_DOCS = "https://github.com/airflow-provider-rfr/airflow-provider-rfr/tree/main/docs"
_INTEGRATION = "Resumable full refresh"
_HOOKS = ("api", "builtins", "connections", "control_store", "lake", "webhooks")
_OPERATORS = ("builtins", "connections", "full_refresh", "incremental", "sinks", "webhooks")


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; Airflow calls this while it configures itself."""
    return {
        "package-name": "airflow-provider-rfr",
        "name": "Resumable full refresh",
        "description": "Resumable full refresh of API sources into Iceberg tables, on Apache Spark.",
        "integrations": [{"integration-name": _INTEGRATION, "external-doc-url": _DOCS, "tags": ["apache", "software"]}],
        "operators": [_modules(*(f"operators.{name}" for name in _OPERATORS))],
        "sensors": [_modules("sensors")],
        "triggers": [_modules("triggers", "triggers.refresh")],
        "hooks": [_modules(*(f"hooks.{name}" for name in _HOOKS))],
        "cli": ["airflow_provider_rfr.cli.get_rfr_commands"],
        "config": _CONFIG,
        # The scheduler refuses links of operators that are not named here.
        "extra-links": ["airflow_provider_rfr.links.RefreshLink", "airflow_provider_rfr.links.SparkUiLink"],
        "asset-uris": [{"schemes": ["rfr"], "handler": None}],
        "connection-types": [_API, _HTTP, _LAKE],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"airflow_provider_rfr.{name}" for name in names]}


def _secret(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], "format": "password"}}


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


_CONFIG: dict[str, Any] = {
    "rfr": {
        "description": "Options of the package airflow-provider-rfr.",
        "options": {
            "control_store": {
                "description": "Database of the control store, as a SQLAlchemy URL; used where there is no connection"
                " rfr_control_store. Default: the SQLite file rfr_control_store.db in AIRFLOW_HOME.\n",
                "version_added": "0.1.0",
                "type": "string",
                "example": "postgresql+psycopg2://user:password@host/rfr",
                "default": "",
                "sensitive": True,
            },
            "webhook_allowed_hosts": {
                "description": "Private hosts, addresses and networks that commit webhooks and HTTP sinks may"
                " call, with commas; a trigger's allowedHosts can only narrow them. Link-local and cloud metadata"
                " addresses need their own address or network here, e.g. 169.254.169.254; 0.0.0.0/0 does not open"
                " them.\n",
                "version_added": "0.1.0",
                "type": "string",
                "example": "hooks.internal,10.1.0.0/16",
                "default": "",
            },
            "webhook_retention_days": {
                "description": "Days after which deliveries of commit webhooks that were delivered, cancelled or merged"
                " are deleted, by the next run that delivers. What is undelivered stays.\n",
                "version_added": "0.1.0",
                "type": "float",
                "example": "7",
                "default": "30",
            },
            "show_rows": {
                "description": "Whether the page of a load, and airflow rfr refresh show, have ten rows of its table;"
                " the page has them for viewers who may read the table's asset. Columns with names of secrets are"
                " left out.\n",
                "version_added": "0.1.0",
                "type": "boolean",
                "example": "True",
                "default": "False",
            },
            "connection_secrets": {
                "description": "References that ALTER CONNECTION may give to connections, with commas and *; empty for"
                " all but Airflow's own settings.\n",
                "version_added": "0.1.0",
                "type": "string",
                "example": "env:RFR_*,variable:*",
                "default": "",
            },
            "secret_files": {
                "description": "Folder below which SECRET 'file:NAME' is looked for.\n",
                "version_added": "0.1.0",
                "type": "string",
                "example": "/run/secrets",
                "default": "/run/secrets",
            },
        },
    }
}

_API: dict[str, Any] = {
    "connection-type": "rfr_api",
    "hook-name": "API source (RFR)",
    "hook-class-name": "airflow_provider_rfr.hooks.api.ApiHook",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "port"],
        "relabeling": {"host": "Base URL", "login": "User or client id", "password": "API key, token or password"},
        "placeholders": {"host": "https://api.example.com/v1"},
    },
    "conn-fields": {
        "client_secret": _secret("Client secret", "For OAuth 2 client credentials"),
        "refresh_token": _secret("Refresh token", "For OAuth 2 refresh tokens"),
        "secrets": _secret("More secrets", 'JSON object of further secrets of the source, e.g. {"pin": "1234"}'),
        "test_path": _text(
            "Test path", "Requested by the test button, below the base URL; any status below 400 passes"
        ),
        "identity_path": _text(
            "Identity path", "Its answer identifies the upstream; ALTER CONNECTION refuses a change to another one"
        ),
    },
}

_HTTP: dict[str, Any] = {
    "connection-type": "rfr_http",
    "hook-name": "HTTP endpoint (RFR)",
    "hook-class-name": "airflow_provider_rfr.hooks.api.HttpHook",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "port"],
        "relabeling": {"host": "Base URL", "login": "User", "password": "Password or token"},
        "placeholders": {"host": "https://hooks.example.com"},
    },
    "conn-fields": {
        "verify": _text(
            "Trusted certificates",
            "Path of a bundle in PEM, or false for no check; empty for the usual certificates. Other extra fields are"
            " sent as headers",
        ),
    },
}

_LAKE: dict[str, Any] = {
    "connection-type": "rfr_lake",
    "hook-name": "Lake catalog (RFR)",
    "hook-class-name": "airflow_provider_rfr.hooks.lake.LakeHook",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "port"],
        "relabeling": {
            "host": "Catalog URI",
            "login": "User or access key id",
            "password": "Password, token or secret key",
        },
        "placeholders": {"host": "sqlite:////data/catalog.db"},
    },
    "conn-fields": {
        "catalog_name": _text("Catalog name", "Spark has to use the same name for the same catalog; default rfr"),
        "catalog_type": {
            "label": "Catalog type",
            "description": "As PyIceberg names it",
            "schema": {"type": "string", "enum": ["sql", "rest", "hive", "glue", "dynamodb"], "default": "sql"},
        },
        "warehouse": _text("Warehouse", "Folder of the tables, e.g. s3://bucket/warehouse or file:///data/warehouse"),
        "s3_endpoint": _text("S3 endpoint", "For stores that are not AWS"),
        "s3_region": _text("S3 region", "Region of the bucket"),
        "s3_access_key_id": _text("S3 access key id", "Empty: the machine's own credentials"),
        "s3_secret_access_key": _secret("S3 secret access key", "Empty: the machine's own credentials"),
        "properties": _secret("More properties", "JSON object of further PyIceberg catalog properties, secrets too"),
    },
}
