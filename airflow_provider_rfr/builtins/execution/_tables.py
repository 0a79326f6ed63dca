"""Steps on tables: create, alter, replace rows, rename, retire (rename out of the way, to be collected).

Columns, rows and marks change in one Iceberg commit. If another writer commits while rows are computed, the commit
fails and what that writer added is computed as well. So no row is lost, and no reader ever sees columns without their
rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from airflow_provider_rfr.builtins.execution.refresh import files_family, inputs_summary
from airflow_provider_rfr.builtins.execution.work import TOKEN, Mechanism, Work
from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import MARKER, STEP, encode
from airflow_provider_rfr.exceptions import LeaseLostError
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile
from airflow_provider_rfr.lake.increments import MIGRATION_TAG
from airflow_provider_rfr.lake.migrated_table import MigratedTable, NewTable, nulls_in_files, purge_table
from airflow_provider_rfr.lake.schema_changes import TableChange, table_definition
from airflow_provider_rfr.lake.types import quoted
from airflow_provider_rfr.store import deploys

log = logging.getLogger(__name__)


class TableStep(Mechanism):
    """A change of the step's table."""

    def table(self) -> MigratedTable:
        """The table.

        :raises StepError: there is none
        """
        found = self.work.table(self.name)
        if found is None:
            raise self.refused("it is gone from the catalog")
        return found

    def probe(self) -> bool:
        return self.is_done(self.table().properties)

    def evidence(self) -> dict[str, Any]:
        table = self.work.table(self.name)
        if table is None:
            return {}
        found = {"rows": table.entry.rows, "snapshot_after": table.tagged_snapshot(MIGRATION_TAG, self.work_id)}
        return {name: value for name, value in found.items() if value is not None}

    def change(self) -> TableChange:
        """What becomes of the table besides its rows; with the marks, which are a part of the same commit."""
        details, record = self.step.details, self.record
        updates = tuple(tuple(batch) for batch in details.get("updates", ()))
        tighten = tuple(details.get("tighten", ()))
        # After these, the keys have to be set again, if a key column is concerned.
        moved = bool(tighten) or any(each["op"] in ("drop", "relax", "rename") for batch in updates for each in batch)
        keys = record.keys if moved or "keys" in details else None
        return TableChange(updates, tighten, details.get("partitioning"), keys, self.properties(), self.unset())

    def refuse_nulls(self, columns: Sequence[str]) -> None:
        """Refuse to make columns required that hold NULLs.

        :raises StepError: there are such columns
        """
        if columns:
            problem = f"{', '.join(columns)} can't be required: there are rows without a value"
            raise self.refused(problem, "fill them in, declare it as optional, or rewrite it with an expression")

    def computed(self, target: FileTarget) -> tuple[Sequence[StoredFile], dict[str, str]]:
        """The result of the object's query, or the list of the declared objects, in files; and the commit's summary."""
        summary = {MIGRATION_TAG: self.work_id}
        sql = self.step.details.get("sql")
        if sql is None:
            schema = pa.schema([field.remove_metadata() for field in target.rows])
            listed = pa.Table.from_pylist(_listed_objects(self.work), schema=schema)
            return [file for file, _ in target.write(listed)], summary
        if self.step.kind is Kind.MATERIALIZED_VIEW:
            objects = {each.key: each for each in self.work.objects.values()}
            summary |= inputs_summary(self.record, objects, self.work.catalog)
        return self.engine.compute(query=str(sql), table=self.name, target=target), summary


class CreateTable(TableStep):
    """Make the table with its marks and its rows, all in one commit: one with a query is never empty."""

    def probe(self) -> bool:
        table = self.work.table(self.name)
        if table is not None and not self.is_marked(table.properties):
            raise self.refused("something has that name already")
        return table is not None

    def do(self) -> None:
        record, work = self.record, self.work
        definition = table_definition(record.columns, record.partitioning, record.keys, self.properties())
        new = NewTable(work.catalog, self.name, definition)
        files: Sequence[StoredFile] = ()
        summary: dict[str, str] = {}
        if self.step.kind is Kind.MATERIALIZED_VIEW or self.step.details.get("lists_objects"):
            target = new.target(files_family(record.uuid, f"create {self.work_id}"))
            files, summary = self.computed(target)
            self.refuse_nulls(nulls_in_files(files, target, [each.name for each in record.columns if each.required]))
        work.lease.ensure()
        new.commit(files, summary)
        self._undo_if_late(self.table())

    def _undo_if_late(self, made: MigratedTable) -> None:
        """Drop the new table if the lease was lost meanwhile: before there was one, nothing could fence this deploy.

        :raises LeaseLostError: it came too late
        """
        try:
            self.work.lease.ensure()
        except LeaseLostError:
            there = self.work.table(self.name)
            ours = there is not None and there.properties.get(TOKEN) == str(self.work.lease.token)
            if there is not None and ours and there.is_as(made):
                purge_table(self.work.catalog, self.name)
            raise


