"""One attempt of a refresh, also if its task is deferred while the driver runs in a cluster; and its checkpoints.

Checkpoints are kept in Airflow (task state, a Variable, or XCom) for display; the ledger is the truth. A lost or wrong
checkpoint never changes what a refresh reads or publishes. It holds names of tables, numbers and times, and never a
page token, an address or a secret. Each store has one key per task instance. While Spark runs, a thread polls the
ledgers, and writes a log line and a checkpoint per round.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
from airflow.sdk import Variable
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS, NEVER_EXPIRE, airflow_version, lock_requests
from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    FencedError,
    PublishRefusedError,
    RefreshFailedError,
    RfrError,
)
from airflow_provider_rfr.hooks.spark import (
    ClusterDriver,
    ClusterManager,
    DriverAddress,
    DriverState,
    RefreshSparkHook,
    open_driver,
    parse_result_line,
)
from airflow_provider_rfr.http.redaction import redact
from airflow_provider_rfr.operators._outcome import (
    LONGEST_SENTENCE,
    Lineage,
    cause_in,
    failure_of_driver,
    figures_by_table,
    result_of,
    result_of_ledger,
)
from airflow_provider_rfr.operators.connections import task_of
from airflow_provider_rfr.refresh.follow import LedgerFollower, ProgressPoint
from airflow_provider_rfr.text import one_line
from airflow_provider_rfr.triggers.refresh import DeferredRefresh, End, Ending

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)

_KEPT = "what was read is kept for the next attempt"
_MEANINGS = {kind.exit_code: kind for kind in (ConfigurationError, FencedError)}
"""Errors by the exit code of a driver of which nothing else is known; other exit codes identify no error."""
_STATE_KEY = "rfr"
_XCOM_KEY = "rfr_checkpoint"
_READABLE = 200
"""Length of the readable part of a Variable's key. With the digest, the key stays below the database's limit of 250."""
_VERSION = 1
_FIRST_WAIT = 2.0
_JOIN_SECONDS = 15.0
_COMPARED = ("generation", "epoch", "pages")


class Checkpoint(BaseModel):
    """The state that one attempt leaves for display and for the next attempt.

    :ivar owner: the task instance, ``dag/run/task/map index``
    :ivar stalled: consecutive attempts, up to this one, that made no progress
    :ivar tables: for each table, the counts of ``Progress.checkpoint``, and ``pointer`` (ledger id and snapshot id)
    """

    model_config = ConfigDict(frozen=True)

    version: int = _VERSION
    owner: str
    stalled: NonNegativeInt = 0
    tables: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def parse(cls, content: Any, owner: str) -> Checkpoint | None:
        """Parse the checkpoint in a store's content; return None if it is not one of this task instance.

        :param content: JSON text, or its parsed value
        """
        try:
            checkpoint = cls.model_validate_json(content) if isinstance(content, str) else cls.model_validate(content)
        except ValidationError:
            return None
        return checkpoint if (checkpoint.version, checkpoint.owner) == (_VERSION, owner) else None


class CheckpointStore(Protocol):
    """A store of one checkpoint for the attempts of one task instance.

    :ivar place: where it is kept, for a log line
    """

    place: str

    def read(self) -> Any:
        """Return the content, which anyone may have written; None if there is none."""

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the content."""

    def clear(self) -> None:
        """Remove the content, if there is any."""


class _TaskStateStore:
    """A store in Airflow's task state, which survives retries, deferral, and a clear where Airflow lets it."""

    place = "the task state"

    def __init__(self, context: Context) -> None:
        self._state: Any = context.get("task_state_store")

    def read(self) -> Any:
        return None if self._state is None else self._state.get(_STATE_KEY)

    def write(self, content: Mapping[str, Any]) -> None:
        # A pause may be longer than the default retention of 30 days.
        if self._state is not None:
            self._state.set(_STATE_KEY, dict(content), retention=NEVER_EXPIRE)

    def clear(self) -> None:
        if self._state is not None:
            self._state.delete(_STATE_KEY)


