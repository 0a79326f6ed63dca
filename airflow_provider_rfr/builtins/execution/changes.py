"""A step's details as a change of a table, and as the query that fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_rfr.builtins.execution.work import Work
from airflow_provider_rfr.builtins.names import quoted
from airflow_provider_rfr.builtins.planning.plans import Step
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.lake.table_changes import TableChange

_OF_KEYS = frozenset({"drop", "relax", "rename"})
"""Operations that a column of the key does not stand."""


def change_of(work: Work, step: Step) -> TableChange:
    """What becomes of the table besides its rows; with the marks, which are a part of the same commit."""
    details, record = step.details, work.record(step)
    updates = tuple(tuple(batch) for batch in details.get("updates", ()))
    tighten = tuple(details.get("tighten", ()))
    moved = bool(tighten) or any(each["op"] in _OF_KEYS for batch in updates for each in batch)
    partitioning = details.get("partitioning")
    return TableChange(
        updates,
        tighten,
        None if partitioning is None else tuple(partitioning),
        record.keys if moved or "keys" in details else None,
        work.properties(step),
        work.unset(step),
    )


def rewriting_query(table: str, live: Sequence[str], columns: Sequence[Column], details: Mapping[str, Any]) -> str:
    """The table's rows with its coming columns: by an expression, by the column they came from, or NULL.

    :param live: names of the columns as they are
    """
    expressions = {name.casefold(): text for name, text in details.get("expressions", {}).items()}
    sources = _sources(live, details.get("updates", ()))
    parts = []
    for column in columns:
        source = sources.get(column.name.casefold())
        text = expressions.get(column.name.casefold()) or ("NULL" if source is None else quoted(source))
        parts.append(f"CAST(({text}) AS {column.type}) AS {quoted(column.name)}")
    return f"SELECT {', '.join(parts)} FROM {'.'.join(map(quoted, table.split('.')))}"


def _sources(live: Sequence[str], updates: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Where each coming column's values are now, by its compared name; a new column has none."""
    found = {name.casefold(): name for name in live}
    for batch in updates:
        before, gone = dict(found), {each["column"].casefold() for each in batch if each["op"] in ("drop", "rename")}
        found = {name: source for name, source in found.items() if name not in gone}
        for each in batch:
            if each["op"] == "rename":
                found[each["to"].casefold()] = before[each["column"].casefold()]
    return found
