"""The tasks that use a connection: found by references, judged by the change, and restarted after it.

The control store records the hash of the copy that each task should have. A task with another copy stops its driver at
the next checkpoint, reads its connections again and continues, all in the same try. So the old driver has ended before
the new one begins. If the altering process dies, the difference between wanted and running hash still shows which tasks
have to restart.

A gateway is the interface to stored connections and tasks. One is for Airflow's API, and one for its database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final, Protocol

from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.connections.types import ContentHash, Definition, type_named
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.store.connections import FAILED, IDLE, RUNNING, TaskRef, Use, load_use
from airflow_provider_rfr.store.engine import ControlStore


class _Gateway(Protocol):
    """A gateway to the stored connections, to the caller's rights on them, and to the scheduler's tasks."""

    def read(self, name: str) -> Definition | None:
        """Return the connection with its secrets, as its users see it; None if there is none.

        :raises ConnectionShadowedError: it comes from a place that can't be written
        :raises ConnectionRightsError: the caller may not see it
        """

    def find(self, name: str) -> Definition | None:
        """Return any connection, as its users see it, wherever it comes from."""

    def referring(self, name: str) -> Sequence[str]:
        """Return the ids of stored connections whose options name this one."""

    def commit(self, expected: str, candidate: Definition) -> None:
        """Store the candidate as a whole, if the stored connection still has the expected hash.

        :raises ConnectionConflictError: the stored connection has another hash
        """

    def commit_tested(self, expected: str, candidate: Definition) -> bool:
        """Store the candidate after Airflow's own connection test; return False, and store nothing, without that test.

        :raises ConnectionConflictError: the stored connection has another hash
        :raises ConnectionValidationError: the candidate does not work
        """

    def rename(self, expected: str, definition: Definition, new_name: str) -> None:
        """Store the connection under another name.

        :raises ConnectionConflictError: the stored connection has another hash, or the new name is taken
        """

    def drop(self, expected: str, definition: Definition) -> None:
        """Delete the connection.

        :raises ConnectionConflictError: the stored connection has another hash
        """

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """Return those of the connections that the caller may not edit."""

    def task_state(self, task: TaskRef) -> str | None:
        """Return Airflow's name of the task's state.

        It is ``gone`` for a task that no longer exists, and None if Airflow can't be asked.
        """

    def start_task(self, task: TaskRef) -> None:
        """Clear the task, so that it continues where it stopped.

        :raises RfrError: it can't be started
        """


@dataclass(frozen=True, slots=True)
class Services:
    """The services that an alteration uses.

    :ivar may_not_use: returns those of the secrets that connections may not be given, without reading any
    :ivar read_secret: returns the value of a secret; raises ConfigurationError if there is none
    :ivar test: tries the candidate, and tells whether its type can be tried here; raises ConnectionValidationError if
        the candidate does not work
    :ivar identify: returns the identity of the upstream that a connection leads to, None if that can't be found out;
        raises ConnectionValidationError if the upstream should answer, and does not
    :ivar check_use: checks that a task could use the candidate; raises ConnectionValidationError if it could not
    :ivar report: is called with each line of progress
    :ivar store_conn_id: the connection that says where the control store is, if there is one
    """

    store: ControlStore
    hashes: ContentHash
    gateway: _Gateway
    may_not_use: Callable[[Iterable[SecretReference]], Sequence[SecretReference]]
    read_secret: Callable[[SecretReference], str]
    test: Callable[[Definition], bool]
    identify: Callable[[Definition], str | None]
    check_use: Callable[[Definition, Use], None]
    report: Callable[[str], None]
    store_conn_id: str = ""
    sleep: Callable[[float], None] = time.sleep


Find = Callable[[str], Definition | None]
"""Returns the connection of an id, as its users see it; None if there is none."""


@dataclass(frozen=True, slots=True)
class _ReachedConnection:
    """A connection that something uses, and the path of ids to it; its definition is None where it can't be read."""

    name: str
    path: tuple[str, ...]
    definition: Definition | None


