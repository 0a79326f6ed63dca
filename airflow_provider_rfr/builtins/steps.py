"""The mechanisms of a deploy: for each action, how its step is probed, executed and verified.

Columns, rows and marks of a table change in one Iceberg commit. If another writer commits while rows are computed, the
commit fails, and it is tried again with the rows that this writer added. So no row is lost, and no reader ever sees
columns without their rows. A view gets its marks in the statement that defines it. A user's view gets none, so its
steps are always executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
from sqlalchemy import Connection

from airflow_provider_rfr.builtins import model
from airflow_provider_rfr.builtins.maintenance import bridge_text, own_text
from airflow_provider_rfr.builtins.model import (
    BRIDGED,
    BROKEN,
    DEPLOY,
    MARKER,
    STEP,
    STORED,
    TOKEN,
    CatalogSpec,
    Kind,
    RecordedObject,
    retired_name,
)
from airflow_provider_rfr.builtins.plan import Plan, PlanStep, StepAction
from airflow_provider_rfr.builtins.refresh import inputs_summary
from airflow_provider_rfr.builtins.sql import cast
from airflow_provider_rfr.exceptions import LeaseLostError, StepError
from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile
from airflow_provider_rfr.lake.migrated_table import (
    MigratedTable,
    NewTable,
    TableChange,
    nulls_in_files,
    purge_table,
    table_definition,
)
from airflow_provider_rfr.lake.rows import MIGRATION_TAG
from airflow_provider_rfr.lake.tables import COMMENT, OWNER, ViewEntry, find_view
from airflow_provider_rfr.lake.types import has_same_fields, parse_type, quoted
from airflow_provider_rfr.sinks.run import decide_sink, hold_snapshots, register_sink
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import delete_sink
from airflow_provider_rfr.store.leases import Lease

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.spark_sql import Outputs, SparkSqlEngine


@dataclass(frozen=True)
class DeployWork:
    """A running deploy.

    :ivar sql: None if no step needs SQL
    :ivar own_texts: text of each user's view as it was planned, by case-folded name
    :ivar bridged: future output columns, by name, of the views that are bridged while a column is widened
    """

    deploy_id: str
    plan: Plan
    spec: CatalogSpec
    recorded: model.RegistryState
    catalog: Catalog
    lease: Lease
    sql: SparkSqlEngine | None
    own_texts: Mapping[str, str]
    bridged: dict[str, Outputs] = field(default_factory=dict)

    @cached_property
    def objects(self) -> dict[UUID | None, RecordedObject]:
        """Return the objects that the registry will hold after the deploy, by id."""
        kept = (obj for obj in self.recorded.objects if obj.uuid not in self.plan.forgotten)
        return {record.uuid: record for record in (*kept, *self.plan.records)}

    def table(self, name: str) -> MigratedTable | None:
        """Return a table in its present state; None if there is none.

        :raises LeaseLostError: another deploy took over, and has marked the table
        """
        table = MigratedTable.load(self.catalog, name)
        if table is not None and model.token_of(table.properties) > self.lease.token:
            self.lease.ensure()
        return table


class Mechanism:
    """The execution of a step, and the check in the catalog that it is done. The journal is never consulted."""

    def __init__(self, work: DeployWork, step: PlanStep) -> None:
        self.work = work
        self.step = step
        self.name = step.name

    def probe(self) -> bool | None:
        """Tell whether the step is done; None if the catalog can't show it, so that the step is executed again."""
        raise NotImplementedError

    def do(self) -> None:
        """Execute the step; this may be repeated after a complete or partial execution."""
        raise NotImplementedError

    def evidence(self) -> dict[str, Any]:
        """Return figures of the finished step for the journal, as JSON."""
        table = self.work.table(self.name) if self.step.kind in STORED else None
        if table is None:
            return {}
        return {"rows": table.entry.rows, "snapshot_after": table.tagged_snapshot(MIGRATION_TAG, self.work_id)}

    def settle(self, connection: Connection, now: int) -> None:
        """Write to the control store, in the transaction that marks the step as done.

        :param now: milliseconds since 1970
        """

    @property
    def record(self) -> RecordedObject:
        """Return the record that the step's object will have after the deploy."""
        return self.work.objects[self.step.uuid]

    @property
    def engine(self) -> SparkSqlEngine:
        assert self.work.sql is not None, "looked for before the first step"
        return self.work.sql

    @property
    def work_id(self) -> str:
        """Return the step's id in the properties and snapshots that it writes: ``<deploy>/<seq>``."""
        return f"{self.work.deploy_id}/{self.step.seq}"

    def refused(self, problem: str, remedy: str = "plan again") -> StepError:
        return StepError(self.name, self.step.how.value, problem, remedy)

    def is_done(self, properties: Mapping[str, str]) -> bool:
        """Tell whether the properties carry the step's mark.

        :raises StepError: the properties are not those of the step's object
        """
        if not self.is_ours(properties) and (MARKER in properties or self.step.how is not StepAction.ADOPT):
            raise self.refused("what has the name does not carry our marker: no deploy made it")
        return self.is_marked(properties)

    def is_ours(self, properties: Mapping[str, str]) -> bool:
        return properties.get(MARKER) == str(self.step.uuid)

    def is_marked(self, properties: Mapping[str, str]) -> bool:
        return self.is_ours(properties) and properties.get(STEP) == self.work_id

    def marks(self) -> dict[str, str]:
        """Return the properties that name the deploy and the step that last changed the object."""
        return {DEPLOY: self.work.deploy_id, STEP: self.work_id, TOKEN: str(self.work.lease.token)}

    def properties(self) -> dict[str, str]:
        """Return all properties that the object's table or view gets."""
        record, base = self.record, self.work.plan.base_revision
        # The objects that it reads, each with the last step that changed it.
        inputs = []
        for dep in record.deps:
            if (read := self.work.objects.get(dep.uuid)) is not None:
                live = find_view(self.work.catalog, read.name) if read.kind is Kind.VIEW else self.work.table(read.name)
                inputs.append((read.uuid, live.properties.get(STEP, "") if live is not None else ""))
        properties = {
            **_declared(record),
            MARKER: str(record.uuid),
            model.PROJECT: self.work.plan.project,
            **self.marks(),
            model.DONE: model.done_mark(base, record, inputs),
        }
        if self.step.kind in STORED:
            properties[model.WAS] = model.was_mark(base, record.columns)
            if self.step.how in (StepAction.CREATE, StepAction.REPLACE_EMPTY):
                properties[model.EMPTIED] = f"{base}/{self.work.deploy_id}"
        return properties

    def unset(self) -> list[str]:
        """Return the names of properties that an earlier deploy wrote and that are no longer declared."""
        before = self.work.recorded.by_uuid.get(self.record.uuid)
        return [] if before is None else sorted(_declared(before).keys() - _declared(self.record).keys())


