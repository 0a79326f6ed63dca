"""Tables whose rows change: rewritten, computed anew, or emptied; columns, rows and marks in one Iceberg commit.

A writer that commits while rows are computed makes the commit fail; then what it added is computed as well. So no row
is lost, and no reader ever sees columns without their rows.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

from airflow_provider_rfr.builtins.execution.changes import change_of, rewriting_query
from airflow_provider_rfr.builtins.execution.generated import generated_files
from airflow_provider_rfr.builtins.execution.mechanisms_tables import existing, refuse_nulls, undo_if_late
from airflow_provider_rfr.builtins.execution.sql_engine import ComputedFiles
from airflow_provider_rfr.builtins.execution.work import Work
from airflow_provider_rfr.builtins.planning.plans import Step
from airflow_provider_rfr.builtins.state import STEP
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.file_target import FileTarget
from airflow_provider_rfr.lake.increments import MIGRATION_TAG
from airflow_provider_rfr.lake.migrations import MigratedTable, nulls_in_files
from airflow_provider_rfr.lake.new_table import NewTable
from airflow_provider_rfr.lake.table_changes import TableChange

log = logging.getLogger(__name__)


def family(step: Step, since: str) -> str:
    """What names of the step's files begin with.

    The same for each deploy that tries, until one of them commits: what a dead one computed is used again or collected,
    and no file of a commit ever is.

    :param since: what is another one after the commit
    """
    return f"rfr-{hashlib.sha256(f'{step.uuid}/{since}'.encode()).hexdigest()[:32]}-"


def _target(table: MigratedTable, step: Step, change: TableChange) -> FileTarget:
    return table.coming(change, family(step, table.properties.get(STEP, "")))


def summary(work: Work, step: Step) -> Mapping[str, str]:
    """What the step's snapshots say of themselves; sinks leave them out."""
    return {MIGRATION_TAG: work.work_id(step)}


def create_filled(work: Work, step: Step) -> None:
    """Make a materialized view's table with its rows, all in one commit: there is never an empty one."""
    record = work.record(step)
    new = NewTable(
        work.catalog,
        step.name,
        record.columns,
        partitioning=record.partitioning,
        keys=record.keys,
        properties=work.properties(step),
    )
    target = new.target(family(step, f"create {work.work_id(step)}"))
    files = _result(work, step, target)
    refuse_nulls(step, nulls_in_files(files, target, [each.name for each in record.columns if each.required]))
    work.lease.ensure()
    new.commit(files, summary(work, step))
    undo_if_late(work, existing(work, step))


def recompute(work: Work, step: Step) -> None:
    """Put the query's result in the place of the rows."""
    table, change = existing(work, step), change_of(work, step)
    target = _target(table, step, change)
    replace(work, step, table, change, _result(work, step, target), target)


def _result(work: Work, step: Step, target: FileTarget) -> Sequence[StoredFile]:
    sql = step.details.get("sql")
    if sql is None:
        return generated_files(work, step, target)
    engine = work.engine(step)
    return engine.compute(query=str(sql), table=step.name, target=target, work_id=work.work_id(step)).files


def rewrite(work: Work, step: Step) -> None:
    """Put the same rows with other columns in the place of the rows."""
    table, change = existing(work, step), change_of(work, step)
    target = _target(table, step, change)
    if table.snapshot_id is None:
        replace(work, step, table, change, (), target)
        return
    computed = rewritten(work, step, table, target)
    replace(work, step, table, change, computed.files, target)


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
    table, change = existing(work, step), change_of(work, step)
    replace(work, step, table, change, (), _target(table, step, change))


def replace(
    work: Work,
    step: Step,
    table: MigratedTable,
    change: TableChange,
    files: Sequence[StoredFile],
    target: FileTarget,
) -> None:
    """The commit. Where a required column would have a NULL it is not made."""
    refuse_nulls(step, nulls_in_files(files, target, [str(each["column"]) for each in change.tighten]))
    work.lease.ensure()
    table.replace_rows(change, files, target, summary(work, step))
    collect(target, files)


def collect(target: FileTarget, files: Sequence[StoredFile]) -> None:
    """Delete what killed runs of the same step left beside the files of the commit; what can't be deleted stays."""
    try:
        target.collect(files)
    except OSError as error:
        log.warning("files of earlier runs could not be collected: %s", error)
