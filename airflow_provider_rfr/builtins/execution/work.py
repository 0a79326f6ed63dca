"""What every step of a deploy shares: the deploy itself, the SQL engine, the marks that it leaves, and its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from airflow_provider_rfr.builtins.planning.plan import Action, Plan, Step
from airflow_provider_rfr.builtins.spec import RETIRED, STORED, CatalogSpec, Column, Kind
from airflow_provider_rfr.builtins.state import (
    DEPLOY,
    DONE,
    EMPTIED,
    MARKER,
    PROJECT,
    STAMP,
    STEP,
    RecordedObject,
    RegistryState,
    done_mark,
)
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.inventory import ViewEntry
from airflow_provider_rfr.lake.migrated_table import MigratedTable
from airflow_provider_rfr.lake.schema_changes import TableChange
from airflow_provider_rfr.lake.types import quoted
from airflow_provider_rfr.store.leases import Lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile


Outputs = tuple[tuple[str, str], ...]
"""Names and types of a query's columns, the types in Spark's words."""


@dataclass(frozen=True, slots=True)
class AnalysedQuery:
    """A query that is analysed and not run.

    :ivar name: of the object that it is for; names without a namespace are looked for in its namespace
    :ivar columns: names that are declared: of a view by position, of a table in any order; empty: those of the query
    :ivar is_view: queries that come later read this one under its name
    :ivar optional: that it can't be run is a result, and no error
    """

    name: str
    sql: str
    columns: tuple[str, ...] = ()
    is_view: bool = False
    optional: bool = False


class SqlEngine(Protocol):
    """SQL on the lake's own catalog. Names are ``namespace.name`` without the catalog.

    In a view's text and in a query, a name without a namespace is looked for in the namespace of the view or table
    that it is for. Every method may be called again after a crash with the same arguments, and leaves the same.
    """

    def create_view(
        self,
        name: str,
        sql: str,
        *,
        properties: Mapping[str, str],
        comment: str | None,
        columns: Sequence[Column],
        replace: bool,
    ) -> None:
        """Make the view with its properties and comment in one statement; with ``replace``, also over another text.

        :param columns: as declared, for their names and comments; empty where the query's own names are taken
        """

    def analyse(
        self, tables: Mapping[str, Sequence[Column]], queries: Sequence[AnalysedQuery]
    ) -> Sequence[Outputs | None]:
        """The outputs of each query over empty tables with these columns; nothing is read or changed.

        Other names that a query reads are those of the catalog.

        :returns: None for an optional query that can't be run
        :raises RfrError: a query can't be run, or does not give the columns that are declared
        """

    def drop_view(self, name: str) -> None:
        """Drop the view, if it exists."""

    def rename_view(self, old: str, new: str) -> None:
        """Rename the view; text, properties and comment stay."""

    def set_view_properties(self, name: str, properties: Mapping[str, str | None], comment: str | None) -> None:
        """Set properties, and take away those that are None; the comment is put in the place of the old one."""

    def compute(
        self,
        *,
        query: str,
        table: str,
        target: FileTarget,
        read: Mapping[str, int] = MappingProxyType({}),
        row_wise: str | None = None,
    ) -> tuple[StoredFile, ...]:
        """Run the query, and write its rows as data files of the target's layout, by column name; commit nothing.

        :param table: whose rows they become
        :param target: the coming columns with their field ids, the partitioning, and the folder; names of files begin
            with ``target.family``, which is the same for the same piece of work after a crash. Files that it finished
            are taken again where ``row_wise`` says that a row of the result comes from one row of an input; otherwise
            it starts again
        :param read: snapshots to read tables at, by name as it is compared; other tables are read as they are
        :param row_wise: the table, one of ``read``, of which each row gives one row. It may be read at a later
            snapshot the next time, with the same family; only data files that came since are computed then
        """


TOKEN: Final = "rfr.token"
"""Property: token of the lease under which it was changed last."""


@dataclass(frozen=True)
class Work:
    """A deploy at work.

    :ivar recorded: as it was before
    :ivar views: lists the catalog's views; returns None if the catalog can't hold any
    :ivar bridged: outputs that a view under a change is going to have, by its name as it is compared
    """

    deploy_id: str
    plan: Plan
    spec: CatalogSpec
    recorded: RegistryState
    catalog: Catalog
    lease: Lease
    sql: SqlEngine | None
    views: Callable[[], Sequence[ViewEntry] | None]
    bridged: dict[str, Outputs] = field(default_factory=dict)

    @cached_property
    def records(self) -> dict[UUID, RecordedObject]:
        """What the registry is going to hold, by id."""
        return {each.uuid: each for each in self.plan.records}

    def record(self, step: Step) -> RecordedObject:
        """What the step's object is going to be.

        :raises StepError: the plan does not say
        """
        found = self.records.get(step.uuid) if step.uuid is not None else None
        if found is None:
            raise StepError(step.name, step.how.value, "the plan does not say what it becomes", "plan again")
        return found

    def engine(self, step: Step) -> SqlEngine:
        """What runs SQL.

        :raises StepError: there is nothing that does
        """
        if self.sql is None:
            raise StepError(step.name, step.how.value, "it takes SQL on Spark", "run the deploy with an engine")
        return self.sql

    def work_id(self, step: Step) -> str:
        """The step's, in the properties and snapshots that it writes."""
        return f"{self.deploy_id}/{step.seq}"

    def retired_name(self, name: str) -> str:
        """The name that this deploy gives to a table which it retires."""
        return f"{name}{RETIRED}{self.deploy_id[:8]}"

    def marks(self, step: Step) -> dict[str, str]:
        """The properties that name the deploy and the step which changed the object last."""
        return {DEPLOY: self.deploy_id, STEP: self.work_id(step), TOKEN: str(self.lease.token)}

    def properties(self, step: Step) -> dict[str, str]:
        """All properties that the object's table or view is to have."""
        record = self.record(step)
        said = {"comment": record.comment, "owner": record.owner}
        if step.how in (Action.CREATE, Action.REPLACE_EMPTY) and step.kind in STORED:
            said[EMPTIED] = f"{self.plan.base_revision}/{self.deploy_id}"
        inputs = []
        for each in record.deps:
            read = self.records.get(each.uuid) or self.recorded.by_uuid.get(each.uuid) if each.uuid else None
            if read is not None:
                held = self.view(read.name) if read.kind is Kind.VIEW else self.table(read.name)
                inputs.append((read.uuid, held.properties.get(STEP, "") if held is not None else ""))
        return {
            **{name: value for name, value in said.items() if value is not None},
            **record.properties,
            MARKER: str(record.uuid),
            PROJECT: self.plan.project,
            STAMP: record.contract,
            **self.marks(step),
            DONE: done_mark(self.plan.base_revision, record, inputs),
        }

    def new_names(self, step: Step) -> list[str]:
        """Names that this rename and later ones give the object: some objects go by a name in between."""
        later = (each for each in self.plan.steps if each.uuid == step.uuid and each.seq >= step.seq)
        return [str(each.details["to"]) for each in later if each.how is Action.RENAME]

    def unset(self, step: Step) -> list[str]:
        """Properties that an earlier deploy wrote and that are no longer declared."""
        record, before = self.record(step), self.recorded.by_uuid.get(self.record(step).uuid)
        gone = [str(each) for each in step.details.get("unset", ()) if each not in record.properties]
        for name in ("comment", "owner"):
            was = getattr(before, name, None)
            if was is not None and getattr(record, name) is None and name not in record.properties:
                gone.append(name)
        return gone

    def table(self, name: str) -> MigratedTable | None:
        """A table as it is now.

        :raises LeaseLostError: another deploy took over, and has marked it
        """
        found = MigratedTable.load(self.catalog, name)
        if found is not None and token_of(found.properties) > self.lease.token:
            self.lease.ensure()
        return found

    def view(self, name: str) -> ViewEntry | None:
        """A view as it is now; None also where views are not held."""
        key = name.casefold()
        return next((each for each in self.views() or () if each.name.casefold() == key), None)

    def is_marked(self, properties: Mapping[str, str], step: Step) -> bool:
        """Whether this step, or a later one of this deploy, has done the last change of this object."""
        deploy, _, seq = properties.get(STEP, "").partition("/")
        ours = properties.get(MARKER) == str(step.uuid) and deploy == self.deploy_id
        return ours and seq.isdigit() and int(seq) >= step.seq