class _VariableStore:
    """A store in an Airflow Variable, one for each task instance, so that no two tasks write the same one."""

    def __init__(self, context: Context) -> None:
        task = task_of(context)
        # DAG and task are for people; the digest also has the run and the map index.
        digest = hashlib.sha256(task.consumer.encode()).hexdigest()[:16]
        self.key = f"rfr_checkpoint.{f'{task.dag_id}.{task.task_id}'[:_READABLE]}.{digest}"
        self.place = f"the Variable {self.key}"
        where = "" if task.map_index < 0 else f", map index {task.map_index}"
        self._description = (
            f"Progress of the refresh by task {task.task_id} of DAG {task.dag_id} (run {task.run_id}{where})."
            " Written by the task, removed when its tables are published. It is safe to delete: the next try resumes"
            " from the ledger next to each table."
        )

    def read(self) -> Any:
        return Variable.get(self.key, default=None)

    def write(self, content: Mapping[str, Any]) -> None:
        Variable.set(self.key, json.dumps(content, indent=2), description=self._description)

    def clear(self) -> None:
        Variable.delete(self.key)


class _XComStore:
    """A store in XCom, with a copy under a neighbouring task for the next try, and one under the task for later tasks.

    At the start of each try, Airflow removes every XCom of that task instance. So the copy for the next try is kept
    under another task of the run: one directly downstream, which does not start before this one is done, else one
    directly upstream, which does not start again.
    """

    def __init__(self, context: Context) -> None:
        # Imported here: it reads Airflow's configuration for the XCom backend, which is too slow for a DAG's parse.
        from airflow.sdk.execution_time.xcom import XCom

        self._xcom: Any = XCom
        task = task_of(context)
        self._ti = context["ti"]
        key = f"{_XCOM_KEY}.{task.task_id}.{task.map_index}"
        self._neighbour = _neighbour(getattr(self._ti, "task", None))
        self._at = {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": self._neighbour, "key": key}
        self.place = f"the XCom {key} of task {self._neighbour}" if self._neighbour else "XCom (no other task keeps it)"

    def read(self) -> Any:
        return None if self._neighbour is None else self._xcom.get_one(**self._at, map_index=-1)

    def write(self, content: Mapping[str, Any]) -> None:
        self._ti.xcom_push(key=_XCOM_KEY, value=dict(content))
        if self._neighbour is not None:
            self._xcom.set(value=dict(content), **self._at)

    def clear(self) -> None:
        """Remove the neighbour's copy; the task's own stays for the tasks after it."""
        if self._neighbour is not None:
            self._xcom.delete(**self._at)


def _neighbour(task: Any) -> str | None:
    """Return the id of the task that keeps a checkpoint for this one; None where no neighbour can.

    Mapped tasks can't: an XCom belongs to a task instance that exists, and theirs may not exist yet.
    """
    dag = task.get_dag() if task is not None else None
    if dag is None:
        return None
    for near in (task.downstream_task_ids, task.upstream_task_ids):
        for task_id in sorted(near):
            other = dag.get_task(task_id)
            if not other.is_mapped and other.get_closest_mapped_task_group() is None:
                return str(task_id)
    return None


DEFAULT_STORE = "task_state" if AIRFLOW_V_3_3_PLUS else "xcom"
_STORES: Mapping[str, Callable[[Context], CheckpointStore]] = {
    "task_state": _TaskStateStore,
    "variable": _VariableStore,
    "xcom": _XComStore,
}


def check_store(name: Any) -> None:
    """Check that the store's name is known.

    :raises ConfigurationError: there is no such store, or not in this version of Airflow
    """
    if not isinstance(name, str) or name not in _STORES:
        raise ConfigurationError("checkpoint_store", f"invalid store {name!r}", f"one of {', '.join(_STORES)}")
    if name == "task_state" and not AIRFLOW_V_3_3_PLUS:
        problem = f"Airflow {airflow_version()} has no task state; it came with 3.3"
        raise ConfigurationError("checkpoint_store", problem, "leave it out, or write xcom or variable")


def open_store(name: str, context: Context) -> CheckpointStore:
    """Return the store of the running task instance; read and write nothing yet."""
    return _STORES[name](context)


class ProgressMonitor:
    """A context manager around one attempt: follows its ledgers, and leaves a checkpoint if the attempt fails.

    Neither a ledger that can't be read nor a store that can't be written ever fails the refresh.

    :param owner: the task instance; a checkpoint of another one is ignored
    :param is_first: whether this is the task's first try, which finds no checkpoint
    :ivar stalled: consecutive attempts, up to this one, without progress; None while a ledger can't be read
    """

    def __init__(self, ledgers: LedgerFollower, store: CheckpointStore, owner: str, *, is_first: bool = False) -> None:
        self._ledgers = ledgers
        self._store = store
        self._is_first = is_first
        self._before: Mapping[str, ProgressPoint | None] | None = None
        self._last = Checkpoint(owner=owner)
        self._is_over = False
        self._is_excused = False
        # A follower that outlives its join must not write a checkpoint after the publish removed it.
        self._writing = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.stalled: int | None = None

    def __enter__(self) -> ProgressMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join(_JOIN_SECONDS)
        # An attempt that never reached the ledger counts as well, so its checkpoint is written here at the latest.
        if error is not None and self._before is not None:
            self._is_excused = isinstance(error, RfrError) and error.excused
            self.write()

    @property
    def before(self) -> tuple[Mapping[str, ProgressPoint | None] | None, int]:
        """Return the progress at the attempt's start, and the number of stalled attempts before it.

        The progress is None if it is unknown.
        """
        return self._before if self._ledgers.is_complete else None, self._last.stalled

    def follow(self, poll_interval: float) -> None:
        """Poll the ledgers in a thread until the context ends.

        :param poll_interval: seconds between polls once the refresh runs for a while; 2 at first
        """
        # The checkpoint is read before the thread starts: `airflow dags test` can't answer two threads at once.
        arguments = (self.read_checkpoint(), poll_interval)
        lock_requests()
        self._thread = threading.Thread(target=self._follow, args=arguments, name="rfr-follower", daemon=True)
        self._thread.start()

    def read_checkpoint(self) -> Checkpoint | None:
        """Return the last attempt's checkpoint; None, with a line in the log, where there is none of this task."""
        try:
            content = self._store.read()
        except Exception as error:  # noqa: BLE001 - a text may hold addresses with credentials
            _log.warning("the checkpoint in %s can't be read (%s)", self._store.place, type(error).__name__)
            return None
        checkpoint = Checkpoint.parse(content, self._last.owner)
        if content is None:
            if not self._is_first:
                _log.info("there is no checkpoint in %s", self._store.place)
        elif checkpoint is None:
            _log.warning("the content of %s is ignored: it is not a checkpoint of this task", self._store.place)
        return checkpoint

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Record the ledgers' progress at the attempt's start, and compare the last attempt's checkpoint with it."""
        self._before = self._ledgers.begin()
        if checkpoint is None:
            return
        agrees = all(
            (header := self._ledgers.before.get(table)) is not None
            and all(counts.get(name) == getattr(header, name) for name in _COMPARED)
            for table, counts in checkpoint.tables.items()
        )
        if self._ledgers.is_complete and not agrees:
            # Someone else continued the refresh, or the last try died between a commit and its checkpoint.
            _log.info("the checkpoint in %s is ignored: the ledger is in another state", self._store.place)
        else:
            self._last = checkpoint
            verdict = "agrees with the ledger" if self._ledgers.is_complete else "can't be compared with the ledger now"
            _log.info("the checkpoint in %s %s", self._store.place, verdict)

    def resume(self, before: Mapping[str, ProgressPoint | None] | None, stalled: int) -> None:
        """Continue an attempt that another process began.

        :param before: :attr:`before` of that process
        """
        self._before = before
        self._last = self._last.model_copy(update={"stalled": stalled})
        self._ledgers.before = dict.fromkeys(self._ledgers.tables)
        # The triggerer has logged the rounds.
        self._ledgers.show = lambda line: None

    def write(self) -> None:
        """Write a checkpoint with the changes of the attempt."""
        with self._writing:
            if self._is_over:
                return
            tables = self._ledgers.checkpoint()
            if self._before is None or not self._ledgers.is_complete:
                self.stalled = None
            elif any(_has_advanced(self._before.get(table), counts) for table, counts in tables.items()):
                self.stalled = 0
            else:
                self.stalled = self._last.stalled + (0 if self._is_excused else 1)
            stalled = self._last.stalled if self.stalled is None else self.stalled
            update = {"stalled": stalled, "tables": {**self._last.tables, **tables}}
            content = self._last.model_copy(update=update).model_dump(mode="json")
            self._use_store("written", lambda: self._store.write(content))

    def published(self, *, keep: bool) -> None:
        """End the attempt, and remove the checkpoint unless it is to be kept; nothing is written after this."""
        with self._writing:
            self._is_over = True
            if not keep:
                self._use_store("removed", self._store.clear)

    def _follow(self, checkpoint: Checkpoint | None, poll_interval: float) -> None:
        self.begin(checkpoint)
        wait = min(_FIRST_WAIT, poll_interval)
        is_done = False
        while not is_done:
            is_done = self._done.wait(wait)
            began = time.monotonic()
            if self._ledgers.poll():
                self.write()
            wait = min(max(wait * 1.2, 4 * (time.monotonic() - began)), poll_interval)

    def _use_store(self, verb: str, action: Callable[[], None]) -> None:
        self._ledgers.outages.guard(f"the checkpoint in {self._store.place}", verb, action)


def _has_advanced(before: ProgressPoint | None, counts: Mapping[str, Any]) -> bool:
    """Tell whether a table has progressed: more pages or partitions, a new generation with pages, or a publish."""
    if before is None or before.generation != counts["generation"]:
        return bool(counts["pages"])
    if counts.get("snapshot_id") is not None and before.snapshot_id is None:
        return True
    return bool(counts["pages"] > before.pages or counts["partitions_done"] > before.partitions_done)


def leave_driver(hook: RefreshSparkHook, yarn_rm_auth: Any) -> bool:
    """Let the submit return early if the refresh can be deferred; return whether it can, and log why not.

    :raises ConfigurationError: it can be deferred, but a setting is missing or prevents it
    """
    why = None
    if hook.cluster_manager is None:
        why = "the driver runs on this worker as a child of the task (deploy mode client), and would end with it"
    elif yarn_rm_auth is not None and hook.cluster_manager is ClusterManager.YARN:
        why = "yarn_rm_auth is an object of this task and can't travel; the triggerer takes Kerberos or no login"
    if why is not None:
        _log.info("Not deferred, although deferrable is set: %s", why)
        return False
    hook.leave_driver()
    return True


def deadline_of(execution_timeout: timedelta | None, began: datetime) -> str | None:
    """Return the ISO time of a refresh's deadline, None for none; Airflow itself does not time a deferred task.

    :param began: when Airflow called the task's ``execute``: from then on, it times a task that is not deferred
    """
    return None if execution_timeout is None else (began + execution_timeout).isoformat()


class RefreshAttempt:
    """One attempt of a refresh, in one process or, if it was deferred, in two.

    :param run_key: ``run.key`` of the refresh's document
    :param replace_where: the part of the targets, as in the refresh's options
    :param store: name of the checkpoint store
    :param show: takes one line of progress
    :ivar lineage: inputs and outputs, with figures once the tables are published
    """

    def __init__(
        self,
        context: Context,
        lineage: Lineage,
        run_key: str,
        replace_where: str | None,
        store: str,
        show: Callable[[str], None],
    ) -> None:
        self.lineage = lineage
        self.run_key = run_key
        self.replace_where = replace_where
        tables = tuple(lineage.tables.values())
        self._ledgers = LedgerFollower(lambda: lineage.lake, tables, replace_where, show=show)
        self.monitor = ProgressMonitor(
            self._ledgers,
            open_store(store, context),
            task_of(context).consumer,
            is_first=getattr(context["ti"], "try_number", 1) == 1,
        )

    def deferred(self, driver: DriverAddress, lake_conn_id: str) -> DeferredRefresh:
        """Return everything that another process needs to continue this attempt."""
        before, stalled = self.monitor.before
        lineage = self.lineage
        return DeferredRefresh(
            tables=lineage.tables,
            run_key=self.run_key,
            driver=driver,
            lake_conn_id=lake_conn_id,
            replace_where=self.replace_where,
            before=before,
            stalled=stalled,
            source=lineage.source,
            mode=lineage.mode,
        )

    def published(self) -> dict[str, Any] | None:
        """Return the task's result from the ledgers; None where this run has not published every table."""
        tables = self.lineage.tables
        figures = {table: self._ledgers.published(table, self.run_key) for table in tables.values()}
        if self._ledgers.advance():
            self.monitor.write()
        published = {table: counts for table, counts in figures.items() if counts is not None}
        return self._noted(result_of_ledger(tables, published)) if len(published) == len(figures) else None

    def result(self, result_line: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the task's return value.

        :param result_line: the driver's figures, None where it ran elsewhere and printed none here
        :raises RefreshFailedError: the ledgers do not say that every table was published
        """
        if result_line is not None:
            return self._noted(result_of(result_line))
        result = self.published()
        if result is None:
            tables = ", ".join(self.lineage.tables.values())
            raise RefreshFailedError(
                f"Spark ended well, but the ledger does not say that {tables} was published; see the driver's log"
            )
        return result

    def is_refused(self) -> bool:
        """Tell whether this run's publish was refused because of the rows that were read, as of the last look."""
        headers = [header for header in self._ledgers.headers.values() if header is not None]
        return any(header.refused_under is not None and header.run_key == self.run_key for header in headers)

    def _noted(self, result: dict[str, Any]) -> dict[str, Any]:
        self.lineage = replace(self.lineage, figures=figures_by_table(result))
        return result


class EndedDriver:
    """The driver of a deferred refresh, queried once more by the resumed task.

    The trigger's event has only its state and exit code: the cluster's own text may be long, and may hold secrets that
    only a worker's log can mask.

    :param secrets: masked in the cluster's text
    """

    def __init__(self, refresh: DeferredRefresh, ending: Ending, secrets: Iterable[str]) -> None:
        self._refresh = refresh
        self._ending = ending
        self._secrets = list(secrets)
        self._id = refresh.driver.driver_id
        self._driver: ClusterDriver | None = None
        self.report = ending.driver
        try:
            self._driver = open_driver(refresh.driver)
            report = self._driver.look()
        except Exception as error:  # noqa: BLE001 - the event says enough
            _log.warning("the driver %s can't be asked again (%s)", self._id, type(error).__name__)
        else:
            self.report = ending.driver if report.state is DriverState.GONE else report

    def forget(self, task_state: Any, key: str) -> None:
        """Delete the driver's id from the task state, so that a retry submits a new one; not if this one may still run.

        With the id, the parent operator would take a driver that ended well for a refresh that is done, in each try.
        """
        if task_state is not None and self._ending.end not in (End.LOST, End.NOT_ENDED):
            task_state.delete(key)

    def tidy(self) -> None:
        """Remove the resources that a successful driver leaves in the cluster."""
        try:
            if self._driver is not None and self.report.state is DriverState.SUCCEEDED:
                self._driver.tidy()
        except Exception as error:  # noqa: BLE001 - the tables are published
            _log.warning("what the driver %s leaves behind was not removed (%s)", self._id, type(error).__name__)

    def failure(self, *, refused: bool) -> BaseException:
        """Return the error of a refresh that is not published.

        :param refused: whether the ledger says that the publish was refused
        """
        if self._ending.end is End.OUT_OF_TIME:
            return AirflowTaskTimeout(f"the refresh ran out of execution_timeout, and its driver was ended; {_KEPT}")
        if self._ending.end is End.NOT_ENDED:
            return AirflowTaskTimeout(
                f"the refresh ran out of execution_timeout, but its driver {self._id} could not be ended, and may still"
                f" publish; {_KEPT}; end the driver with: {self._refresh.stop_command}"
            )
        if self._ending.end is End.LOST:
            return RefreshFailedError(
                f"neither the driver {self._id} nor the ledgers could be read for a quarter of an hour; {_KEPT}"
            )
        lines: list[str] = []
        try:
            lines = [] if self._driver is None else list(self._driver.last_lines())
        except Exception as error:  # noqa: BLE001 - the exit code says enough
            _log.warning("the log of the driver %s can't be read (%s)", self._id, type(error).__name__)
        parsed = map(parse_result_line, reversed(lines))
        failure = failure_of_driver(next((line for line in parsed if line is not None), None))
        if failure is not None:
            return failure
        if refused:
            why = "the publish was refused for what was read; see the driver's log"
            return AirflowFailException(f"{why}; {PublishRefusedError.advice}")
        if self.report.state is DriverState.SUCCEEDED:
            return RefreshFailedError(
                f"the driver {self._id} ended well, but the ledger does not say that everything was published; {_KEPT}"
            )
        return self._by_exit_code(cause_in(lines) or self.report.why)

    def _by_exit_code(self, why: str) -> Exception:
        report = self.report
        state = "not known to the cluster any more" if report.state is DriverState.GONE else report.status
        problem = f"the Spark driver {self._id} is {state}"
        problem += "" if report.exit_code is None else f" with exit code {report.exit_code}"
        problem += f": {one_line(redact(why, self._secrets), LONGEST_SENTENCE)}" if why else ""
        problem += f" (its log: {report.url})" if report.url else ""
        meaning = _MEANINGS.get(report.exit_code or 0)
        if meaning is not None:
            return AirflowFailException(f"{problem}; {meaning.advice}")
        return RefreshFailedError(f"{problem.rstrip('. ')}; {_KEPT}")
