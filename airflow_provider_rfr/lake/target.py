"""The published table: one strict commit that shows the prepared files.

A commit that meets another one is refused. The caller then reloads the table, looks whether this generation or a newer
one is published already, and only then repeats the commit. ``replace_where`` names the part that a publish replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_rfr.lake._schema_evolution import (
    EvolutionPlan,
    Policy,
    apply_evolution,
    pinned_columns,
    plan_evolution,
)
from airflow_provider_rfr.lake.catalog import ensure_namespace, load_table
from airflow_provider_rfr.lake.commit_event import EVENT_KEY
from airflow_provider_rfr.lake.commits import (
    CommitConflictError,
    TargetChangedError,
    conflicts_raised,
    has_changed,
    newest_summary_with,
    stage_append,
    stage_overwrite,
    summary_of,
    without_retries,
)
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.schemas import target_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

log = logging.getLogger(__name__)

PUBLISHED_PROPERTY = "rfr.published"
LEDGER_KEY, GENERATION_KEY, _SCHEMA_CHANGES_KEY = "rfr.ledger", "rfr.generation", "rfr.schema-changes"


@dataclass(frozen=True, slots=True)
class Publication:
    """A commit on the target.

    :ivar summary: its properties; empty when the snapshot has expired
    """

    generation: int
    snapshot_id: int
    summary: Mapping[str, str] = field(default_factory=dict)


class TargetTable:
    """The target as it was last loaded, or the table that it will be."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self.name = name
        self._table: Table | None = None
        self._layout: FileLayout | None = None
        self.reload()

    def reload(self) -> None:
        self._table = load_table(self._catalog, self.name)

    @property
    def columns(self) -> str | None:
        """A text that differs when the table's columns or its partitioning do; None without a table."""
        if self._table is None:
            return None
        metadata = self._table.metadata
        return f"{metadata.schema().as_struct().model_dump_json()} {metadata.spec().model_dump_json()}"

    def published(self, ledger: str) -> Publication | None:
        """The newest publication from this ledger."""
        if self._table is None:
            return None
        # The property names the last publication of all, even if its snapshot has expired; snapshots name the others.
        parts = self._table.metadata.properties.get(PUBLISHED_PROPERTY, "").split(":")
        if len(parts) == 3 and parts[0] == ledger:
            snapshot_id = int(parts[2])
            return Publication(int(parts[1]), snapshot_id, summary_of(self._table.snapshot_by_id(snapshot_id)))
        summary = newest_summary_with(self._table, LEDGER_KEY, ledger)
        if summary is None:
            return None
        return Publication(int(summary[GENERATION_KEY]), int(summary["snapshot-id"]), summary)

    def prepare(self, wanted: pa.Schema, policy: Policy, *, inferred: bool, rows_stay: bool) -> FileTarget:
        """Plan the table's schema for these columns, so that files can be written for it.

        :param wanted: columns of the rows, without system columns
        :param inferred: the columns were inferred from the rows, not declared
        :param rows_stay: the commit keeps rows of the table, so their columns can't be replaced
        :raises SchemaEvolutionError: the table can't take the columns
        """
        # The commit needs them, too, to plan again on a table that was reloaded.
        self._wanted, self._policy, self._inferred, self._rows_stay = wanted, policy, inferred, rows_stay
        transaction = self._transaction()
        rows = self._evolve(transaction).rows
        target = FileTarget.of(transaction.table_metadata, transaction._table.io, rows=rows)
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
    ) -> int:
        """Show the files, in one commit; returns the snapshot's id.

        :param publication: ledger and generation
        :raises CommitConflictError: the table changed since it was loaded; nothing was written
        :raises TargetChangedError: its columns changed since the files were planned
        """
        transaction = self._transaction()
        changes = str(self._evolve(transaction))
        # Files name columns by id, and the commit that comes first decides which id a new column has.
        planned, now = self._layout, transaction.table_metadata
        assert planned is not None
        by_id = {column.field_id: column for column in now.schema().fields}
        same = all(by_id.get(column.field_id) == column for column in planned.schema.fields)
        if not same or now.spec().fields != planned.spec.fields:
            raise TargetChangedError(f"the columns or the partitioning of {self.name} changed while files were written")
        if changes:
            summary = {**summary, _SCHEMA_CHANGES_KEY: changes}
        try:
            with conflicts_raised():
                if mode == "append":
                    snapshot_id = stage_append(transaction, files, summary)
                elif replace_where is None:
                    old = self._table.scan().plan_files() if self._table is not None else ()
                    snapshot_id = stage_overwrite(transaction, (task.file for task in old), files, summary)
                else:
                    # PyIceberg replaces by a filter in two snapshots of one commit; only the second carries the event.
                    silent = {key: value for key, value in summary.items() if key != EVENT_KEY}
                    transaction.delete(replace_where, snapshot_properties=silent)
                    snapshot_id = stage_append(transaction, files, summary)
                transaction.set_properties({PUBLISHED_PROPERTY: ":".join(map(str, (*publication, snapshot_id)))})
                transaction.commit_transaction()
        except FileNotFoundError as error:
            # Others may have committed so often meanwhile that the loaded snapshot has expired.
            if not has_changed(self._catalog, self.name, self._table):
                raise
            raise CommitConflictError(f"{self.name}: a file of the table as it was loaded is gone: {error}") from error
        if changes:
            log.info("%s: the schema changed: %s", self.name, changes)
        return snapshot_id

    def _transaction(self) -> Transaction:
        if self._table is not None:
            return without_retries(self._table).transaction()
        ensure_namespace(self._catalog, self.name)
        schema = target_schema(self._wanted)
        return self._catalog.create_table_transaction(self.name, schema, properties=dict(TABLE_PROPERTIES))

    def _evolve(self, transaction: Transaction) -> EvolutionPlan:
        """Stage the schema changes, none for a new table."""
        if self._table is None:
            return EvolutionPlan((), self._wanted)
        metadata = transaction.table_metadata
        pinned = None if self._rows_stay else pinned_columns(metadata)
        plan = plan_evolution(metadata.schema(), self._wanted, self._policy, inferred=self._inferred, pinned=pinned)
        apply_evolution(transaction, plan)
        return plan


def append_rows(catalog: Catalog, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows in one commit, which is repeated if it meets another one; columns that a row lacks are NULL.

    :raises ValueError: there is no such table, or no such column
    """
    table = load_table(catalog, name)
    if table is None:
        raise ValueError(f"there is no table {name}")
    schema = table.schema().as_arrow()
    if unknown := sorted({column for row in rows for column in row} - set(schema.names)):
        raise ValueError(f"{name} has no column {unknown[0]}; it has {', '.join(schema.names)}")
    table.append(pa.Table.from_pylist(list(rows), schema=schema))
