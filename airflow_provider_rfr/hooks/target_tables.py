"""Which tables are meant: a name, names, or what a refresh returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError


def table_names(target: Any) -> list[str]:
    """The tables, each once, in order.

    :param target: ``namespace.table``, text with commas, a list, or the return value of a refresh
    :raises ConfigurationError: it names no table
    """
    from airflow_provider_rfr.lake.names import check_identifier

    names = list(dict.fromkeys(_names(target)))
    if not names:
        raise ConfigurationError("target", "names no table", "write namespace.table, or give what a refresh returned")
    return [check_identifier(name) for name in names]


def _names(target: Any) -> Iterator[str]:
    if isinstance(target, str):
        yield from (name.strip() for name in target.split(",") if name.strip())
    elif isinstance(target, Mapping):
        streams = target.get("streams")
        for figures in streams.values() if isinstance(streams, Mapping) else (target,):
            if isinstance(figures, Mapping) and isinstance(figures.get("target"), str):
                yield figures["target"]
    elif isinstance(target, (list, tuple, set)):
        for each in target:
            yield from _names(each)