class AlterTable(TableStep):
    """Columns, partitioning, keys, properties: one commit, no snapshot."""

    def do(self) -> None:
        table, change = self.table(), self.change()
        if change.tighten:
            origins = table.origins(change)
            required = (str(each["column"]).casefold() for each in change.tighten)
            self.refuse_nulls(table.with_nulls(origins[name] for name in required if name in origins))
        table.alter(change)


class ReplaceRows(TableStep):
    """Put other rows in the place of all rows, or none, in one commit; refused where a required column would have a
    NULL. Sinks skip the snapshot by its tag."""

    def do(self) -> None:
        table, change = self.table(), self.change()
        # The mark changes with each commit of a deploy: until then, the files of each try are found by the next one.
        target = table.coming(change, files_family(self.record.uuid, table.properties.get(STEP, "")))
        files: Sequence[StoredFile] = ()
        summary = {MIGRATION_TAG: self.work_id}
        if self.step.how is Action.RECOMPUTE:
            files, summary = self.computed(target)
        elif self.step.how is Action.REWRITE and table.snapshot_id is not None:
            files = self._rewritten(table, target)
        self.refuse_nulls(nulls_in_files(files, target, [str(each["column"]) for each in change.tighten]))
        self.work.lease.ensure()
        # Of a materialized view there is a snapshot in any case, so that a refresh at the same time can't commit too.
        table.replace_rows(change, files, target, summary, always=self.step.kind is Kind.MATERIALIZED_VIEW)
        try:
            target.collect(files)
        except OSError as error:
            log.warning("files of earlier runs could not be collected: %s", error)

    def query(self, table: MigratedTable) -> str:
        """The table's rows with its coming columns: by an expression, by the column they came from, or NULL."""
        expressions = {name.casefold(): text for name, text in self.step.details.get("expressions", {}).items()}
        origins = table.origins(self.change())
        parts = []
        for column in self.record.columns:
            origin = origins.pop(column.name.casefold(), None)
            text = expressions.get(column.name.casefold()) or ("NULL" if origin is None else quoted(origin))
            parts.append(f"CAST(({text}) AS {column.type}) AS {quoted(column.name)}")
        # A column that others added, and that nobody declares, keeps its values.
        parts += map(quoted, origins.values())
        return f"SELECT {', '.join(parts)} FROM {'.'.join(map(quoted, self.name.split('.')))}"

    def _rewritten(self, table: MigratedTable, target: FileTarget) -> Sequence[StoredFile]:
        """The table's rows with their coming columns, in files.

        :raises StepError: there are not as many as before
        """
        files = self.engine.compute(query=self.query(table), table=self.name, target=target, snapshot=table.snapshot_id)
        before, after = table.rows(), sum(each.rows for each in files)
        if after != before:
            raise self.refused(f"{before} rows became {after}; nothing was changed", "")
        return files


class RenameTable(TableStep):
    """Mark the table, then rename it: a rename is not a commit, so it can't carry the mark."""

    def probe(self) -> bool:
        there = self.work.table(self._to)
        if there is not None and self.is_marked(there.properties):
            return True
        self.is_done(self.table().properties)
        return False

    @property
    def _to(self) -> str:
        return str(self.step.details["to"])

    def do(self) -> None:
        table = self.table()
        if not self.is_marked(table.properties):
            table.alter(TableChange(properties=self.marks()))
            self.work.lease.ensure()
            table = self.table()
        table.rename(self._to)

    def settle(self, connection: Connection, now: int) -> None:
        """A table that was retired and has a name again is not to be deleted."""
        deploys.retract(connection, self.work.plan.project, self.name)


class RetireTable(TableStep):
    """Rename the table out of the way; its properties stay."""

    def probe(self) -> bool:
        """Whether the table has its retired name, or is deleted."""
        retired = self.work.table(self._to)
        if retired is not None and retired.properties.get(MARKER) == str(self.step.uuid):
            return True
        table = self.work.table(self.name)
        return table is None or self.is_done(table.properties)

    @property
    def _to(self) -> str:
        return self.work.retired_name(self.name)

    def do(self) -> None:
        self.table().rename(self._to)


def _listed_objects(work: Work) -> list[dict[str, Any]]:
    """What the registry is going to hold, in the order of names."""
    stepped = {each.uuid for each in work.plan.steps}
    rows = []
    for obj in sorted(work.objects.values(), key=lambda one: one.key):
        said = encode(obj)
        rows.append(
            {
                **said,
                "id": said["uuid"],
                "keep": str(obj.keep).lower() if isinstance(obj.keep, bool) else obj.keep,
                "project": work.plan.project,
                "reads": [each.name for each in obj.deps],
                "query": obj.raw_sql,
                "executed_query": obj.sql,
                "version": work.spec.version,
                "deploy_id": work.deploy_id if obj.uuid in stepped else obj.deploy_id,
            }
        )
    return rows
