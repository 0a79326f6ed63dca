"""What every step of a deploy shares: the deploy itself, and how a step is probed, done and shown to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.builtins import state
from airflow_provider_rfr.builtins.execution.engine import Outputs, SqlEngine
from airflow_provider_rfr.builtins.planning.plan import Action, Plan, Step
from airflow_provider_rfr.builtins.spec import RETIRED, STORED, CatalogSpec, Kind
from airflow_provider_rfr.builtins.state import DEPLOY, MARKER, STEP, RecordedObject, RegistryState
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.inventory import COMMENT, ViewEntry, find_view
from airflow_provider_rfr.lake.migrated_table import MigratedTable
from airflow_provider_rfr.store.leases import Lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TOKEN: Final = "rfr.token"
"""Property: token of the lease under which it was changed last."""


def token_of(properties: Mapping[str, str]) -> int:
    """Of the lease under which something was changed last; 0 if none is known."""
    text = properties.get(TOKEN, "")
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Work:
    """A deploy at work; ``bridged``: outputs that views under a change are going to have, by names as compared."""

    deploy_id: str
    plan: Plan
    spec: CatalogSpec
    recorded: RegistryState
    catalog: Catalog
    lease: Lease
    sql: SqlEngine | None
    bridged: dict[str, Outputs] = field(default_factory=dict)

    @cached_property
    def objects(self) -> dict[UUID | None, RecordedObject]:
        """What the registry is going to hold, by id."""
        kept = (each for each in self.recorded.objects if each.uuid not in self.plan.forgotten)
        return {each.uuid: each for each in (*kept, *self.plan.records)}

    def retired_name(self, name: str) -> str:
        """The name that this deploy gives to a table which it retires."""
        return f"{name}{RETIRED}{self.deploy_id[:8]}"

    def table(self, name: str) -> MigratedTable | None:
        """A table as it is now; refused if another deploy took over, and has marked it."""
        found = MigratedTable.load(self.catalog, name)
        if found is not None and token_of(found.properties) > self.lease.token:
            self.lease.ensure()
        return found

    def view(self, name: str) -> ViewEntry | None:
        return find_view(self.catalog, name)


class Mechanism:
    """How a step is done, and how the catalog shows that it is. The journal is never asked."""

    def __init__(self, work: Work, step: Step) -> None:
        self.work = work
        self.step = step
        self.name = step.name

    def probe(self) -> bool | None:
        """Whether it is done; None: the catalog can't show it, and it is done again."""
        raise NotImplementedError

    def do(self) -> None:
        """Do it; may be called again after it was called, in part or whole."""
        raise NotImplementedError

    def evidence(self) -> dict[str, Any]:
        """Figures of the finished step for the journal, as JSON."""
        return {}

    def settle(self, connection: Connection, now: int) -> None:
        """Write to the store in the transaction in which the step is marked as done."""

    @property
    def record(self) -> RecordedObject:
        """What the step's object is going to be."""
        return self.work.objects[self.step.uuid]

    @property
    def engine(self) -> SqlEngine:
        assert self.work.sql is not None, "looked for before the first step"
        return self.work.sql

    @property
    def work_id(self) -> str:
        """The step's, in the properties and snapshots that it writes."""
        return f"{self.work.deploy_id}/{self.step.seq}"

    def refused(self, problem: str, remedy: str = "plan again") -> StepError:
        return StepError(self.name, self.step.how.value, problem, remedy)

    def is_done(self, properties: Mapping[str, str]) -> bool:
        """Whether what has these properties carries the step's mark; refused if it is not the object."""
        if not self.is_ours(properties) and (MARKER in properties or self.step.how is not Action.ADOPT):
            raise self.refused("what has the name does not carry our marker: no deploy made it")
        return self.is_marked(properties)

    def is_ours(self, properties: Mapping[str, str]) -> bool:
        return properties.get(MARKER) == str(self.step.uuid)

    def is_marked(self, properties: Mapping[str, str]) -> bool:
        return self.is_ours(properties) and properties.get(STEP) == self.work_id

    def marks(self) -> dict[str, str]:
        """The properties that name the deploy and the step which changed the object last."""
        return {DEPLOY: self.work.deploy_id, STEP: self.work_id, TOKEN: str(self.work.lease.token)}

    def properties(self) -> dict[str, str]:
        """All properties that the object's table or view is to have."""
        record, base = self.record, self.work.plan.base_revision
        found = {
            **_declared(record),
            MARKER: str(record.uuid),
            state.PROJECT: self.work.plan.project,
            state.STAMP: record.contract,
            **self.marks(),
            state.DONE: state.done_mark(base, record, self._inputs()),
        }
        if self.step.kind in STORED:
            found[state.WAS] = state.was_mark(base, record.columns)
            if self.step.how in (Action.CREATE, Action.REPLACE_EMPTY):
                found[state.EMPTIED] = f"{base}/{self.work.deploy_id}"
        return found

    def unset(self) -> list[str]:
        """Properties that an earlier deploy wrote and that are no longer declared."""
        before = self.work.recorded.by_uuid.get(self.record.uuid)
        return [] if before is None else sorted(_declared(before).keys() - _declared(self.record).keys())

    def _inputs(self) -> list[tuple[UUID, str]]:
        """Ids of what the object reads, with the last step of each."""
        found = []
        for each in self.record.deps:
            if (read := self.work.objects.get(each.uuid)) is not None:
                held = self.work.view(read.name) if read.kind is Kind.VIEW else self.work.table(read.name)
                found.append((read.uuid, held.properties.get(STEP, "") if held is not None else ""))
        return found


def _declared(record: RecordedObject) -> dict[str, str]:
    """Properties of a table or view that its declaration gives."""
    said = {COMMENT: record.comment, "owner": record.owner, **record.properties}
    return {name: value for name, value in said.items() if value is not None}
