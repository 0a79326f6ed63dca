"""Names of tables."""

from __future__ import annotations

import re

from airflow_provider_rfr.exceptions import ConfigurationError

_IDENTIFIER = re.compile(r"^[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)+$")


def check_identifier(identifier: str, field_name: str = "target") -> str:
    """Return ``identifier`` if it reads ``namespace.table``; else raise :class:`ConfigurationError`."""
    if not _IDENTIFIER.match(identifier):
        raise ConfigurationError(
            field_name, f"{identifier!r} is not a table name", "write namespace.table, e.g. raw.orders"
        )
    return identifier
