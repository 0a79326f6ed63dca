"""A world of connections that a test holds in its hands: real control store, connections in a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.connections.alteration import Outcome, execute
from airflow_provider_rfr.connections.dependents import Services, closure, references_of
from airflow_provider_rfr.connections.statement import SecretReference, Value, parse_statement
from airflow_provider_rfr.connections.types import ContentHash, Definition
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    ConfigurationError,
    ConnectionConflictError,
    ConnectionValidationError,
)
from airflow_provider_rfr.store.connections import (
    AlterationRecord,
    ConnectionNotes,
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
HASHES = ContentHash(b"key", "salt")


class Killed(BaseException):
    """The process is gone."""


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
    tried: list[Definition] = field(default_factory=list)
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

    def commit(self, expected: str, candidate: Definition) -> None:
        self.before_commit()
        if HASHES.of(self.connections.get(candidate.name)) != expected:
            raise ConnectionConflictError(candidate.name, "was changed meanwhile")
        self.connections[candidate.name] = candidate

    def commit_tested(self, expected: str, candidate: Definition) -> bool:
        return False

    def rename(self, expected: str, definition: Definition, new_name: str) -> None:
        self.connections[new_name] = self.connections.pop(definition.name)

    def drop(self, expected: str, definition: Definition) -> None:
        self.before_commit()
        del self.connections[definition.name]

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        return [name for name in names if name in self.forbidden]

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        return [secret for secret in secrets if str(secret) in self.forbidden_secrets]

    def test(self, candidate: Definition) -> bool:
        self.tried.append(candidate)
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

    def task_state(self, task: TaskRef) -> str | None:
        return self.states.get(task.consumer)

    def start_task(self, task: TaskRef) -> None:
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
        self.folder = folder
        self.store: ControlStore = open_store(f"sqlite:///{folder}/control.db")
        self.said: list[str] = []
        self.on_sleep: Callable[[], None] = lambda: None
        shelf = self.shelf
        self.world = Services(
            self.store,
            HASHES,
            gateway=shelf,
            may_not_use=shelf.may_not_use,
            read_secret=shelf.read_secret,
            test=shelf.test,
            # Looked up at each call, so that a test may put something in its place.
            identify=lambda definition: shelf.identify(definition),
            check_use=shelf.check_use,
            report=self.said.append,
            sleep=lambda seconds: self.on_sleep(),
        )

    def alter(self, text: str, parameters: Mapping[str, Value] | None = None, *, dry_run: bool = False) -> Outcome:
        statement = parse_statement(text)
        if dry_run:
            statement = replace(statement, settings=replace(statement.settings, dry_run=True))
        return execute(self.world, statement, actor="tester", parameters=parameters)

    def refused(self, text: str) -> list[str]:
        """Problems of a statement that is refused, and changes nothing."""
        before = dict(self.shelf.connections)
        with pytest.raises(AlterationRefusedError) as caught:
            self.alter(text)
        assert self.shelf.connections == before
        assert CANARY not in str(caught.value)
        return [str(problem) for problem in caught.value.problems]

    def conflicting(self, text: str, match: str) -> list[str]:
        """While the next change is stored, somebody tries this statement and gets a conflict; returns connections."""
        tried: list[str] = []

        def meanwhile() -> None:
            self.shelf.before_commit = lambda: None
            with pytest.raises(ConnectionConflictError, match=match) as caught:
                self.alter(text)
            tried.append(caught.value.connection)

        self.shelf.before_commit = meanwhile
        return tried

    @contextmanager
    def killed(self, when: str, step: str) -> Iterator[None]:
        """The process is killed in the context, right ``before`` or ``after`` this step."""
        work = getattr(self.shelf, step)

        def dying(*arguments: object) -> None:
            if when == "after":
                work(*arguments)
            raise Killed

        setattr(self.shelf, step, dying)
        with pytest.raises(Killed):
            yield
        setattr(self.shelf, step, work)

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
            UsedConnection(reached.name, " > ".join(reached.path), HASHES.of(reached.definition))
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

    def references(self, name: str) -> dict[str, str]:
        """Where the secrets of a connection are kept."""
        with self.store.read() as connection:
            return ConnectionNotes(connection, name).secret_references()

    def stored_bytes(self) -> bytes:
        return b"".join(file.read_bytes() for file in sorted(self.folder.glob("control.db*")))

    def audit(self) -> list[AlterationRecord]:
        with self.store.read() as connection:
            return list_alterations(connection)


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {dependent.use.task.dag_id: dependent.verdict.value for dependent in outcome.dependents}


def ends(outcome: Outcome) -> dict[str, str]:
    return {dependent.use.task.dag_id: dependent.outcome for dependent in outcome.dependents}
