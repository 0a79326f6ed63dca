"""The published table, and the one strict commit that adds the prepared files and the columns that they need.

If another commit came first, the commit is refused. The caller then reloads the table, checks whether this generation
or a newer one is published already, and only then retries. ``replace_where`` names the part that a publish replaces.

Columns that lose all their values are found by the counts that Iceberg keeps for each data file. If a file lacks counts
for a column, because of another writer or the table's ``write.metadata.metrics.*``, nothing is reported for it. Null,
``[]`` and ``{}`` are not values, as in an inferred schema.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.expressions import parser
from pyiceberg.expressions.visitors import _StrictMetricsEvaluator
from pyiceberg.schema import Schema

from airflow_provider_rfr.exceptions import ConfigurationError, SchemaEvolutionError
from airflow_provider_rfr.lake.catalog import ensure_namespace, load_table
from airflow_provider_rfr.lake.commit_event import EVENT_KEY
from airflow_provider_rfr.lake.commits import (
    AddedManifest,
    CommitConflictError,
    TableTransaction,
    TargetChangedError,
    commit_strictly,
    data_files,
    newest_summary_with,
    stage_append,
    stage_overwrite,
    stale_files_are_conflicts,
    summary_of,
)
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget
from airflow_provider_rfr.lake.evolution import (
    EvolutionPlan,
    Policy,
    apply_evolution,
    pinned_columns,
    plan_evolution,
)
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.files import renewal_time
from airflow_provider_rfr.lake.row_filter import RowFilter
from airflow_provider_rfr.lake.schemas import (
    SYSTEM_COLUMNS,
    listed,
    row_column,
    target_schema,
)
from airflow_provider_rfr.lake.side_files import SideFiles, side_files
from airflow_provider_rfr.lake.sync_state import (
    SyncState,
    has_lost_state,
    has_state,
    read_state,
    state_digest,
    state_note,
)
from airflow_provider_rfr.lake.table_reader import TableReader, equality_deletes_refused, live_files
from airflow_provider_rfr.text import quantity

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

log = logging.getLogger(__name__)
# PyIceberg warns, with a path of this package, where a part that is replaced has no rows yet.
warnings.filterwarnings("ignore", "Delete operation did not match any records", UserWarning)

PUBLISHED_PROPERTY = "rfr.published"
LEDGER_KEY, GENERATION_KEY, SCHEMA_CHANGES_KEY = "rfr.ledger", "rfr.generation", "rfr.schema-changes"
UPSTREAM_KEY = "rfr.upstream"
"""Summary property of a backfill's commit: name of the API. A table with backfills alone has no state to hold it."""
NO_VALUE = "got no value"


@dataclass(frozen=True, slots=True)
class Publication:
    """A publish of a generation in the target.

    :ivar summary: properties of its snapshot; empty if that has expired
    """

    generation: int
    snapshot_id: int
    summary: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def discarding(target: FileTarget) -> Iterator[None]:
    """Delete the files that this attempt wrote, if it fails inside, where no commit may be tried.

    They are kept after a conflict with another writer, because the next try needs them.
    """
    try:
        yield
    except CommitConflictError:
        raise
    except BaseException:
        target.discard()
        raise