def _declared(record: RecordedObject) -> dict[str, str]:
    """Return the properties of a table or view that come from its declaration."""
    properties = {COMMENT: record.comment, OWNER: record.owner, **record.properties}
    return {name: value for name, value in properties.items() if value is not None}


class TableStep(Mechanism):
    def table(self) -> MigratedTable:
        if (table := self.work.table(self.name)) is None:
            raise self.refused("it is gone from the catalog")
        return table

    def probe(self) -> bool:
        return self.is_done(self.table().properties)

    def change(self) -> TableChange:
        """Return the change of the table's metadata, with the marks, which are part of the same commit."""
        details, record = self.step.details, self.record
        updates, tighten = details.get("updates", ()), details.get("tighten", ())
        # These operations may affect a key column, so Iceberg's identifier fields have to be set again.
        moved = bool(tighten) or any(
            update["op"] in ("drop", "relax", "rename") for batch in updates for update in batch
        )
        keys = record.keys if moved or "keys" in details else None
        return TableChange(updates, tighten, details.get("partitioning"), keys, self.properties(), self.unset())

    def refuse_nulls(self, columns: Sequence[str]) -> None:
        if columns:
            problem = f"{', '.join(columns)} can't be required: there are rows without a value"
            remedy = "declare it as optional, or say in its `was` how values are made: {using: coalesce(...)}"
            raise self.refused(problem, remedy)

    def computed(self, target: FileTarget) -> tuple[Sequence[StoredFile], dict[str, str]]:
        """Return files with the result of the query, or with the list of declared objects, and the commit's summary."""
        summary = {MIGRATION_TAG: self.work_id}
        sql = self.step.details.get("sql")
        if sql is None:
            schema = pa.schema([field.remove_metadata() for field in target.rows])
            listed = pa.Table.from_pylist(_listed_objects(self.work), schema=schema)
            return [file for file, _ in target.write(listed)], summary
        objects = {obj.key: obj for obj in self.work.objects.values()}
        # Before the query runs: commits to its inputs in the meantime count as unread, so the next refresh reads them.
        summary |= inputs_summary(self.record, objects, self.work.catalog)
        return self.engine.compute(query=str(sql), table=self.name, target=target), summary


