"""Names of tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from airflow_provider_rfr.exceptions import ConfigurationError

STREAM_PLACE: Final = "{stream}"
"""What stands for a stream's name in a target."""
_IDENTIFIER = re.compile(r"^[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)+$")


def check_identifier(identifier: str, field_name: str = "target") -> str:
    """Return ``identifier`` if it reads ``namespace.table``; else raise :class:`ConfigurationError`."""
    if not _IDENTIFIER.match(identifier):
        raise ConfigurationError(
            field_name, f"{identifier!r} is not a table name", "write namespace.table, e.g. raw.orders"
        )
    return identifier


def table_of(stream: str, target: str) -> str:
    """Return the table of a stream: ``target`` with the stream's name in place of ``{stream}``.

    A name that is no valid table name is mapped to one.

    ``Sales Orders (EU)`` is mapped to ``sales_orders_eu``.

    :raises ConfigurationError: nothing is left of the stream's name
    """
    table = target.replace(STREAM_PLACE, stream)
    if _IDENTIFIER.fullmatch(table):
        return table
    name = re.sub(r"\W+", "_", stream, flags=re.ASCII).strip("_").lower()
    if not name:
        raise ConfigurationError("streams", f"{stream!r} has no letters that a table's name may have")
    return target.replace(STREAM_PLACE, f"_{name}" if name[0].isdigit() else name)


def tables_of(streams: Sequence[str], target: str) -> dict[str, str]:
    """Return the table of each stream.

    :raises ConfigurationError: ``target`` names no table, or one table for several streams
    """
    check_identifier(target.replace(STREAM_PLACE, "stream"))
    if len(streams) > 1 and STREAM_PLACE not in target:
        raise ConfigurationError("target", f"{target!r} is one table for several streams", "write e.g. raw.{stream}")
    found: dict[str, str] = {}
    for stream in streams:
        table = table_of(stream, target)
        for other in (name for name, known in found.items() if known == table):
            problem = f"{other!r} and {stream!r} would both go to {table}"
            raise ConfigurationError("streams", problem, "refresh one of them on its own, to another target")
        found[stream] = table
    return found
