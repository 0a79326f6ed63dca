"""The part of a stream's definition that belongs to its fingerprint."""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_rfr.http.redaction import MASK, is_secret
from airflow_provider_rfr.streams.rest._request import RequestDefaults
from airflow_provider_rfr.streams.rest.templates import Part, has_expressions

# They may change while a refresh is under way: credentials, error handling, limits, types and primary key.
# The base URL is part of the fingerprint, but not in the definition's place.
_LEFT_OUT: Final[dict[str, Any]] = {
    **dict.fromkeys(("primary_key", "json_schema", "json_schema_file", "columns", "additional_fields"), True),
    **dict.fromkeys(("base_url", "authenticator", "error_handler", "timeouts", "max_response_bytes"), True),
    # Whether a page counts as the last one is decided again at the publish.
    "paginator": {"on_missing": True, "max_empty_pages": True, "flag": {"on_missing"}},
    # The bounds of an open load are stored. Not so its start: to move that is to ask for other records.
    "incremental": {"step", "lookback", "settle"},
}


def declared_requests(stream: Part, shared: RequestDefaults) -> dict[str, Any]:
    """Return the declaration of a stream's requests as JSON, without secrets.

    :param stream: with the defaults of the document already in their places
    :param shared: query and headers of all streams
    """
    declared = stream.model_dump(mode="json", by_alias=True, exclude=_LEFT_OUT, exclude_defaults=True)
    request = declared.setdefault("request", {})
    for part, defaults in (("query", shared.query), ("headers", shared.headers)):
        values = {**defaults, **request.get(part, {})}
        for key, value in values.items():
            # A credential that was written into the document itself; a template only names where it comes from.
            if is_secret(key) and isinstance(value, str) and not has_expressions(value):
                values[key] = MASK
        if values:
            request[part] = values
    return declared