class CreateTable(TableStep):
    """The creation of a table with its marks and rows in one commit, so that no reader sees a table without them."""

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
            target = new.target(model.files_family(record.uuid, f"create {self.work_id}"))
            files, summary = self.computed(target)
            self.refuse_nulls(
                nulls_in_files(files, target, [column.name for column in record.columns if column.required])
            )
        # Right before the commit: the rows may take longer than a lease lasts, and a table that does not exist can't
        # be fenced.
        work.lease.ensure()
        new.commit(files, summary)
        created = self.table()
        try:
            work.lease.ensure()
        except LeaseLostError:
            # The deploy that took over could not fence a table that did not exist. Delete it, if nobody changed it.
            present = work.table(self.name)
            ours = present is not None and present.properties.get(TOKEN) == str(work.lease.token)
            if present is not None and ours and present.is_as(created):
                purge_table(work.catalog, self.name)
            raise


class AlterTable(TableStep):
    """The change of columns, partitioning, keys and properties in one commit, without a snapshot."""

    def do(self) -> None:
        table, change = self.table(), self.change()
        if change.tighten:
            origins = table.origins(change)
            required = (str(column["column"]).casefold() for column in change.tighten)
            self.refuse_nulls(table.with_nulls(origins[name] for name in required if name in origins))
        table.alter(change)


class ReplaceRows(TableStep):
    """The replacement of all rows by other rows, or by none, in one commit.

    It is refused if a required column would have a NULL. Sinks skip the snapshot by its tag.
    """

    def do(self) -> None:
        table, change = self.table(), self.change()
        target = table.coming(change, model.rewrite_family(self.record.uuid, table.properties, self.work.lease.token))
        files: Sequence[StoredFile] = ()
        summary = {MIGRATION_TAG: self.work_id}
        if self.step.how is StepAction.RECOMPUTE:
            files, summary = self.computed(target)
        elif self.step.how is StepAction.REWRITE and table.snapshot_id is not None:
            sql, snapshot = self.query(table), table.snapshot_id
            files = self.engine.compute(query=sql, table=self.name, target=target, snapshot=snapshot)
            before, after = table.rows(), sum(file.rows for file in files)
            if after != before:
                raise self.refused(f"{before} rows became {after}; nothing was changed", "")
        self.refuse_nulls(nulls_in_files(files, target, [str(column["column"]) for column in change.tighten]))
        self.work.lease.ensure()
        # A materialized view gets a snapshot even without rows, so that the commit of a concurrent refresh fails.
        table.replace_rows(change, files, target, summary, always=self.step.kind is Kind.MATERIALIZED_VIEW)
        target.collect(files)

    def check_fields(self, outputs: Outputs) -> None:
        """Refuse structs with other fields than the declared ones: Spark's cast by position would mix them up.

        :param outputs: columns of :meth:`query` without casts
        :raises StepError: a struct has other fields, or the same ones in another order
        """
        declared = {column.name.casefold(): column for column in self.record.columns}
        for name, kind in outputs:
            column = declared.get(name.casefold())
            after = kind if column is None else parse_type(column.type)
            if kind.name == after.name and not has_same_fields(kind, after):
                problem = f"the `using` of {name} gives {kind}, and {after} is declared"
                raise self.refused(problem, "give the fields under these names in this order, with named_struct")

    def query(self, table: MigratedTable, *, casts: bool = True) -> str:
        """Return the SELECT of the new rows: each column by its expression, from its old column, or as NULL.

        :param casts: cast the columns to the declared types
        """
        expressions = {name.casefold(): text for name, text in self.step.details.get("expressions", {}).items()}
        origins = table.origins(self.change())
        types = {column.name: parse_type(column.type) for column in table.entry.columns}
        parts = []
        for column in self.record.columns:
            origin = origins.pop(column.name.casefold(), None)
            text = expressions.get(column.name.casefold())
            if text is None and origin is not None:
                text = cast(quoted(origin), types[origin], parse_type(column.type)) or quoted(origin)
            text = f"CAST(({text or 'NULL'}) AS {column.type})" if casts or text is None else f"({text})"
            parts.append(f"{text} AS {quoted(column.name)}")
        # A column that users added, and that is not declared, keeps its values.
        parts += map(quoted, origins.values())
        # If a struct has the table's name, Spark would take its field for a column of the table. The alias prevents it.
        return f"SELECT {', '.join(parts)} FROM {'.'.join(map(quoted, self.name.split('.')))} AS rfr_rows"


