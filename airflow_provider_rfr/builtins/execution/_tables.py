"""Steps on tables: create, alter, rewrite, recompute, empty, rename, retire (rename out of the way, to be collected).

Columns, rows and marks change in one Iceberg commit. If another writer commits while rows are computed, the commit
fails and what that writer added is computed as well. So no row is lost, and no reader ever sees columns without their
rows."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from airflow_provider_rfr.builtins.execution.refresh import inputs_summary
from airflow_provider_rfr.builtins.execution.work import TOKEN, Work, change_of, rewriting_query
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import DEPLOY, MARKER, STEP
from airflow_provider_rfr.exceptions import LeaseLostError, StepError
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile
from airflow_provider_rfr.lake.increments import MIGRATION_TAG
from airflow_provider_rfr.lake.migrated_table import MigratedTable, NewTable, nulls_in_files, purge_table
from airflow_provider_rfr.lake.schema_changes import TableChange, table_definition
from airflow_provider_rfr.store import deploys

log = logging.getLogger(__name__)


def existing(work: Work, step: Step) -> MigratedTable:
    """The step's table.

    :raises StepError: there is none
    """
    table = work.table(step.name)
    if table is None:
        raise StepError(step.name, step.how.value, "it is gone from the catalog", "plan again")
    return table


def probe(work: Work, step: Step) -> bool:
    """Whether the step is done. The marks are in the same commit as the change.

    :raises StepError: the table is gone, or is not the object's
    """
    if step.how is Action.CREATE and work.table(step.name) is None:
        return False
    table = existing(work, step)
    if work.is_marked(table.properties, step):
        return True
    marker = table.properties.get(MARKER)
    if step.how is Action.CREATE:
        raise StepError(step.name, step.how.value, "something has that name already", "plan again")
    if marker != str(step.uuid) and not (marker is None and step.how is Action.ADOPT):
        raise StepError(step.name, step.how.value, "it does not carry our marker: no deploy made it", "plan again")
    return False


def evidence(work: Work, step: Step) -> dict[str, Any]:
    """Figures of the changed table for the journal."""
    table = existing(work, step)
    snapshot = table.tagged_snapshot(MIGRATION_TAG, work.work_id(step))
    found = {"table": table.entry.uuid, "rows": table.entry.rows, "snapshot_after": snapshot}
    return {name: value for name, value in found.items() if value is not None}


def create(work: Work, step: Step) -> None:
    """Make the table with its marks, if it is not there yet.

    :raises StepError: another writer created one at the same moment
    """
    record = work.record(step)
    found = work.table(step.name)
    definition = table_definition(record.columns, record.partitioning, record.keys, work.properties(step))
    table = found or MigratedTable.create(work.catalog, step.name, definition)
    if table.properties.get(MARKER) != str(step.uuid) or table.properties.get(DEPLOY) != work.deploy_id:
        work.lease.ensure()
        raise StepError(step.name, step.how.value, "something has that name already", "plan again")
    if found is None:
        _undo_if_late(work, table)


def _undo_if_late(work: Work, table: MigratedTable) -> None:
    """Drop the new table if the lease was lost meanwhile: before there was a table, nothing could fence this deploy.

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
        names = [str(each["column"]) for each in change.tighten]
        # The columns' present names, by those after the updates.
        for batch in reversed(change.updates):
            before = {each["to"]: str(each["column"]) for each in batch if each["op"] == "rename"}
            names = [before.get(name, name) for name in names]
        _refuse_nulls(step, table.with_nulls(name for name in names if name.casefold() in old))
    table.alter(change)


def _refuse_nulls(step: Step, columns: list[str]) -> None:
    """Refuse to make columns required that hold NULLs.

    :raises StepError: there are such columns
    """
    if columns:
        raise StepError(
            step.name,
            step.how.value,
            f"{', '.join(columns)} can't be required: there are rows without a value",
            "fill them in, declare it as optional, or rewrite it with an expression",
        )


def _family(step: Step, since: str) -> str:
    """The prefix of the step's file names.

    It is the same for each deploy that tries, until one commits. So files of a dead deploy are used again or collected,
    and files of a commit never are.

    :param since: a value that changes with the commit
    """
    return f"rfr-{hashlib.sha256(f'{step.uuid}/{since}'.encode()).hexdigest()[:32]}-"


def create_filled(work: Work, step: Step) -> None:
    """Make a table with its rows, all in one commit: there is never an empty one."""
    record = work.record(step)
    definition = table_definition(record.columns, record.partitioning, record.keys, work.properties(step))
    new = NewTable(work.catalog, step.name, definition)
    inputs = _inputs(work, step)
    target = new.target(_family(step, f"create {work.work_id(step)}"))
    files = _computed(work, step, target)
    _refuse_nulls(step, nulls_in_files(files, target, [each.name for each in record.columns if each.required]))
    work.lease.ensure()
    new.commit(files, {MIGRATION_TAG: work.work_id(step), **inputs})
    _undo_if_late(work, existing(work, step))


