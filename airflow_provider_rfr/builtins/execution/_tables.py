"""Steps on tables: create, alter, rewrite, recompute, empty. Columns, rows and marks change in one Iceberg commit.

If another writer commits while rows are computed, the commit fails and what that writer added is computed as well. So
no row is lost, and no reader ever sees columns without their rows."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.builtins.execution.work import (
    TOKEN,
    ComputedFiles,
    Done,
    Probe,
    Work,
    change_of,
    rewriting_query,
)
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.spec import CatalogSpec
from airflow_provider_rfr.builtins.state import DEPLOY, MARKER, STEP, RecordedObject
from airflow_provider_rfr.exceptions import LeaseLostError, StepError
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile
from airflow_provider_rfr.lake.increments import MIGRATION_TAG
from airflow_provider_rfr.lake.migrated_table import MigratedTable, NewTable, nulls_in_files, purge_table
from airflow_provider_rfr.lake.schema_changes import table_definition


def probe(work: Work, step: Step) -> Probe:
    """How far the step is. The marks are in the same commit as the change."""
    table = work.table(step.name)
    if table is None:
        if step.how is Action.CREATE:
            return Probe.NOT_DONE
        raise StepError(step.name, step.how.value, "it is gone from the catalog", "plan again")
    if work.is_marked(table.properties, step):
        return Probe.DONE
    marker = table.properties.get(MARKER)
    if step.how is Action.CREATE:
        raise StepError(step.name, step.how.value, "something has that name already", "plan again")
    if marker != str(step.uuid) and not (marker is None and step.how is Action.ADOPT):
        raise StepError(step.name, step.how.value, "it does not carry our marker: no deploy made it", "plan again")
    return Probe.NOT_DONE


def create(work: Work, step: Step) -> None:
    """Make the table, with its marks."""
    make(work, step, step.name, work.properties(step))


def make(work: Work, step: Step, name: str, properties: dict[str, str]) -> MigratedTable:
    """The table of the step's object under this name, if it is not there yet.

    :raises StepError: another writer created one at the same moment
    """
    record = work.record(step)
    found = work.table(name)
    definition = table_definition(record.columns, record.partitioning, record.keys, properties)
    table = found or MigratedTable.create(work.catalog, name, definition)
    if table.properties.get(MARKER) != str(step.uuid) or table.properties.get(DEPLOY) != work.deploy_id:
        work.lease.ensure()
        raise StepError(name, step.how.value, "something has that name already", "plan again")
    if found is None:
        _undo_if_late(work, table)
    return table


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
        names = [_source_of(str(each["column"]), step) for each in change.tighten]
        refuse_nulls(step, table.with_nulls(name for name in names if name.casefold() in old))
    table.alter(change)


def _source_of(column: str, step: Step) -> str:
    """The present name of a column, by its name after the updates."""
    for batch in reversed(step.details.get("updates", ())):
        renamed = (each["column"] for each in batch if each["op"] == "rename" and each["to"] == column)
        column = str(next(renamed, column))
    return column


def refuse_nulls(step: Step, columns: list[str]) -> None:
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


def existing(work: Work, step: Step) -> MigratedTable:
    """The step's table.

    :raises StepError: there is none
    """
    table = work.table(step.name)
    if table is None:
        raise StepError(step.name, step.how.value, "it is gone from the catalog", "plan again")
    return table


def verify(work: Work, step: Step) -> Done:
    """Evidence of the table after the step.

    :raises StepError: the step did not do its last change
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


def _object_rows(work: Work) -> Iterator[dict[str, Any]]:
    """What the registry is going to hold, in the order of names."""
    held = {each.uuid: each for each in work.recorded.objects if each.uuid not in work.plan.forgotten}
    stepped = {each.uuid for each in work.plan.steps}
    for each in work.plan.records:
        held[each.uuid] = each
    for each in sorted(held.values(), key=lambda one: one.key):
        changed = each.uuid in stepped
        yield _row(each, work.plan.project, work.spec, work.deploy_id if changed else each.deploy_id)