class RenameTable(TableStep):
    """The rename of a table. The mark is committed before, because a rename is not a commit that could carry it."""

    def probe(self) -> bool:
        table = self.work.table(self.step.details["to"])
        if table is not None and self.is_marked(table.properties):
            return True
        self.is_done(self.table().properties)
        return False

    def do(self) -> None:
        table = self.table()
        if not self.is_marked(table.properties):
            table.alter(TableChange(properties=self.marks()))
            # Most catalogs rename by name alone, so a late rename of a fenced deploy is not refused like a commit.
            self.work.lease.ensure()
            table = self.table()
        table.rename(self.step.details["to"])

    def settle(self, connection: Connection, now: int) -> None:
        """Remove the old name from the queue of tables to delete: it may be that of a retired table."""
        deploys.dequeue(connection, self.work.plan.project, self.name)


class RetireTable(TableStep):
    """The retirement of a table: it gets another name, keeps its properties, and is deleted later."""

    def probe(self) -> bool:
        retired = self.work.table(retired_name(self.name, self.work.deploy_id))
        if retired is not None and self.is_ours(retired.properties):
            return True
        table = self.work.table(self.name)
        return table is None or self.is_done(table.properties)

    def do(self) -> None:
        self.table().rename(retired_name(self.name, self.work.deploy_id))


def _listed_objects(work: DeployWork) -> list[dict[str, Any]]:
    """Return a row for each object that the registry will hold after the deploy, in the order of their names."""
    stepped = {step.uuid for step in work.plan.steps}
    return [
        {
            **model.encode(obj),
            "id": str(obj.uuid),
            "keep": str(obj.keep).lower() if isinstance(obj.keep, bool) else obj.keep,
            "project": work.plan.project,
            "reads": [dep.name for dep in obj.deps],
            "query": obj.raw_sql,
            "executed_query": obj.sql,
            "version": work.spec.version,
            "deploy_id": work.deploy_id if obj.uuid in stepped else obj.deploy_id,
        }
        for obj in sorted(work.objects.values(), key=lambda obj: obj.key)
    ]


class ViewStep(Mechanism):
    def probe(self) -> bool | None:
        if self.step.user:
            return None
        view = find_view(self.work.catalog, self.name)
        return view is not None and self.is_done(view.properties)

    def view(self) -> ViewEntry | None:
        """Return the view in its present state; None if there is none, e.g. because its user has dropped it.

        :raises StepError: it is a user's view, and was edited since it was planned
        """
        view = find_view(self.work.catalog, self.name)
        if view is not None and self.step.user:
            # The text with its stars expanded is that of another step of this deploy.
            known = (self.work.own_texts.get(self.name.casefold(), ""), str(self.step.details.get("sql", "")))
            if own_text(view).split() not in [text.split() for text in known]:
                raise self.refused("its user has edited it during the deploy")
        return view


class DefineView(ViewStep):
    """The definition of a view; a user's view keeps its properties and comment, and gets no marks."""

    def do(self) -> None:
        text = str(self.step.details["sql"])
        if not self.step.user:
            # A view that is replaced keeps the properties that are not named, and its owner can't be removed at all.
            # Removed first, because the statement that defines the view also marks the step as done.
            gone = self.unset() if self.view() is not None else []
            if others := [name for name in gone if name != OWNER]:
                self.engine.set_view_properties(self.name, dict.fromkeys(others))
            properties = {**dict.fromkeys({OWNER}.intersection(gone), ""), **self.properties()}
            self.engine.create_view(self.name, text, properties, self.record.columns)
            return
        view = self.view()
        if view is None:
            return
        if MARKER in view.properties:
            raise self.refused("it is not a user's view any more")
        marks = view.properties.keys() & {BRIDGED, BROKEN}
        kept = {name: value for name, value in view.properties.items() if name not in marks}
        self.engine.create_view(self.name, text, kept)
        # Removed last, because a bridged view's own text is in one of them.
        if marks:
            self.engine.set_view_properties(self.name, dict.fromkeys(marks))


class DescribeView(DefineView):
    """The change of a view's properties and comment; if it declares columns, it is defined again for their comments."""

    def do(self) -> None:
        if self.record.columns and self.step.how is not StepAction.ADOPT:
            super().do()
        else:
            gone = dict.fromkeys((COMMENT, *self.unset()))
            self.engine.set_view_properties(self.name, {**gone, **self.properties()})


