"""Tables that come, and tables of which everything but the rows changes."""

from __future__ import annotations

from typing import Any

from airflow_provider_rfr.builtins.execution.changes import change_of
from airflow_provider_rfr.builtins.execution.work import TOKEN, Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plans import Step, Verb
from airflow_provider_rfr.builtins.state import DEPLOY, MARKER, STEP
from airflow_provider_rfr.exceptions import LeaseLostError, StepError
from airflow_provider_rfr.lake.increments import MIGRATION_TAG
from airflow_provider_rfr.lake.migrations import MigratedTable, purge_table


def probe(work: Work, step: Step) -> Probe:
    """How far the step is; the marks are in the same commit as the change."""
    table = work.table(step.name)
    if table is None:
        if step.how is Verb.CREATE:
            return Probe.NOT_DONE
        raise StepError(step.name, step.how.value, "it is gone from the catalog", "plan again")
    if work.is_marked(table.properties, step):
        return Probe.DONE
    marker = table.properties.get(MARKER)
    if step.how is Verb.CREATE:
        raise StepError(step.name, step.how.value, "something has that name already", "plan again")
    if marker != str(step.uuid) and not (marker is None and step.how is Verb.ADOPT):
        raise StepError(step.name, step.how.value, "it does not carry our marker: somebody else made it", "plan again")
    return Probe.NOT_DONE


def create(work: Work, step: Step) -> None:
    """Make the table, with its marks."""
    make(work, step, step.name, work.properties(step))


def make(work: Work, step: Step, name: str, properties: dict[str, str]) -> MigratedTable:
    """The table of the step's object under this name, if it is not there yet.

    :raises StepError: somebody else made another one at the same moment
    """
    record = work.record(step)
    found = work.table(name)
    table = found or MigratedTable.create(
        work.catalog,
        name,
        record.columns,
        partitioning=record.partitioning,
        keys=record.keys,
        properties=properties,
    )
    if table.properties.get(MARKER) != str(step.uuid) or table.properties.get(DEPLOY) != work.deploy_id:
        work.lease.ensure()
        raise StepError(name, step.how.value, "something has that name already", "plan again")
    if found is None:
        undo_if_late(work, table)
    return table


def undo_if_late(work: Work, table: MigratedTable) -> None:
    """There was no table yet by which another deploy could have kept this one out: who comes too late tidies up.

    :raises LeaseLostError: it came too late
    """
    try:
        work.lease.ensure()
    except LeaseLostError:
        there = work.table(table.name)
        if there is not None and there.is_as(table) and there.properties.get(TOKEN) == str(work.lease.token):
            purge_table(work.catalog, table.name)
        raise


def alter(work: Work, step: Step) -> None:
    """Columns, partitioning, keys, properties: one commit, no snapshot."""
    table, change = existing(work, step), change_of(work, step)
    if change.tighten:
        old = {each.name.casefold() for each in table.entry.columns}
        names = [source_of(str(each["column"]), step) for each in change.tighten]
        refuse_nulls(step, table.with_nulls(name for name in names if name.casefold() in old))
    table.alter(change)


def source_of(column: str, step: Step) -> str:
    """What a coming column is called now."""
    for batch in reversed(step.details.get("updates", ())):
        renamed = (each["column"] for each in batch if each["op"] == "rename" and each["to"] == column)
        column = str(next(renamed, column))
    return column


def refuse_nulls(step: Step, columns: list[str]) -> None:
    """A required column has a value in every row.

    :raises StepError: these have not
    """
    if columns:
        raise StepError(
            step.name,
            step.how.value,
            f"{', '.join(columns)} can't be required: there are rows without a value",
            "fill them in, declare it as optional, or rewrite it with an expression",
        )


def existing(work: Work, step: Step) -> MigratedTable:
    """The step's table.

    :raises StepError: it is gone
    """
    table = work.table(step.name)
    if table is None:
        raise StepError(step.name, step.how.value, "it is gone from the catalog", "plan again")
    return table


def verify(work: Work, step: Step) -> Done:
    """What the table is now.

    :raises StepError: it is not as the step leaves it
    """
    table = existing(work, step)
    if not work.is_marked(table.properties, step):
        problem = f"its last change is {table.properties.get(STEP)}, not {work.work_id(step)}"
        raise StepError(step.name, step.how.value, problem, "plan again")
    return Done(evidence_of(work, step, table))


def evidence_of(work: Work, step: Step, table: MigratedTable) -> dict[str, Any]:
    """Figures for the journal."""
    snapshot = table.tagged_snapshot(MIGRATION_TAG, work.work_id(step))
    found = {"table": table.entry.uuid, "rows": table.entry.rows, "snapshot_after": snapshot}
    return {name: value for name, value in found.items() if value is not None}