def _row(obj: RecordedObject, project: str, spec: CatalogSpec, deploy_id: str) -> dict[str, Any]:
    declared = next((each for each in spec.objects if each.id == obj.uuid), None)
    same = ("name", "physical", "protect", "comment", "owner", "instance", "revision")
    return {
        **{name: getattr(obj, name) for name in same},
        "id": str(obj.uuid),
        "kind": obj.kind.value,
        "project": project,
        "stability": obj.stability.value,
        "contents": obj.contents.value,
        "exportable": declared.exportable if declared is not None else None,
        "columns": [
            {"name": each.name, "type": each.type, "required": each.required, "comment": each.comment}
            for each in obj.columns
        ],
        "keys": list(obj.keys),
        "partitioning": list(obj.partitioning),
        "reads": [each.name for each in obj.deps],
        "query": obj.raw_sql,
        "executed_query": obj.sql,
        "contract": obj.fingerprints.contract.digest,
        "constraints": obj.fingerprints.constraints.digest,
        "logic": obj.fingerprints.logic.digest,
        "meta": obj.fingerprints.meta.digest,
        "version": spec.version,
        "deploy_id": deploy_id,
        "deprecated_since": declared.removed.deprecated_since if declared is not None and declared.removed else None,
    }


log = logging.getLogger(__name__)


def family(step: Step, since: str) -> str:
    """The prefix of the step's file names.

    It is the same for each deploy that tries, until one commits. So files of a dead deploy are used again or collected,
    and files of a commit never are.

    :param since: a value that changes with the commit
    """
    return f"rfr-{hashlib.sha256(f'{step.uuid}/{since}'.encode()).hexdigest()[:32]}-"


def summary(work: Work, step: Step) -> Mapping[str, str]:
    """Summary properties of the step's snapshots; sinks skip these snapshots."""
    return {MIGRATION_TAG: work.work_id(step)}


def create_filled(work: Work, step: Step) -> None:
    """Make a materialized view's table with its rows, all in one commit: there is never an empty one."""
    record = work.record(step)
    definition = table_definition(record.columns, record.partitioning, record.keys, work.properties(step))
    new = NewTable(work.catalog, step.name, definition)
    target = new.target(family(step, f"create {work.work_id(step)}"))
    files = _result(work, step, target)
    refuse_nulls(step, nulls_in_files(files, target, [each.name for each in record.columns if each.required]))
    work.lease.ensure()
    new.commit(files, summary(work, step))
    _undo_if_late(work, existing(work, step))


def recompute(work: Work, step: Step) -> None:
    """Put the query's result in the place of the rows."""
    _replace(work, step, lambda table, target: _result(work, step, target))


def _result(work: Work, step: Step, target: FileTarget) -> Sequence[StoredFile]:
    sql = step.details.get("sql")
    if sql is None:
        rows = _object_rows(work)
        schema = pa.schema([field.remove_metadata() for field in target.rows])
        table = pa.Table.from_pylist(list(rows), schema=schema)
        return [file for file, _ in target.write(table)]
    engine = work.engine(step)
    return engine.compute(query=str(sql), table=step.name, target=target, work_id=work.work_id(step)).files


def rewrite(work: Work, step: Step) -> None:
    """Put the same rows with other columns in the place of the rows."""
    _replace(
        work,
        step,
        lambda table, target: () if table.snapshot_id is None else rewritten(work, step, table, target).files,
    )


def rewritten(work: Work, step: Step, table: MigratedTable, target: FileTarget) -> ComputedFiles:
    """The table's rows with their coming columns, in files.

    :raises StepError: there are not as many as before
    """
    assert table.snapshot_id is not None
    names = [each.name for each in table.entry.columns]
    computed = work.engine(step).compute(
        query=rewriting_query(step.name, names, work.record(step).columns, step.details),
        table=step.name,
        target=target,
        work_id=work.work_id(step),
        read={step.name.casefold(): table.snapshot_id},
        row_wise=step.name.casefold(),
    )
    before = table.rows()
    if computed.rows != before:
        raise StepError(step.name, step.how.value, f"{before} rows became {computed.rows}; nothing was changed")
    return computed


def empty(work: Work, step: Step) -> None:
    """Take all rows away."""
    _replace(work, step, lambda table, target: ())


def _replace(work: Work, step: Step, files_of: Callable[[MigratedTable, FileTarget], Sequence[StoredFile]]) -> None:
    """Put files in the place of all rows, in one commit. Where a required column would have a NULL it is not made."""
    table, change = existing(work, step), change_of(work, step)
    target = table.coming(change, family(step, table.properties.get(STEP, "")))
    files = files_of(table, target)
    refuse_nulls(step, nulls_in_files(files, target, [str(each["column"]) for each in change.tighten]))
    work.lease.ensure()
    table.replace_rows(change, files, target, summary(work, step))
    try:
        target.collect(files)
    except OSError as error:
        log.warning("files of earlier runs could not be collected: %s", error)