class TargetTable:
    """The target as it was last loaded, or as its first publish will create it."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self.name = name
        self._table: Table | None = None
        self._layout: FileLayout | None = None
        self._added = AddedManifest()
        self._no_values: list[str] | None = None
        self._location: str | None = None
        self.reload()

    def reload(self) -> None:
        self._table = load_table(self._catalog, self.name)
        self._renewal = math.inf if self._table is None else renewal_time(self._table)

    def renew_credentials(self) -> None:
        """Load the table again where the credentials of its files are old."""
        if time.monotonic() >= self._renewal:
            self.reload()

    @property
    def columns(self) -> str | None:
        """Return the table's columns and partitioning as JSON texts, for a fingerprint; None without a table."""
        if self._table is None:
            return None
        metadata = self._table.metadata
        return f"{metadata.schema().as_struct().model_dump_json()} {metadata.spec().model_dump_json()}"

    def row_columns(self) -> Mapping[str, pa.Field]:
        """Return the Arrow columns that records are read as, by name; an empty mapping without a table."""
        columns = () if self._table is None else map(row_column, self._table.schema().fields)
        return {column.name: column for column in columns if column is not None}

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Return those of the columns, given by path, that the table lacks; none if it has no rows yet."""
        if not self._has_rows:
            return []
        assert self._table is not None
        present = self._table.schema().column_names
        return [name for name in names if name not in present]

    @property
    def _has_rows(self) -> bool:
        newest = None if self._table is None else self._table.current_snapshot()
        return summary_of(newest).get("total-records", "0") != "0"

    def may_be_of_another(self, upstream: str, ledger: str) -> bool:
        """Tell whether rows may come from another API than ``upstream``.

        The newest publish from this ledger names its API if it was a backfill.
        """
        if self._table is None or not self._has_rows:
            return False
        newest = newest_summary_with(self._table, LEDGER_KEY, ledger) or {}
        return newest.get(UPSTREAM_KEY) != upstream

    def published(self, ledger: str) -> Publication | None:
        """Return the newest publish from this ledger; None if there is none."""
        if self._table is None:
            return None
        # The property names the newest publish of any ledger, even if its snapshot has expired. That of another ledger
        # is only named by its snapshot.
        parts = self._table.metadata.properties.get(PUBLISHED_PROPERTY, "").split(":")
        if len(parts) == 3 and parts[0] == ledger:
            snapshot_id = int(parts[2])
            return Publication(int(parts[1]), snapshot_id, summary_of(self._table.snapshot_by_id(snapshot_id)))
        summary = newest_summary_with(self._table, LEDGER_KEY, ledger)
        if summary is None:
            return None
        return Publication(int(summary[GENERATION_KEY]), int(summary["snapshot-id"]), summary)

    def sync_state(self) -> SyncState | None:
        """Return the state of the table's incremental sync; None if it has none.

        :raises SyncStateError: it can't be read
        """
        return None if self._table is None else read_state(self._table)

    @property
    def state_digest(self) -> str | None:
        """Return a digest of the table's state, which may be one that can't be read; None without a state."""
        return None if self._table is None else state_digest(self._table.metadata)

    @property
    def has_state(self) -> bool:
        """Tell whether the table has the state of an incremental sync, or had one that another engine dropped."""
        return self._table is not None and (has_state(self._table.metadata) or self.has_lost_state)

    @property
    def has_lost_state(self) -> bool:
        """Tell whether another engine dropped the state that the table's incremental sync had."""
        return self._table is not None and has_lost_state(self._table.metadata)

    def side_files(self) -> AbstractContextManager[SideFiles]:
        """Return a context in which side files are written and a commit that names them is tried."""
        return side_files(lambda: self._begin()[0]._table if self._table is None else self._table)

    def reader(self) -> TableReader:
        """Return the reader of the table's data files, with the columns that :meth:`prepare` planned.

        :raises TargetChangedError: the table has other columns now, or more of them
        """
        transaction, _ = self._begin()
        self._check_layout(transaction.table_metadata, may_have_more=False)
        return TableReader.of(transaction.table_metadata, transaction._table.io)

    def live_files(self) -> list[FileScanTask]:
        """Return the data files of the table as it was loaded.

        :raises ConfigurationError: rows of the table can't be replaced
        """
        with stale_files_are_conflicts(self._catalog, self.name, self._table):
            return [] if self._table is None else live_files(self._table)

    @property
    def snapshot_id(self) -> int | None:
        """Return the table's current snapshot; None without one."""
        return None if self._table is None else self._table.metadata.current_snapshot_id

    def prepare(
        self,
        wanted: pa.Schema,
        policy: Policy,
        *,
        inferred: bool,
        rows_stay: bool,
        declared: Collection[str] = (),
        has_rows: bool = True,
    ) -> FileTarget:
        """Plan the table's schema for these columns, so that files can be written for it.

        :param wanted: columns of the rows, without system columns
        :param inferred: the columns were inferred from the rows, apart from those in ``declared``
        :param rows_stay: the commit keeps rows of the table, so their columns can't be replaced
        :param has_rows: whether any row is written
        :raises SchemaEvolutionError: the table can't take the columns
        """
        # Kept for the commit, which plans again on the table as it was reloaded.
        self._wanted, self._policy, self._rows_stay, self._writes = wanted, policy, rows_stay, has_rows
        self._inferred = frozenset(wanted.names).difference(declared) if inferred else frozenset()
        # Reset, because a manifest and emptied columns of an earlier plan belong to other files.
        self._added, self._no_values, self._location = AddedManifest(), None, None
        transaction, evolution = self._begin()
        self._location = transaction.table_metadata.location
        target = FileTarget.of(transaction.table_metadata, transaction._table.io, rows=evolution.rows)
        self._layout = target.layout
        return target

    def commit(
        self,
        files: Sequence[DataFile],
        publication: tuple[str, int],
        *,
        mode: str,
        replace_where: str | None,
        summary: Mapping[str, str],
        sent: Collection[str] = (),
    ) -> Publication:
        """Publish the files in one commit.

        :param publication: ledger and generation
        :param mode: ``append`` adds the files; any other mode replaces the table's rows, or the part ``replace_where``
        :param sent: paths of the fields that the records have, with or without a value
        :raises CommitConflictError: the table changed since it was loaded; nothing was written
        :raises TargetChangedError: its columns changed since the files were planned
        :raises SchemaEvolutionError: the table can't take the columns, or may not change; nothing was written
        :raises ConfigurationError: a part is to be replaced, and the table has equality deletes; nothing was written
        """
        transaction, evolution = self._begin()
        now = transaction.table_metadata
        self._check_layout(now)
        if mode != "append" or self._no_values is None:
            # An append computes this once: a retry that reads all manifests would lose against a frequent writer.
            self._no_values = self._emptied(now.schema(), files, replace_where, sent)
        emptied = self._no_values
        if changes := "; ".join(filter(None, (str(evolution), _described(emptied)))):
            summary = {**summary, SCHEMA_CHANGES_KEY: changes}
        with stale_files_are_conflicts(self._catalog, self.name, self._table):
            snapshot_id = self._stage(transaction, files, mode, replace_where, summary)
        self._publish(transaction, evolution, (*publication, snapshot_id))
        if emptied:
            log.warning("%s: %s", self.name, _described(emptied))
        return Publication(publication[1], snapshot_id, summary)

    def merge(
        self,
        old: Sequence[DataFile],
        new: Sequence[DataFile],
        publication: tuple[str, int],
        summary: Mapping[str, str],
    ) -> Publication:
        """Replace the files ``old`` of the table as it was loaded by ``new``, in one commit.

        :param publication: ledger and generation
        :raises CommitConflictError: the table changed since it was loaded; nothing was written
        :raises TargetChangedError: its columns changed since the files were planned
        """
        transaction, evolution = self._begin()
        self._check_layout(transaction.table_metadata)
        if evolution.changes:
            summary = {**summary, SCHEMA_CHANGES_KEY: str(evolution)}
        with stale_files_are_conflicts(self._catalog, self.name, self._table):
            if old:
                snapshot_id = stage_overwrite(transaction, old, new, summary)
            else:
                snapshot_id = stage_append(transaction, new, summary)
        self._publish(transaction, evolution, (*publication, snapshot_id))
        return Publication(publication[1], snapshot_id, summary)

    def _publish(self, transaction: Transaction, evolution: EvolutionPlan, published: tuple[str, int, int]) -> None:
        """Commit the transaction, with the property that names the ledger, the generation and the snapshot."""
        # In one commit with the snapshot, so that no crash leaves rows that the property does not name.
        note = state_note(transaction.table_metadata.snapshot_by_id(published[2]))
        transaction.set_properties({PUBLISHED_PROPERTY: ":".join(map(str, published)), **note})
        commit_strictly(transaction)
        if evolution.changes:
            log.info("%s: the schema changed: %s", self.name, evolution)

    def _check_layout(self, now: TableMetadata, *, may_have_more: bool = True) -> None:
        """Check that the table still has the columns and the partitioning that files were written for.

        :param may_have_more: whether new columns are allowed. In files without them they read as NULL, which is wrong
            for rows that are moved from other files
        :raises TargetChangedError: its columns or its partitioning changed
        """
        planned = self._layout
        assert planned is not None
        # Compared by id, because files refer to columns by their field ids.
        by_id = {column.field_id: column for column in now.schema().fields}
        same = all(by_id.get(column.field_id) == column for column in planned.schema.fields)
        same = same and (may_have_more or len(by_id) == len(planned.schema.fields))
        if not same or now.spec().fields != planned.spec.fields:
            raise TargetChangedError(f"the columns or the partitioning of {self.name} changed while files were written")

    def _stage(
        self,
        transaction: Transaction,
        files: Sequence[DataFile],
        mode: str,
        replace_where: str | None,
        summary: Mapping[str, str],
    ) -> int:
        """Add the snapshot to the transaction; return its id."""
        if mode == "append":
            # Other writers may append all the time, so a repeated try must cost as little as possible.
            return stage_append(transaction, files, summary, self._added)
        if replace_where is None:
            old = data_files(self._table) if self._table is not None else ()
            return stage_overwrite(transaction, old, files, summary, is_whole=True)
        # PyIceberg replaces by a filter in two snapshots of one commit; only the second carries event and changes.
        silent = {key: value for key, value in summary.items() if key not in (EVENT_KEY, SCHEMA_CHANGES_KEY)}
        with equality_deletes_refused(self.name):
            transaction.delete(replace_where, snapshot_properties=silent)
        return stage_append(transaction, files, summary)

    def _emptied(
        self, after: Schema, files: Sequence[DataFile], replace_where: str | None, sent: Collection[str]
    ) -> list[str]:
        """Return the columns that have values in the table, or in the replaced part, but none in the files.

        If the publish keeps rows, a field that is null in all records does not count: a few rows may lack a value.

        :raises SchemaEvolutionError: columns would lose their values, and the policy is ``fail``
        """
        if self._table is None or not files:
            return []
        columns, has = self._table.schema().fields, _columns_with_values(files)
        own = (column for column in columns if column.name not in SYSTEM_COLUMNS.names)
        if all(has.get(field_id, True) for column in own for field_id in _leaves(column)):
            # No column lacks all values, so the manifests of the table need not be read.
            return []
        had = _columns_with_values(self._live_files(replace_where))
        emptied = list(_emptied_columns(columns, had, after.fields, has))
        if self._rows_stay:
            emptied = [name for name in emptied if name not in sent]
        if emptied and self._policy == "fail":
            become = "would get no value" if self._rows_stay else "would become empty"
            raise SchemaEvolutionError(
                f"{quantity(len(emptied), 'column')} of {self.name} {become}: {listed(emptied)}; and on_schema_change"
                " is fail: set it to evolve, or correct the source or the declared schema"
            )
        return emptied

    def _live_files(self, replace_where: str | None) -> Iterator[DataFile]:
        """Yield the table's data files; for a part, only those without rows of other parts."""
        table = self._table
        assert table is not None
        if replace_where is None:
            yield from data_files(table)
            return
        part = RowFilter(replace_where, table.schema())
        try:
            part.bound()
        except ConfigurationError:
            return  # the table lacks the filter's column, so none of its rows is in the part
        # Strict: take only files whose bounds prove that every row matches. Counts of other files include other rows.
        is_of_part = _StrictMetricsEvaluator(table.schema(), parser.parse(replace_where)).eval
        with equality_deletes_refused(self.name):
            tasks = list(table.scan(row_filter=replace_where).plan_files())
        yield from (task.file for task in tasks if is_of_part(task.file))

    def _begin(self) -> tuple[Transaction, EvolutionPlan]:
        """Return a transaction that has the schema changes staged, or that creates the table."""
        if self._table is None:
            ensure_namespace(self._catalog, self.name)
            schema, properties = target_schema(self._wanted), dict(TABLE_PROPERTIES)
            # The location that ``prepare`` got, where the files are. Some catalogs choose another location for each
            # transaction, and vend credentials for that alone.
            creation = self._catalog.create_table_transaction(
                self.name, schema, location=self._location, properties=properties
            )
            return creation, EvolutionPlan((), self._wanted)
        transaction = TableTransaction(self._table)
        metadata = transaction.table_metadata
        plan = plan_evolution(
            metadata.schema(),
            self._wanted,
            self._policy,
            inferred=self._inferred,
            pinned=None if self._rows_stay else pinned_columns(metadata),
            has_rows=self._writes,
        )
        apply_evolution(transaction, plan)
        return transaction, plan