def token_of(properties: Mapping[str, str]) -> int:
    """Of the lease under which something was changed last; 0 if none is known."""
    text = properties.get(TOKEN, "")
    return int(text) if text.isdigit() else 0


def change_of(work: Work, step: Step) -> TableChange:
    """What becomes of the table besides its rows; with the marks, which are a part of the same commit."""
    details, record = step.details, work.record(step)
    updates = tuple(tuple(batch) for batch in details.get("updates", ()))
    tighten = tuple(details.get("tighten", ()))
    # After these, the keys have to be set again, if a key column is concerned.
    moved = bool(tighten) or any(each["op"] in ("drop", "relax", "rename") for batch in updates for each in batch)
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
    """The table's rows with its coming columns: by an expression, by the column they came from, or NULL."""
    expressions = {name.casefold(): text for name, text in details.get("expressions", {}).items()}
    updates = details.get("updates", ())
    sources = {name.casefold(): name for name in live}
    for batch in updates:
        before, gone = dict(sources), {each["column"].casefold() for each in batch if each["op"] in ("drop", "rename")}
        sources = {name: source for name, source in sources.items() if name not in gone}
        for each in batch:
            if each["op"] == "rename":
                sources[each["to"].casefold()] = before[each["column"].casefold()]
    parts = []
    for column in columns:
        source = sources.get(column.name.casefold())
        text = expressions.get(column.name.casefold()) or ("NULL" if source is None else quoted(source))
        parts.append(f"CAST(({text}) AS {column.type}) AS {quoted(column.name)}")
    return f"SELECT {', '.join(parts)} FROM {'.'.join(map(quoted, table.split('.')))}"


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """A step that is done.

    :ivar how: the verb
    :ivar found: it was done already, by a run before this one
    :ivar evidence: what was left, e.g. ``rows`` and ``snapshot_after``
    """

    seq: int
    uuid: UUID | None
    name: str
    how: str
    found: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Applied:
    """A deploy that is finished.

    :ivar state: ``done``, or ``nothing`` where there was nothing to do
    :ivar revision: of the registry afterwards
    """

    deploy_id: str
    plan_hash: str
    state: str
    steps: tuple[AppliedStep, ...] = ()
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection of garbage did.

    :ivar deleted: names of deleted tables
    :ivar kept: names of what has to wait, with why
    :ivar failed: names of what could not be deleted, with why; they are tried again
    """

    deleted: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
