"""The rows of a query as data files that no commit names yet: cut into units where that can be, else as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_rfr.builtins.execution.sql_engine import ComputedFiles
from airflow_provider_rfr.builtins.spark import literals
from airflow_provider_rfr.builtins.spark.errors import told
from airflow_provider_rfr.builtins.spark.job import Job, matched
from airflow_provider_rfr.builtins.spark.rowwise import by_file
from airflow_provider_rfr.builtins.spark.session import use_namespace
from airflow_provider_rfr.builtins.sql.names import at_snapshots
from airflow_provider_rfr.exceptions import DeployError, QueryError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.data_files import StoredFile

_TRIES = 3


def compute(job: Job, read: Mapping[str, int], row_wise: str | None) -> ComputedFiles:
    """Compute the job's rows; see :meth:`SqlEngine.compute`.

    :raises SchemaError: the query's columns or values don't fit the table
    :raises SparkJobError: Spark can't run the query
    :raises DeployError: a table that is read is written to all the time
    """
    with told(job.table, job.secrets):
        use_namespace(job.session, job.lake, job.namespace)
    files: tuple[StoredFile, ...] | None = None
    if row_wise is not None:
        files = by_file(job, job.real_name(row_wise), read[row_wise])
    if files is None:
        files, read = _whole(job, read, complete=row_wise is None)
    return ComputedFiles(files, sum(each.rows for each in files), dict(read))


def _whole(job: Job, read: Mapping[str, int], *, complete: bool) -> tuple[tuple[StoredFile, ...], Mapping[str, int]]:
    """Spark shows a table of an earlier snapshot with the columns of then. So where columns have changed since, but no
    row, the table is read as it is, and what was computed counts only if it is still the same afterwards.
    """
    for _ in range(_TRIES):
        pinned, loose = _pins(job, read)
        with told(job.table, job.secrets):
            rows = job.session.sql(literals.query(_pinned(job, pinned)))
        files = job.run(matched(rows, job.target.layout, job.table, complete=complete), job.work())
        now = {name: _current(job, name) for name in loose}
        if now == loose:
            return files, read
        read = {**read, **{name: snapshot for name, snapshot in now.items() if snapshot is not None}}
    raise DeployError(
        f"{job.table}: {', '.join(sorted(loose))} is written to all the time; deploy again when it is not"
    )


def _pinned(job: Job, snapshots: Mapping[str, int]) -> str:
    try:
        return at_snapshots(job.query, job.namespace, snapshots)
    except QueryError:
        return job.query


def _pins(job: Job, read: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Snapshots that the query can name, and those that it can't."""
    pinned: dict[str, int] = {}
    loose: dict[str, int] = {}
    for name, snapshot_id in read.items():
        table = load_table(job.catalog, job.real_name(name))
        snapshot = None if table is None else table.snapshot_by_id(snapshot_id)
        same = table is not None and snapshot is not None and snapshot.schema_id == table.metadata.current_schema_id
        (pinned if same else loose)[name] = snapshot_id
    return pinned, loose


def _current(job: Job, name: str) -> int | None:
    table = load_table(job.catalog, job.real_name(name))
    return None if table is None else table.metadata.current_snapshot_id
