"""Trials of new connection settings before they are stored, on the machine where this runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_rfr.connections.types import type_named
from airflow_provider_rfr.exceptions import (
    CatalogError,
    ConfigurationError,
    ConnectionValidationError,
    RfrError,
    SourceError,
)
from airflow_provider_rfr.hooks._connection_sources import as_connection
from airflow_provider_rfr.hooks.common import mask_secrets
from airflow_provider_rfr.http.redaction import without_credentials

if TYPE_CHECKING:
    from airflow_provider_rfr.connections.types import Definition
    from airflow_provider_rfr.store.connections import Use

_SHORTEST = 4
_OF_LIBPQ = ("service", "sslmode", "sslcert", "sslkey", "sslrootcert")


class HookValidator:
    """A validator that tries a connection with the hooks of its type.

    :param find: the connections as they are stored now
    """

    def __init__(self, find: Callable[[str], Definition | None]) -> None:
        self._find = find

    def test(self, candidate: Definition) -> bool:
        """Run the test of the type's hook; False where there is no hook, or it has no test.

        :raises ConnectionValidationError: the test fails; its message is masked
        """
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

        mask_secrets(_secret_texts(candidate))
        providers: Callable[[], Any] = ProvidersManagerTaskRuntime
        hook = providers().hooks.get(candidate.conn_type)
        # Some types have fields only, and no hook.
        if hook is None or not hook.hook_class_name:
            return False
        try:
            works, message = as_connection(candidate).test_connection()
        except Exception as error:  # noqa: BLE001 - the hook can't be made: each one has errors of its own
            works, message = False, f"{type(error).__name__}: {error}"
        if works:
            return True
        if "doesn't implement or inherit test_connection" in message or "Unknown hook type" in message:
            return False
        raise ConnectionValidationError(candidate.name, masked(message, candidate))

    def identity(self, definition: Definition) -> str | None:
        """Return the answer of an API at its ``identity_path``, or PostgreSQL's system identifier; None for others."""
        mask_secrets(_secret_texts(definition))
        path = definition.get("extra.identity_path")
        if definition.conn_type == "rfr_api" and path:
            return _answer(definition, str(path))
        if definition.conn_type in ("postgres", "postgresql"):
            return _system_identifier(definition)
        return None

    def check_use(self, candidate: Definition, use: Use) -> None:
        """Do the task's next step: read one page of its first stream, or find its tables."""
        noted = use.details.get("check", {}).get(candidate.name)
        if noted is None:
            return
        try:
            if candidate.conn_type == "rfr_api":
                _read_a_page(candidate, noted)
            elif candidate.conn_type == "rfr_lake":
                _find_tables(candidate, self._find(candidate.name), noted["tables"])
        except RfrError as error:
            raise ConnectionValidationError(candidate.name, masked(str(error), candidate)) from None


def _answer(definition: Definition, path: str) -> str:
    from airflow_provider_rfr.hooks.api import ask

    try:
        answer = ask(as_connection(definition), path)
    except (ConfigurationError, SourceError) as error:
        raise ConnectionValidationError(definition.name, masked(str(error), definition)) from None
    if answer.status_code >= 400:
        raise ConnectionValidationError(definition.name, f"the API answered {answer.status_code} at {path}")
    return str(answer.text)


def _system_identifier(definition: Definition) -> str | None:
    """Return PostgreSQL's system identifier.

    Return None where the server is reached through a tunnel, its driver is not installed, or the user lacks the right
    to see the identifier.
    """
    if definition.get("extra.ssh_conn_id"):
        return None
    from sqlalchemy import URL, create_engine, text
    from sqlalchemy.exc import DBAPIError

    from airflow_provider_rfr.databases import limit_waits

    url = URL.create(
        "postgresql+psycopg2",
        definition.login,
        definition.password,
        definition.host,
        definition.port,
        definition.schema,
    )
    arguments = {name: value for name in _OF_LIBPQ if (value := definition.get(f"extra.{name}"))}
    try:
        engine = create_engine(url, hide_parameters=True, connect_args=arguments)
    except ImportError:
        return None
    limit_waits(engine)
    try:
        with engine.connect() as connection:
            return str(connection.execute(text("SELECT system_identifier FROM pg_control_system()")).scalar_one())
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None):
            # The server answers, but the user lacks the right to see the identifier.
            return None
        message = str(error.orig).strip().partition("\n")[0]
        raise ConnectionValidationError(definition.name, masked(message, definition)) from None
    finally:
        engine.dispose()


def _read_a_page(candidate: Definition, noted: Any) -> None:
    from airflow_provider_rfr.hooks.api import read_first_page, source_settings

    settings = source_settings(as_connection(candidate))
    read_first_page(settings.completed(noted["source"]), noted["stream"])


def _find_tables(candidate: Definition, present: Definition | None, tables: list[str]) -> None:
    """Check that the tables which are there now are there with the candidate, and are the same ones."""
    try:
        before = {} if present is None else _table_ids(present, tables)
    except ConnectionValidationError:
        # The stored settings are often altered because they do not work.
        before = {}
    after = _table_ids(candidate, tables)
    lost = sorted(name for name, uuid in before.items() if after.get(name) != uuid)
    if lost:
        raise ConnectionValidationError(candidate.name, f"there it has other tables, or none, of {', '.join(lost)}")


def _table_ids(definition: Definition, tables: list[str]) -> dict[str, str]:
    from airflow_provider_rfr.hooks.lake import lake_document
    from airflow_provider_rfr.lake.catalog import load_table, open_catalog

    settings = lake_document(as_connection(definition)).settings()
    try:
        catalog = open_catalog(settings)
        found = {name: load_table(catalog, name) for name in tables}
    except (CatalogError, ConfigurationError) as error:
        raise ConnectionValidationError(definition.name, masked(str(error), definition)) from None
    except RfrError:
        raise
    except Exception as error:  # noqa: BLE001 - each catalog has errors of its own; their texts may name secrets
        at = f" at {without_credentials(definition.host)}" if definition.host else ""
        problem = f"the catalog did not answer{at} ({type(error).__name__})"
        raise ConnectionValidationError(definition.name, masked(problem, definition)) from None
    return {name: str(table.metadata.table_uuid) for name, table in found.items() if table is not None}


def _secret_texts(definition: Definition) -> list[str]:
    """Return secret values of the definition, also those within lists and JSON, plain and as quoted in URLs."""
    known = type_named(definition.conn_type)
    secrets = [secret for name, value in definition.options() for secret in known.secret_values(name, value)]
    # To mask a shorter one, such as a header with a version, would spoil any text.
    texts = [text for secret in secrets for text in _texts(secret) if len(text) >= _SHORTEST]
    return list(dict.fromkeys(form for text in texts for form in (text, quote(text), quote(text, safe=""))))


def _texts(value: Any) -> Iterator[str]:
    """Yield the value's text, and that of its parts; booleans are not secret."""
    if isinstance(value, str):
        with suppress(ValueError):
            made = json.loads(value)
            if isinstance(made, (dict, list)):
                yield from _texts(made)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for address in value:
            yield from _texts(address)
    elif not isinstance(value, bool) and value not in (None, ""):
        yield str(value)


def masked(text: str, definition: Definition) -> str:
    """Remove the definition's secrets from the text."""
    for secret in sorted(_secret_texts(definition), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