def replace_rows(work: Work, step: Step) -> None:
    """Put other rows in the place of all rows, or none, in one commit; refused where a required column would have a
    NULL. Sinks skip the snapshot by its tag."""
    table, change = existing(work, step), change_of(work, step)
    target = table.coming(change, _family(step, table.properties.get(STEP, "")))
    files: Sequence[StoredFile] = ()
    inputs: dict[str, str] = {}
    if step.how is Action.RECOMPUTE:
        inputs = _inputs(work, step)
        files = _computed(work, step, target)
    elif step.how is Action.REWRITE and table.snapshot_id is not None:
        files = _rewritten(work, step, table, target)
    _refuse_nulls(step, nulls_in_files(files, target, [str(each["column"]) for each in change.tighten]))
    work.lease.ensure()
    # Of a materialized view there is a snapshot in any case, so that a refresh at the same time can't commit as well.
    always = step.kind is Kind.MATERIALIZED_VIEW
    table.replace_rows(change, files, target, {MIGRATION_TAG: work.work_id(step), **inputs}, always=always)
    try:
        target.collect(files)
    except OSError as error:
        log.warning("files of earlier runs could not be collected: %s", error)


def _inputs(work: Work, step: Step) -> dict[str, str]:
    """What the commit says of the tables that a materialized view reads, for the next refresh."""
    if step.kind is not Kind.MATERIALIZED_VIEW:
        return {}
    objects = {each.key: each for each in (*work.recorded.objects, *work.records.values())}
    return inputs_summary(work.record(step), objects, work.catalog, work.views)


def _computed(work: Work, step: Step, target: FileTarget) -> Sequence[StoredFile]:
    """The result of the object's query, or the list of the declared objects, in files."""
    sql = step.details.get("sql")
    if sql is None:
        schema = pa.schema([field.remove_metadata() for field in target.rows])
        return [file for file, _ in target.write(pa.Table.from_pylist(_listed_objects(work), schema=schema))]
    return work.engine(step).compute(query=str(sql), table=step.name, target=target)


def _rewritten(work: Work, step: Step, table: MigratedTable, target: FileTarget) -> Sequence[StoredFile]:
    """The table's rows with their coming columns, in files.

    :raises StepError: there are not as many as before
    """
    assert table.snapshot_id is not None
    names = [each.name for each in table.entry.columns]
    files = work.engine(step).compute(
        query=rewriting_query(step.name, names, work.record(step).columns, step.details),
        table=step.name,
        target=target,
        read={step.name.casefold(): table.snapshot_id},
        row_wise=step.name.casefold(),
    )
    before, after = table.rows(), sum(each.rows for each in files)
    if after != before:
        raise StepError(step.name, step.how.value, f"{before} rows became {after}; nothing was changed")
    return files


_SAME = ("name", "comment", "owner", "instance", "revision", "contract", "exportable")
_OF_COLUMN = ("name", "type", "required", "comment")


def _listed_objects(work: Work) -> list[dict[str, Any]]:
    """What the registry is going to hold, in the order of names."""
    held = {each.uuid: each for each in work.recorded.objects if each.uuid not in work.plan.forgotten}
    held |= work.records
    stepped = {each.uuid for each in work.plan.steps}
    rows = []
    for obj in sorted(held.values(), key=lambda one: one.key):
        rows.append(
            {
                **{name: getattr(obj, name) for name in _SAME},
                "kind": obj.kind.value,
                "keep": str(obj.keep).lower() if isinstance(obj.keep, bool) else obj.keep,
                "id": str(obj.uuid),
                "project": work.plan.project,
                "columns": [{name: getattr(each, name) for name in _OF_COLUMN} for each in obj.columns],
                "keys": list(obj.keys),
                "partitioning": list(obj.partitioning),
                "reads": [each.name for each in obj.deps],
                "query": obj.raw_sql,
                "executed_query": obj.sql,
                "version": work.spec.version,
                "deploy_id": work.deploy_id if obj.uuid in stepped else obj.deploy_id,
            }
        )
    return rows


def probe_rename(work: Work, step: Step) -> bool:
    """Whether the table has its new name, or one that a later step gave it, and carries the step's mark.

    :raises StepError: what has the old name is not the object
    """
    named = map(work.table, work.new_names(step))
    if any(table is not None and work.is_marked(table.properties, step) for table in named):
        return True
    table = work.table(step.name)
    if table is None or table.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "what has the name is not the object", "plan again")
    return False


def rename(work: Work, step: Step) -> None:
    """Mark the table, then rename it: a rename is not a commit, so it can't carry the mark."""
    table = existing(work, step)
    if not work.is_marked(table.properties, step):
        table.alter(TableChange(properties=work.marks(step)))
        work.lease.ensure()
        table = existing(work, step)
    table.rename(str(step.details["to"]))


def take_from_garbage(connection: Connection, now: int, work: Work, step: Step) -> None:
    """A table that was retired and has a name again is not to be deleted."""
    deploys.retract(connection, work.plan.project, step.name)


def probe_retire(work: Work, step: Step) -> bool:
    """Whether the table has its retired name, is deleted, or exists again already.

    :raises StepError: no deploy made it
    """
    retired = work.table(work.retired_name(step.name))
    if retired is not None and retired.properties.get(MARKER) == str(step.uuid):
        return True
    table = work.table(step.name)
    if table is None or work.is_marked(table.properties, step):
        return True
    if table.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "it does not carry our marker: no deploy made it", "plan again")
    return False


def retire(work: Work, step: Step) -> None:
    """Rename the table out of the way; its properties stay."""
    existing(work, step).rename(work.retired_name(step.name))


def retired(work: Work, step: Step) -> dict[str, Any]:
    table = work.table(work.retired_name(step.name))
    return {"aside": table.name, "table": table.entry.uuid} if table is not None else {}
