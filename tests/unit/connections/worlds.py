"""A world of connections that a test holds in its hands: real control store, connections in a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_rfr.connections.alteration import Outcome, execute
from airflow_provider_rfr.connections.dependents import Services, closure, references_of
from airflow_provider_rfr.connections.statement import SecretReference, Value, parse_statement
from airflow_provider_rfr.connections.types import ContentHash, Definition
from airflow_provider_rfr.exceptions import ConfigurationError, ConnectionConflictError, ConnectionValidationError
from airflow_provider_rfr.store.connections import (
    AlterationRecord,
    TaskRef,
    Use,
    UsedConnection,
    end_use,
    list_alterations,
    load_use,
    note_copies,
    register_use,
)
from airflow_provider_rfr.store.engine import ControlStore, SystemClock, open_store
from airflow_provider_rfr.store.tables import LEASES

CANARY = "canary-19c7e4"


@dataclass
class Shelf:
    """Connections, and what may be done with them."""

    connections: dict[str, Definition] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    forbidden_secrets: set[str] = field(default_factory=set)
    secrets: dict[str, str] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    upstreams: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    secrets_read: list[str] = field(default_factory=list)
    tried: list[str | None] = field(default_factory=list)
    before_commit: Callable[[], None] = lambda: None

    def read(self, name: str) -> Definition | None:
        return self.connections.get(name)

    def read_secret(self, reference: SecretReference) -> str:
        self.secrets_read.append(str(reference))
        if str(reference) not in self.secrets:
            raise ConfigurationError(str(reference), "is not there")
        return self.secrets[str(reference)]

    def find(self, name: str) -> Definition | None:
        return self.connections.get(name)

    def referring(self, name: str) -> Sequence[str]:
        return [
            connection.name for connection in self.connections.values() if name in references_of(connection).values()
        ]

    def commit(self, expected: str, hashes: ContentHash, candidate: Definition) -> None:
        self.before_commit()
        if hashes.of(self.connections.get(candidate.name)) != expected:
            raise ConnectionConflictError(candidate.name, "was changed meanwhile")
        self.connections[candidate.name] = candidate

    def commit_tested(self, expected: str, hashes: ContentHash, candidate: Definition) -> bool:
        return False

    def rename(self, expected: str, hashes: ContentHash, definition: Definition, new_name: str) -> None:
        self.connections[new_name] = self.connections.pop(definition.name)

    def drop(self, expected: str, hashes: ContentHash, definition: Definition) -> None:
        self.before_commit()
        if hashes.of(self.connections.get(definition.name)) != expected:
            raise ConnectionConflictError(definition.name, "was changed meanwhile")
        del self.connections[definition.name]

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        return [name for name in names if name in self.forbidden]

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        return [secret for secret in secrets if str(secret) in self.forbidden_secrets]

    def test(self, candidate: Definition) -> bool:
        self.tried.append(candidate.host)
        if candidate.host in self.dead:
            raise ConnectionValidationError(candidate.name, f"nothing answers at {candidate.host}")
        return candidate.conn_type != "kafka"

    def identify(self, definition: Definition) -> str | None:
        if definition.host in self.dead:
            raise ConnectionValidationError(definition.name, f"nothing answers at {definition.host}")
        return self.upstreams.get(definition.host or "")

    def check_use(self, candidate: Definition, use: Use) -> None:
        if candidate.password in use.details.get("refuses", ()):
            raise ConnectionValidationError(candidate.name, "401")

    def state(self, task: TaskRef) -> str | None:
        return self.states.get(task.consumer)

    def start(self, task: TaskRef) -> None:
        self.started.append(str(task.dag_id))


class _Ahead(SystemClock):
    """A clock that is so many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return super().now() + self._seconds


class Bench:
    """A world with its control store, and tasks that run in it."""

    def __init__(self, folder: Path, *connections: Definition) -> None:
        self.shelf = Shelf({connection.name: connection for connection in connections})
        self.store: ControlStore = open_store(f"sqlite:///{folder}/control.db")
        self.hashes = ContentHash(b"key", "salt")
        self.said: list[str] = []
        self.on_sleep: Callable[[], None] = lambda: None
        shelf = self.shelf
        self.world = Services(
            self.store,
            self.hashes,
            gateway=shelf,
            tasks=shelf,
            read_secret=shelf.read_secret,
            test=shelf.test,
            # Looked up at each call, so that a test may put something in its place.
            identify=lambda definition: shelf.identify(definition),
            check_use=shelf.check_use,
            report=self.said.append,
            sleep=lambda seconds: self.on_sleep(),
        )

    def alter(self, text: str, parameters: Mapping[str, Value] | None = None) -> Outcome:
        return execute(self.world, parse_statement(text), actor="tester", parameters=parameters)

    def later(self, seconds: float) -> None:
        """For the control store, so many seconds have passed from here on."""
        self.store.clock = _Ahead(seconds)

    def lose_leases(self) -> None:
        """The time of all leases is over, as after a while for those of processes that died."""
        self.store.run(lambda connection: connection.execute(LEASES.update().values(until=1)))

    def run(self, dag: str, *names: str, kind: str = "refresh", **details: Any) -> Use:
        """A task starts, and registers what it uses."""
        task = TaskRef(dag, "run", "refresh")
        self.shelf.states[task.consumer] = "running"
        token = self.store.run(
            lambda connection: register_use(connection, self.store.now(connection), task, kind, names, details)
        )
        copies = [
            UsedConnection(reached.name, " > ".join(reached.path), self.hashes.of(reached.definition))
            for reached in closure(names, self.shelf.find).values()
        ]
        self.store.run(lambda connection: note_copies(connection, task, token, copies))
        return self.use(dag)

    def end(self, dag: str, state: str, airflow: str, error_kind: str | None = None) -> None:
        task = TaskRef(dag, "run", "refresh")
        self.shelf.states[task.consumer] = airflow
        self.store.run(
            lambda connection: end_use(
                connection, self.store.now(connection), task, None, state, "it failed", error_kind
            )
        )

    def use(self, dag: str) -> Use:
        with self.store.read() as connection:
            found = load_use(connection, TaskRef(dag, "run", "refresh"))
        assert found is not None
        return found

    def obey(self, *dags: str) -> None:
        """From now on these tasks see what is wanted of them, as the operator does: they stop and start anew."""

        def look() -> None:
            for dag in dags:
                use = self.use(dag)
                if use.is_stale:
                    self.run(dag, *{connection.via.split(" > ")[0] for connection in use.connections}, **use.details)

        self.on_sleep = look

    def audit(self) -> list[AlterationRecord]:
        with self.store.read() as connection:
            return list_alterations(connection)


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {dependent.use.task.dag_id: dependent.verdict.value for dependent in outcome.dependents}


def ends(outcome: Outcome) -> dict[str, str]:
    outcomes = outcome.outcomes or {}
    return {dependent.use.task.dag_id: outcomes[dependent.use.task.consumer] for dependent in outcome.dependents}