def references_of(definition: Definition) -> dict[str, str]:
    """Return the ids of other connections, by the option that names them."""
    connection_type = type_named(definition.conn_type)
    references = {}
    for name, value in definition.options():
        option = connection_type.option(name)
        if option is not None and option.is_reference and isinstance(value, str):
            references[name] = value
    return references


def closure(names: Iterable[str], find: Find) -> dict[str, _ReachedConnection]:
    """Return the connections, and all that they refer to directly or through others, by id."""
    reached: dict[str, _ReachedConnection] = {}
    todo: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in names]
    while todo:
        # The oldest first, so that the path to each connection is the shortest one.
        name, path = todo.pop(0)
        if name in reached:
            continue
        definition = find_readable(find, name)
        reached[name] = _ReachedConnection(name, path, definition)
        if definition is not None:
            todo += [(other, (*path, other)) for other in references_of(definition).values()]
    return reached


def find_readable(find: Find, name: str) -> Definition | None:
    """Return the connection; None if it is missing, or can't be read, which its own users report."""
    try:
        return find(name)
    except ConfigurationError:
        return None


def cycle(candidate: Definition, find: Find) -> tuple[str, ...] | None:
    """Return the path of references from the candidate back to itself; None if there is none."""
    reached = closure(references_of(candidate).values(), find).get(candidate.name)
    return None if reached is None else (candidate.name, *reached.path)


def paths_to(name: str, uses: Sequence[Use], find: Find) -> Mapping[str, tuple[str, ...]]:
    """Return the path of ids to the connection by consumer, as the task registered it, else by present references."""
    routes: dict[str, tuple[str, ...]] = {}
    for other in sorted({connection.conn_id for use in uses for connection in use.connections}):
        reached = closure([other], find).get(name)
        if reached is not None:
            routes[other] = reached.path
    paths: dict[str, tuple[str, ...]] = {}
    for use in uses:
        own = use.of(name)
        if own is not None:
            paths[use.task.consumer] = tuple(own.via.split(" > "))
            continue
        path = next((routes[conn.conn_id] for conn in use.connections if conn.conn_id in routes), None)
        if path is not None:
            paths[use.task.consumer] = path
    return paths


class RestartVerdict(str, Enum):
    """The consequence of a change for a task."""

    UNAFFECTED = "unaffected"
    RESTART = "restart"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class DependentTask:
    """A task that uses the connection.

    :ivar via: ids from the connection that it names to the one that is altered
    :ivar outcome: the outcome of its restart; empty before that
    """

    use: Use
    via: tuple[str, ...]
    verdict: RestartVerdict
    reason: str
    outcome: str = ""

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "kind": self.use.kind,
            **asdict(self.use.task),
            "via": list(self.via),
            "verdict": self.verdict.value,
            "reason": self.reason,
        }
        return {**values, "outcome": self.outcome} if self.outcome else values

    def line(self, prefix: str, detail: str) -> str:
        way = f" by {' > '.join(self.via)}" if len(self.via) > 1 else ""
        return f"{prefix}{self.use.kind} {self.use.task}{way}: {detail}"


_STATES: Final = {
    "running": "it runs",
    "deferred": "it runs in a cluster",
    "failed": "it failed",
    "idle": "it does not run",
}


def judge(
    name: str, new_hash: str | None, options: Collection[str], uses: Sequence[Use], find: Find
) -> tuple[DependentTask, ...]:
    """Return all tasks that use the connection, each with the consequence of changing these options.

    :param new_hash: hash of the new content; None if nothing is to change
    """
    paths = paths_to(name, uses, find)
    dependents = []
    for use in uses:
        if use.task.consumer not in paths:
            continue
        verdict, reason = RestartVerdict.RESTART, _STATES.get(use.state, use.state)
        own, fixed = use.of(name), sorted(set(options) & set(use.details.get("fixed", {}).get(name, ())))
        if new_hash is None:
            verdict = RestartVerdict.UNAFFECTED
        elif fixed:
            verdict, reason = RestartVerdict.INCOMPATIBLE, f"it can't adopt another {', '.join(fixed)}"
        # If another copy is wanted, the task is about to replace this one, so it has to restart again.
        elif own is not None and own.running == new_hash and own.wanted in (None, new_hash):
            verdict, reason = RestartVerdict.UNAFFECTED, "it has these settings already"
        elif use.state == IDLE:
            verdict, reason = RestartVerdict.UNAFFECTED, "it does not run; its next run takes the new settings"
        dependents.append(DependentTask(use, paths[use.task.consumer], verdict, reason))
    return tuple(dependents)


