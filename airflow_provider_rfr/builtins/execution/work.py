"""What every step of a deploy needs to know, and the marks that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.execution.sql_engine import SqlEngine
from airflow_provider_rfr.builtins.planning.plans import Plan, Step, Verb
from airflow_provider_rfr.builtins.spec import STORED, CatalogSpec, Kind
from airflow_provider_rfr.builtins.state import (
    ASIDE,
    DEPLOY,
    DONE,
    EMPTIED,
    MARKER,
    PROJECT,
    STAMP,
    STEP,
    Recorded,
    RecordedObject,
    done_mark,
)
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.migrations import MigratedTable
from airflow_provider_rfr.lake.views import ViewEntry
from airflow_provider_rfr.store.lease import Lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TOKEN: Final = "rfr.token"
"""Property: token of the lease under which it was changed last."""
_NEW_ROWS: Final = frozenset({Verb.CREATE, Verb.REPLACE_EMPTY})


class Probe(Enum):
    """What is found of a step outside the journal."""

    NOT_DONE = "not done"
    PARTIAL = "partial"
    DONE = "done"


@dataclass(frozen=True)
class Work:
    """A deploy at work.

    :ivar recorded: as it was before
    :ivar views: lists the catalog's views anew; None: it holds none
    """

    deploy_id: str
    plan: Plan
    spec: CatalogSpec
    recorded: Recorded
    catalog: Catalog
    lease: Lease
    sql: SqlEngine | None
    views: Callable[[], Sequence[ViewEntry] | None]

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

    def aside(self, name: str) -> str:
        """The name under which this deploy puts aside what is called ``name``."""
        return f"{name}{ASIDE}{self.deploy_id[:8]}"

    def marks(self, step: Step) -> dict[str, str]:
        """Says which step touched it last; the object's columns may be what they were."""
        return {DEPLOY: self.deploy_id, STEP: self.work_id(step), TOKEN: str(self.lease.token)}

    def properties(self, step: Step) -> dict[str, str]:
        """Everything that the object's table or view says of itself."""
        record = self.record(step)
        said = {"comment": record.comment, "owner": record.owner}
        if step.how in _NEW_ROWS and step.kind in STORED:
            said[EMPTIED] = f"{self.plan.base_revision}/{self.deploy_id}"
        return {
            **{name: value for name, value in said.items() if value is not None},
            **record.properties,
            **self.identity(record),
            **self.marks(step),
            DONE: done_mark(self.plan.base_revision, record.fingerprints, record.sql, self._inputs(record)),
        }

    def _inputs(self, record: RecordedObject) -> Iterator[tuple[UUID, str]]:
        """What it reads, with the step that changed each last."""
        for each in record.deps:
            read = self.records.get(each.uuid) or self.recorded.by_uuid.get(each.uuid) if each.uuid else None
            if read is not None:
                held = self.view(read.name) if read.kind is Kind.VIEW else self.table(read.name)
                yield read.uuid, held.properties.get(STEP, "") if held is not None else ""

    def identity(self, record: RecordedObject) -> dict[str, str]:
        """Whose it is, and which columns it has."""
        stamp = record.fingerprints.contract.digest
        return {MARKER: str(record.uuid), PROJECT: self.plan.project, STAMP: stamp}

    def unset(self, step: Step) -> list[str]:
        """Properties that we wrote and that nobody wants any more."""
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


@dataclass(frozen=True)
class Done:
    """What a step leaves for the journal.

    :ivar evidence: figures, as JSON
    :ivar settle: what is to be written in the transaction in which the step is marked as done
    """

    evidence: Mapping[str, Any] = field(default_factory=dict)
    settle: Callable[[Connection, int], None] | None = None
