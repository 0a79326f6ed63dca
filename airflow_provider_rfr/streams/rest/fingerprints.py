"""What decides which requests a stream sends, as JSON without secrets.

Left out on purpose, so that they can be changed while a refresh is under way: credentials, error handling,
timeouts and limits, the JSON schema and the primary key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_rfr.secret_names import MASK, is_secret
from airflow_provider_rfr.streams.rest.definition import RequestDefaults, StreamDefinition
from airflow_provider_rfr.streams.rest.interpolation import has_expressions

FORMAT: Final = 1
_LEFT_OUT: Final = {
    "primary_key",
    "json_schema",
    "json_schema_file",
    "authenticator",
    "error_handler",
    "timeouts",
    "max_response_bytes",
    "base_url",
}


def fingerprint_of(
    name: str,
    stream: StreamDefinition,
    *,
    base_url: str,
    defaults: RequestDefaults,
    page_size: int | None,
    config: Mapping[str, Any],
    parents: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """:param stream: with the defaults already in their places
    :param config: without secrets
    :param parents: the parents' fingerprints by name
    """
    declared = stream.model_dump(mode="json", by_alias=True, exclude=_LEFT_OUT, exclude_defaults=True)
    request = declared.setdefault("request", {})
    for part, shared in (("query", defaults.query), ("headers", defaults.headers)):
        values = {**shared, **request.get(part, {})}
        if values:
            request[part] = {key: _without_secret(key, value) for key, value in values.items()}
    return {
        "class": "airflow_provider_rfr.streams:RestStream",
        "format": FORMAT,
        "name": name,
        "base_url": base_url,
        "definition": declared,
        "page_size": page_size,
        "config": dict(config),
        "parents": dict(parents),
    }


def _without_secret(name: str, value: Any) -> Any:
    """A credential that was written into the document itself; a template only names where it comes from."""
    if is_secret(name) and isinstance(value, str) and not has_expressions(value):
        return MASK
    return value