def _columns_with_values(files: Iterable[DataFile]) -> Mapping[int, bool]:
    """Return, by field id, whether any row has a value. Columns that have counts in no file are left out."""
    has_values: dict[int, bool] = {}
    for file in files:
        nulls = file.null_value_counts or {}
        for field_id, count in (file.value_counts or {}).items():
            if field_id in nulls:
                has_values[field_id] = has_values.get(field_id, False) or count > nulls[field_id]
    return has_values


def _emptied_columns(
    before: Sequence[iceberg.NestedField],
    had: Mapping[int, bool],
    after: Sequence[iceberg.NestedField],
    has: Mapping[int, bool],
    path: str = "",
) -> Iterator[str]:
    """Yield the columns of both schemas, by path, that had a value before and have none after.

    :param had: as :func:`_columns_with_values` returns it
    """
    now = {column.name: column for column in after}
    for column in before:
        new = now.get(column.name)
        if new is None or (not path and column.name in SYSTEM_COLUMNS.names):
            continue
        # Where counts are missing, nothing is reported: before, such a column counts as empty, and after, as filled.
        if not any(had.get(field_id, False) for field_id in _leaves(column)):
            continue
        if not any(has.get(field_id, True) for field_id in _leaves(new)):
            yield path + column.name
        else:
            yield from _emptied_columns(_inner(column), had, _inner(new), has, f"{path}{column.name}.")


def _described(names: Collection[str]) -> str:
    """Return a text such as ``2 columns got no value: open, tags``; empty for no names."""
    return f"{quantity(len(names), 'column')} {NO_VALUE}: {listed(names)}" if names else ""


def _leaves(column: iceberg.NestedField) -> Iterator[int]:
    """Yield the ids of a column's innermost fields, which hold the values."""
    inner = _inner(column)
    if not inner:
        yield column.field_id
    for child in inner:
        yield from _leaves(child)


def _inner(column: iceberg.NestedField) -> Sequence[iceberg.NestedField]:
    kind = column.field_type
    if isinstance(kind, iceberg.ListType):
        return (kind.element_field,)
    if isinstance(kind, iceberg.MapType):
        return kind.key_field, kind.value_field
    return kind.fields if isinstance(kind, iceberg.StructType) else ()