class BridgeView(ViewStep):
    """The bridge of a view: a temporary text that casts its outputs to their future types.

    That text is valid both before and after the change. A user's own text is kept in a property.
    """

    def do(self) -> None:
        view, outputs = self.view(), self.work.bridged.get(self.name)
        if view is not None and outputs is not None:
            text = str(self.step.details["sql"])
            marks = {BRIDGED: text} if self.step.user else self.marks()
            self.engine.create_view(self.name, bridge_text(text, outputs), {**view.properties, **marks})
        elif view is not None and not self.step.user:
            # Its present text is not valid over the changed inputs, so no text is valid both before and after.
            self.engine.set_view_properties(self.name, self.marks())


class MarkBrokenView(ViewStep):
    def do(self) -> None:
        if (view := self.view()) is not None:
            mark = model.broken_mark(view.query, self.step.details["broken"])
            self.engine.set_view_properties(self.name, {BROKEN: mark})


class RenameView(ViewStep):
    def probe(self) -> bool:
        view = find_view(self.work.catalog, self.step.details["to"])
        return view is not None and self.is_marked(view.properties)

    def do(self) -> None:
        to = self.step.details["to"]
        view = find_view(self.work.catalog, to)
        if view is None or not self.is_ours(view.properties):
            self.engine.rename_view(self.name, to)
        self.engine.set_view_properties(to, self.marks())


class DropView(ViewStep):
    def probe(self) -> bool:
        view = find_view(self.work.catalog, self.name)
        return view is None or self.is_done(view.properties)

    def do(self) -> None:
        self.engine.drop_view(self.name)


class SinkStep(Mechanism):
    """A sink's step. It writes the sink's row in the transaction that marks the step as done.

    A sink that is removed, or gets another source, also releases the snapshots that it holds.
    """

    def probe(self) -> None:
        return None

    def do(self) -> None:
        removes = self.step.how is StepAction.REMOVE
        for sink in self.work.recorded.sinks:
            leaves = removes or self.step.details.get("source", str(sink.source)) != str(sink.source)
            # This deploy may have renamed the former source already.
            places = (self.work.recorded.by_uuid.get(sink.source), self.work.objects.get(sink.source))
            # The hold is released before settle() deletes or changes the sink's row. In the other order, a crash would
            # leave a hold that nobody releases, and the snapshots would never expire.
            if leaves and sink.uuid == self.step.uuid:
                for name in {place.name for place in places if place is not None}:
                    hold_snapshots(self.work.catalog, name, sink.uuid)

    def settle(self, connection: Connection, now: int) -> None:
        identity, how, details = self.step.uuid, self.step.how, self.step.details
        assert identity is not None
        if how is StepAction.REMOVE:
            delete_sink(connection, identity)
        elif how in (StepAction.CREATE, StepAction.METADATA):
            spec = self.work.spec.by_id()[identity].sink
            assert spec is not None
            source, columns, renamed = UUID(details["source"]), details["columns"], details.get("renamed", {})
            register_sink(connection, identity, self.name, spec, source, columns, renamed, now)
        else:
            about = str(details.get("since", self.work.deploy_id))
            decide_sink(connection, identity, how.value, self.step.reason, now, about=about)


_TABLES: Final[dict[StepAction, type[Mechanism]]] = {
    StepAction.CREATE: CreateTable,
    **dict.fromkeys((StepAction.ADOPT, StepAction.METADATA, StepAction.EVOLVE), AlterTable),
    **dict.fromkeys((StepAction.REWRITE, StepAction.RECOMPUTE, StepAction.REPLACE_EMPTY), ReplaceRows),
    StepAction.RENAME: RenameTable,
    **dict.fromkeys((StepAction.DROP, StepAction.REMOVE), RetireTable),
}
_VIEWS: Final[dict[StepAction, type[Mechanism]]] = {
    **dict.fromkeys((StepAction.CREATE, StepAction.REPLACE, StepAction.REBIND), DefineView),
    **dict.fromkeys((StepAction.ADOPT, StepAction.METADATA), DescribeView),
    StepAction.BRIDGE: BridgeView,
    StepAction.MARK_BROKEN: MarkBrokenView,
    StepAction.RENAME: RenameView,
    **dict.fromkeys((StepAction.DROP, StepAction.REMOVE), DropView),
}


def mechanism_of(work: DeployWork, step: PlanStep) -> Mechanism:
    """Return the mechanism that executes the step."""
    if step.kind is Kind.SINK:
        return SinkStep(work, step)
    return (_VIEWS if step.kind is Kind.VIEW else _TABLES)[step.how](work, step)


def takes_sql(step: PlanStep) -> bool:
    """Tell whether the step runs SQL, for which it needs an engine."""
    computes = step.how in (StepAction.CREATE, StepAction.RECOMPUTE) and "sql" in step.details
    return computes or step.kind is Kind.VIEW or step.how is StepAction.REWRITE
