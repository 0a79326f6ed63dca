"""Actions that a viewer takes from a page: each is one request to Airflow's REST API.

The viewer's browser sends it, in the viewer's session, so Airflow itself checks the right to it and writes its audit
log; this server writes nothing. A page offers an action only where it can work: the viewer has the right, and the state
allows it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.providers.common.compat.sdk import conf
from airflow.utils.session import create_session
from sqlalchemy import func, select

from airflow_provider_rfr.hooks.dag_arguments import RUN_SETTINGS
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.text import quantity

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.state import LedgerHeader, TableStatus
    from airflow_provider_rfr.web.access import Viewer
    from airflow_provider_rfr.web.store_pages import EndpointView

_log = logging.getLogger(__name__)
_UNFINISHED: Final = frozenset(
    {"scheduled", "queued", "running", "deferred", "restarting", "up_for_retry", "up_for_reschedule"}
)
_ACCEPTING: Final[Mapping[str, Any]] = {
    "allow_empty": True,
    "max_shrink": None,
    "max_deleted": 1,
    "on_missing_records": "warn",
}
"""Values of options under which a guard accepts the publish that it refused."""
_GUARD: Final = re.compile(rf"^PublishRefusedError: .*\bset ({'|'.join(_ACCEPTING)}) to ", re.DOTALL)
ONCE: Final[Mapping[str, Any]] = {
    **_ACCEPTING,
    "full_refresh": True,
    "force_restart": True,
    "unfinished": "restart",
}
"""Params of ready DAGs, with values that hold for one run alone: a run that copies its configuration omits them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAction:
    """A button, its dialog, and the request that follows.

    :ivar name: name of the button, unique on its page
    :ivar effect: sentences of the dialog
    :ivar done: sentence to show after the request
    :ivar path: path in Airflow's REST API, in parts
    :ivar body: body of the request; for a new run, the values that differ from the copied configuration
    :ivar settings_of: path of the run whose configuration a new run copies, except for :data:`ONCE`; empty for the
        DAG's defaults
    """

    name: str
    label: str
    effect: str
    done: str
    method: str
    path: tuple[str, ...]
    body: Mapping[str, Any] = field(default_factory=dict)
    settings_of: tuple[str, ...] = ()

    @property
    def is_new_run(self) -> bool:
        return self.path[-1] == "dagRuns"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagFacts:
    """Facts of Airflow's database about a DAG that still exists.

    :ivar params: names of its params
    :ivar incremental: its tasks that sync incrementally
    :ivar busy: number of runs that are queued or running
    """

    dag_id: str
    is_paused: bool
    params: frozenset[str]
    incremental: frozenset[str]
    busy: int

    @classmethod
    def read(cls, dag_id: str) -> DagFacts | None:
        """Read the facts; None if the DAG is gone or can't be read."""
        with create_session() as session:
            model = session.scalar(select(DagModel).where(DagModel.dag_id == dag_id, ~DagModel.is_stale))
            if model is None:
                return None
            try:
                dag = SerializedDagModel.get_dag(dag_id, session=session)
                if dag is None:
                    return None
                params = frozenset(dag.params)
                incremental = frozenset(task.task_id for task in dag.tasks if "full_refresh" in task.template_fields)
            except Exception as error:  # noqa: BLE001 - of code of DAGs, such as a timetable whose plugin is gone
                _log.warning("the DAG %s can't be read, so the pages offer no action on it (%r)", dag_id, error)
                return None
            query = select(func.count()).where(DagRun.dag_id == dag_id, DagRun.state.in_(("queued", "running")))
            busy = session.scalar(query) or 0
        return cls(dag_id=dag_id, is_paused=bool(model.is_paused), params=params, incremental=incremental, busy=busy)

    @property
    def waiting(self) -> str:
        """Return the reason why a new run may wait, as a sentence; an empty text if there is none."""
        if self.is_paused:
            return f" The DAG {self.dag_id} is paused: nothing happens until somebody unpauses it."
        if self.busy:
            return (
                f" {quantity(self.busy, 'run')} of the DAG {self.dag_id} did not end yet; this one may wait for that."
            )
        return ""

    def start(self, name: str, label: str, effect: str, **more: Any) -> PageAction:
        """Return the action that starts a run of the DAG."""
        path = ("dags", self.dag_id, "dagRuns")
        return PageAction(
            name=name,
            label=label,
            effect=effect + self.waiting,
            done=f"A run of the DAG {self.dag_id} was started.",
            method="POST",
            path=path,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """Facts of Airflow's database about the task of a refresh, whose run still exists.

    :ivar state: None for a task that has none, as after a clear
    :ivar is_dated: whether the run has a logical date
    """

    dag: DagFacts
    state: str | None
    is_dated: bool

    @classmethod
    def read(cls, header: LedgerHeader) -> TaskFacts | None:
        """Read the facts; None if the DAG, the run or the task is gone, or if no task made the refresh."""
        if header.dag_id is None or header.dag_run_id is None or header.task_id is None:
            return None
        dag = DagFacts.read(header.dag_id)
        index = -1 if header.map_index is None else header.map_index
        run = (TaskInstance.dag_id == header.dag_id) & (TaskInstance.run_id == header.dag_run_id)
        with create_session() as session:
            query = (
                select(TaskInstance.state, DagRun.logical_date)
                .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
                .where(run, TaskInstance.task_id == header.task_id, TaskInstance.map_index == index)
            )
            row = session.execute(query).one_or_none()
        if dag is None or row is None:
            return None
        state = None if row[0] is None else str(getattr(row[0], "value", row[0]))
        return cls(dag=dag, state=state, is_dated=row[1] is not None)


def actions_on(status: TableStatus, viewer: Viewer) -> tuple[tuple[PageAction, ...], bool]:
    """Return the actions that the viewer may take on a refresh now, and whether its DAG has a form for the viewer."""
    header = status.header
    if header is None or header.dag_id is None:
        return (), False
    may_start, may_change = viewer.may_trigger(header.dag_id), viewer.may_change_tasks(header.dag_id)
    facts = TaskFacts.read(header) if may_start or may_change else None
    if facts is None:
        return (), False
    possible = possible_actions(status, header, facts)
    actions = tuple(action for action in possible if (may_start if action.is_new_run else may_change))
    return actions, may_start and bool(facts.dag.params)


def possible_actions(status: TableStatus, header: LedgerHeader, facts: TaskFacts) -> tuple[PageAction, ...]:
    """Return the actions that the state and the DAG allow, whatever the viewer's rights."""
    from airflow_provider_rfr.refresh.state import State

    is_published = status.state is State.PUBLISHED
    if facts.state in _UNFINISHED and (is_published or status.state is State.REFUSED):
        return ()
    if facts.state in _UNFINISHED:
        mapped = () if header.map_index in (None, -1) else (str(header.map_index),)
        stop = PageAction(
            name="stop",
            label="Stop",
            effect="The load stops within seconds. What was read is kept, and Continue goes on from there."
            f" The task {header.task_id} of the run {header.dag_run_id} is marked failed, and is not tried again.",
            done="The load stops within seconds: its task is marked failed.",
            method="PATCH",
            path=(*_run_of(header), "taskInstances", str(header.task_id), *mapped),
            body={"new_state": "failed"},
        )
        return (stop,)
    # A new run has another logical date, so it would load another part.
    is_part_of_date = bool(header.replace_where) and facts.is_dated and "replace_where" not in facts.dag.params
    if is_part_of_date:
        return (_clear(header, facts, is_published=is_published),)
    if is_published:
        effect = "Readers see the old table until the load is published."
        load = _new_run(header, facts, "load", "Load now", effect, {})
        return (load, *_full_refresh(status, header, facts))
    effect = f"It starts over, without the {_pages_read(header)}."
    return (
        *_accept(status, header, facts),
        _clear(header, facts, is_published=False),
        *_full_refresh(status, header, facts),
        *_once(status, header, facts, "discard", "Discard and start over", effect, {"force_restart": True}),
    )


def _run_of(header: LedgerHeader) -> tuple[str, ...]:
    return ("dags", str(header.dag_id), "dagRuns", str(header.dag_run_id))


def _clear(header: LedgerHeader, facts: TaskFacts, *, is_published: bool) -> PageAction:
    """Return the action that runs the task again in its own run, which keeps its date and its configuration."""
    is_again = is_published or header.refused_under is not None
    label = ("Load again" if is_published else "Read again") if is_again else "Continue"
    does = "reads everything again" if is_again else f"continues after the {_pages_read(header)}"
    marker = header.task_id if header.map_index in (None, -1) else [header.task_id, header.map_index]
    waiting = facts.dag.waiting if facts.dag.is_paused else ""
    return PageAction(
        name="clear",
        label=label,
        effect=f"The load {does}, with the configuration of its run {header.dag_run_id}: the task {header.task_id} is"
        f" cleared, with those after it.{waiting}",
        done="The next try of the task begins as soon as Airflow has a slot.",
        method="POST",
        path=("dags", str(header.dag_id), "clearTaskInstances"),
        body={
            "dry_run": False,
            "dag_run_id": header.dag_run_id,
            "task_ids": [marker],
            "only_failed": False,
            "include_downstream": True,
        },
    )


def _pages_read(header: LedgerHeader) -> str:
    return "page that was read" if header.pages == 1 else f"{header.pages:,} pages that were read"


def _full_refresh(status: TableStatus, header: LedgerHeader, facts: TaskFacts) -> tuple[PageAction, ...]:
    if header.task_id not in facts.dag.incremental:
        return ()
    effect = "It reads everything and replaces the table, instead of what changed alone."
    return _once(status, header, facts, "full-refresh", "Full refresh", effect, {"full_refresh": True})


def _accept(status: TableStatus, header: LedgerHeader, facts: TaskFacts) -> tuple[PageAction, ...]:
    refused = _GUARD.match(header.error or "") if header.refused_under is not None else None
    if refused is None:
        return ()
    # For this generation alone: the guard must not be off for rows that the viewer has not seen.
    values = {refused[1]: _ACCEPTING[refused[1]], "only_generation": header.generation}
    reason = (header.error or "").removeprefix("PublishRefusedError: ")
    effect = (
        f"The publish was refused: {reason}. For this run alone {refused[1]} is {json.dumps(values[refused[1]])}, so it"
        " publishes what was read, without a request to the API."
    )
    return _once(status, header, facts, "accept", "Accept once", effect, values)


def _once(
    status: TableStatus,
    header: LedgerHeader,
    facts: TaskFacts,
    name: str,
    label: str,
    effect: str,
    values: Mapping[str, Any],
) -> tuple[PageAction, ...]:
    """Return the action that starts a run with settings of its own; none where Airflow forbids such settings."""
    if not conf.getboolean("core", "dag_run_conf_overrides_params", fallback=True):
        return ()
    body = {RUN_SETTINGS: {"table": status.table, **values}}
    return (_new_run(header, facts, name, label, effect, body),)


def _new_run(
    header: LedgerHeader, facts: TaskFacts, name: str, label: str, effect: str, values: Mapping[str, Any]
) -> PageAction:
    run = f"A run of the DAG {header.dag_id} starts with the configuration of the run {header.dag_run_id}"
    return facts.dag.start(name, label, f"{run}. {effect}", body=values, settings_of=_run_of(header))


def start_of(dag_id: str, viewer: Viewer) -> DagFacts | None:
    """Return the facts of a ready DAG; None if there is none, or if the viewer may not start it."""
    return DagFacts.read(dag_id) if viewer.may_trigger(dag_id) else None


def actions_on_endpoint(endpoint: EndpointView, dag: DagFacts) -> tuple[PageAction, ...]:
    """Return the actions on an endpoint of webhooks.

    :param dag: the ready DAG ``manage_webhooks``
    """
    key = endpoint.row.key
    which = {"target": key.table, "trigger": key.name, "lake_conn_id": endpoint.lake}
    place = f", from {endpoint.place}" if endpoint.place else ""
    offers = []
    if endpoint.row.is_enabled:
        effect = "Nothing is sent to this endpoint until it is resumed; commits are still queued for it."
        offers.append(("pause", "Pause", effect))
    if endpoint.condition in ("paused", "disabled", "circuit open"):
        effect = f"The endpoint gets what is queued for it when its webhooks are delivered next{place}."
        offers.append(("resume", "Resume", effect))
    if dead := endpoint.counts["dead"]:
        letters = f"{quantity(dead, 'dead letter')} {'is' if dead == 1 else 'are'}"
        when = f"when {'' if endpoint.row.is_enabled else 'it is resumed and '}its webhooks are delivered next{place}"
        effect = f"{letters} queued again, under the same ids, and sent {when}."
        offers.append(("replay", "Replay", effect))
    return tuple(
        dag.start(
            f"{name}-{endpoint.row.id}", label, f"{key.name} of {key.table}: {effect}", body={"action": name, **which}
        )
        for name, label, effect in offers
    )


def deliver(dag: DagFacts) -> PageAction:
    """Return the action that sends webhooks now.

    :param dag: the ready DAG ``deliver_webhooks``
    """
    effect = (
        "A run of the DAG deliver_webhooks queues what is new and sends what is due, for the endpoints of its own"
        f" triggers file and for all tables in {LakeHook.default_conn_name}. Other DAGs send to the endpoints of their"
        " own files."
    )
    return dag.start("deliver", "Deliver now", effect)


def deploy(dag: DagFacts) -> PageAction:
    """Return the action that migrates built-in objects.

    :param dag: the ready DAG ``builtin_migration``
    """
    effect = (
        f"A run of the DAG builtin_migration makes a plan for {LakeHook.default_conn_name}, applies it and checks the"
        " result, as the defaults of its form say: it stops before changes by hand, before a loss of data and before a"
        " view that would break."
    )
    return dag.start("deploy", "Deploy", effect)