_LOOK_SECONDS: Final = 0.5
_SILENT_MILLISECONDS: Final = 60_000
"""The time without a heartbeat after which a task counts as dead where Airflow can't be asked."""
_STARTABLE: Final = frozenset({"up_for_retry", "failed", "deferred", "upstream_failed"})
_ON_ITS_WAY: Final = frozenset({"queued", "scheduled", "restarting", "up_for_reschedule"})
_UNRELATED_ERRORS: Final = frozenset(
    {"SchemaError", "TypeMismatchError", "SchemaEvolutionError", "PublishRefusedError", "SourceChangedError"}
)
"""Failures that no change of a connection repairs."""


def with_outcomes(
    dependents: Sequence[DependentTask], outcomes: Mapping[TaskRef, str], otherwise: str
) -> tuple[DependentTask, ...]:
    """Return the dependents with the outcomes of their restarts; ``otherwise`` is the outcome of one without any."""

    def outcome(dependent: DependentTask) -> str:
        is_restarted = dependent.verdict is RestartVerdict.RESTART
        return outcomes.get(dependent.use.task, otherwise) if is_restarted else "next run"

    return tuple(replace(dependent, outcome=outcome(dependent)) for dependent in dependents)


def restart(
    services: Services, name: str, wanted: str, dependents: Sequence[DependentTask], timeout: float
) -> tuple[DependentTask, ...]:
    """Start stopped tasks, and wait until running ones have the new settings; return the dependents with the outcomes.

    :param wanted: hash of the new settings
    :param timeout: seconds to wait; tasks that still stop then take the new settings by themselves
    """
    outcomes: dict[TaskRef, str] = {}
    waiting = [dependent.use.task for dependent in dependents if dependent.verdict is RestartVerdict.RESTART]
    deadline = time.monotonic() + timeout
    while True:
        # Once even if the timeout is 0: stopped tasks are started, and outcomes that are known already are reported.
        for task in list(waiting):
            outcome = _outcome(services, task, name, wanted)
            if outcome is not None:
                services.report(f"{task}: {outcome}")
                outcomes[task] = outcome
                waiting.remove(task)
        if not waiting or time.monotonic() >= deadline:
            break
        services.sleep(_LOOK_SECONDS)
    return with_outcomes(dependents, outcomes, "still stops; it takes the new settings by itself")


def _outcome(services: Services, task: TaskRef, name: str, wanted: str) -> str | None:
    """Return the outcome of a task's restart; None while it is pending. Start the task if it does not run."""
    with services.store.read() as connection:
        use, now = load_use(connection, task), services.store.now(connection)
    if use is None:
        return "gone"
    own = use.of(name)
    if own is not None and own.running == wanted:
        return "restarted" if use.state == RUNNING else "has the new settings"
    # A later alteration wants another copy, and waits for the task itself.
    if own is not None and own.wanted not in (None, wanted):
        return "superseded by a later change"
    if use.state == IDLE:
        return "next run"
    state = services.gateway.task_state(task)
    if state is None:
        is_dead = now - use.seen_at > _SILENT_MILLISECONDS or use.state == FAILED
        return "unknown: Airflow could not be asked" if is_dead else None
    if state == "running":
        # A running task looks at the wanted hash itself. Clearing it would kill its driver, and lose pages in flight.
        return None
    if state in _ON_ITS_WAY or state not in _STARTABLE:
        return "started" if state in _ON_ITS_WAY else "next run"
    if state == "failed" and use.error_kind in _UNRELATED_ERRORS:
        return f"stays failed: {use.error_kind} is not the connection's fault"
    try:
        services.gateway.start_task(task)
    except RfrError as error:
        return f"could not be started: {error}"
    return "started"
