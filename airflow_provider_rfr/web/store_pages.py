"""The control store as the pages show it: webhooks, uses of connections, and built-in objects.

Endpoints come with their deliveries and the last attempts; connections with names and states, without values;
built-in objects with the registry, the last deploys, and the plan of a deploy.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.task_states import states_of_refreshes, states_of_uses
from airflow_provider_rfr.store import deliveries as rows
from airflow_provider_rfr.store.engine import ControlStore, find_store

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.model import RecordedObject
    from airflow_provider_rfr.builtins.plan import Plan
    from airflow_provider_rfr.refresh.state import TableStatus
    from airflow_provider_rfr.store.connections import AlterationRecord, Use
    from airflow_provider_rfr.store.deliveries import Delivery, EndpointRow
    from airflow_provider_rfr.store.deploys import Deploy, JournalStep
    from airflow_provider_rfr.web.access import Viewer

_OF_READY_DAG: Final = re.compile(r" of DAG deliver_webhooks(?: \(|$)")
_ATTEMPTS: Final = 200
_ATTEMPTS_READ: Final = 1000
"""More attempts than are shown, because some may be of DAGs that the viewer may not see."""
_SHOWN_OF_COMMIT: Final = 50
PLAN_SECONDS: Final = 30.0
"""Pause between two plans, because each one reads the metadata of every table."""
_DEPLOYS: Final = 20
_ALTERATIONS: Final = 200
_stores: dict[str, tuple[tuple[int, int] | None, ControlStore]] = {}


@dataclass(frozen=True, slots=True)
class EndpointView:
    """An endpoint of webhooks, as the page shows it.

    :ivar lake: id of the lake's connection
    :ivar dag_ids: DAGs whose runs made the commits of its deliveries; it holds None for commits without a DAG
    :ivar condition: disabled, paused, circuit open, failing, dead letters, pending or ok
    :ivar counts: number of its deliveries, by state
    :ivar latency: median of its last attempts, in milliseconds; None without attempts
    :ivar place: the task or the file that sends to it; empty if it is not known, or this viewer may not see it
    """

    lake: str
    row: EndpointRow
    dag_ids: frozenset[str | None]
    condition: str
    counts: dict[str, int]
    latency: float | None
    place: str

    @property
    def is_of_ready_dag(self) -> bool:
        """Tell whether the DAG ``deliver_webhooks`` sends to it."""
        return self.lake == LakeHook.default_conn_name and bool(_OF_READY_DAG.search(self.place))


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The webhooks of one lake in the control store.

    :ivar attempts: rows of attempts that ended, whose answers were masked when they were stored. ``lake`` is the id of
        the lake's connection, ``dag_ids`` are the DAGs whose runs made the commits, with None for no DAG
    """

    endpoints: tuple[EndpointView, ...] = ()
    attempts: tuple[Mapping[str, Any], ...] = ()

    def seen_by(self, viewer: Viewer) -> Webhooks:
        """Return the attempts and endpoints of which the viewer may see all DAGs."""
        dag_ids = (
            *(attempt["dag_ids"] for attempt in self.attempts),
            *(endpoint.dag_ids for endpoint in self.endpoints),
        )
        viewer.learn(frozenset().union(*dag_ids))
        attempts = [attempt for attempt in self.attempts if all(map(viewer.sees, attempt["dag_ids"]))]
        endpoints = [endpoint for endpoint in self.endpoints if all(map(viewer.sees, endpoint.dag_ids))]
        if not viewer.sees_all_dags:
            # A place may name a DAG that made none of the commits.
            endpoints = [replace(endpoint, place="") for endpoint in endpoints]
        return Webhooks(tuple(endpoints), tuple(attempts[:_ATTEMPTS]))

    @classmethod
    def of_lakes(cls, by_lake: Sequence[Webhooks]) -> Webhooks:
        """Return the webhooks of several connections.

        Connections of one catalog have the same webhooks, which appear once, with the first of these connections.
        """
        endpoints = {endpoint.row.id: endpoint for lake in reversed(by_lake) for endpoint in lake.endpoints}
        attempts = {
            (attempt["id"], attempt["number"]): attempt for lake in reversed(by_lake) for attempt in lake.attempts
        }
        newest = sorted(attempts.values(), key=lambda attempt: -attempt["at"])
        # Endpoints with dead deliveries first, and then those that do not work.
        shown = sorted(
            endpoints.values(),
            key=lambda view: (-view.counts["dead"], view.condition in ("ok", "pending"), view.lake, str(view.row.key)),
        )
        return cls(tuple(shown), tuple(newest[:_ATTEMPTS]))

    @property
    def lakes(self) -> frozenset[str]:
        return frozenset(endpoint.lake for endpoint in self.endpoints).union(
            attempt["lake"] for attempt in self.attempts
        )


def control_store() -> ControlStore | None:
    """Return the control store, opened once for each address; None if there is none yet: reading creates none."""
    hook = ControlStoreHook()
    if not hook.is_there():
        return None
    url = hook.url.render_as_string(hide_password=False)
    file = None
    if hook.url.get_backend_name() == "sqlite":
        # Device and inode change if another file replaces SQLite's.
        with suppress(OSError):
            status = Path(str(hook.url.database)).stat()
            file = status.st_dev, status.st_ino
    opened = _stores.get(url)
    if opened is not None and opened[0] == file:
        return opened[1]
    store = find_store(url)
    if opened is not None:
        opened[1].close()
    if store is not None:
        _stores[url] = file, store
    return store


def read_webhooks(lake: str) -> Webhooks:
    """Read the webhooks of a lake.

    :param lake: id of the lake's connection
    """
    store = control_store()
    if store is None:
        return Webhooks()
    name = LakeHook(lake).get_lake_settings().name
    with store.read() as connection:
        now = store.now(connection)
        endpoints = rows.endpoints_of_table(connection, name)
        counts = rows.counts_by_endpoint(connection, name)
        attempts = rows.newest_attempts(connection, name, _ATTEMPTS_READ)
    times: dict[int, list[int]] = defaultdict(list)
    for attempt in attempts:
        times[attempt["endpoint_id"]].append(attempt["milliseconds"])
    nothing = dict.fromkeys(("pending", "delivered", "dead", "cancelled", "merged"), 0)
    views = []
    for endpoint in endpoints:
        count = counts.get(endpoint.id, nothing)
        views.append(
            EndpointView(
                lake=lake,
                row=endpoint,
                dag_ids=endpoint.dag_ids or frozenset({None}),
                condition=_condition(endpoint, count, now),
                counts=count,
                latency=median(times[endpoint.id]) if endpoint.id in times else None,
                place=endpoint.newest_place,
            )
        )
    return Webhooks(tuple(views), tuple({**attempt, "lake": lake} for attempt in attempts))


def read_deliveries_of(lake: str, table: str, snapshot_id: int | None) -> tuple[Delivery, ...]:
    """Return deliveries about one commit, the newest first."""
    store = control_store()
    if store is None or snapshot_id is None:
        return ()
    selection = rows.Selection(lake=LakeHook(lake).get_lake_settings().name, tables=(table,), snapshot_id=snapshot_id)
    with store.read() as connection:
        return tuple(rows.select_deliveries(connection, selection, _SHOWN_OF_COMMIT))


def _condition(row: EndpointRow, counts: Mapping[str, int], now: int) -> str:
    if row.disabled_at is not None:
        return "disabled"
    if row.paused_at is not None:
        return "paused"
    if row.is_circuit_open(now):
        return "circuit open"
    if row.failing and counts["pending"]:
        return "failing"
    if counts["dead"]:
        return "dead letters"
    return "pending" if counts["pending"] else "ok"


class ConnectionRow(NamedTuple):
    """A row of the list of connections: one use of a connection.

    :ivar use: None for a connection that nothing uses
    :ivar stale: number of tasks with a stale copy of the connection
    """

    conn_id: str
    use: Use | None
    stale: int


@dataclass(frozen=True, slots=True)
class ConnectionUses:
    """A connection with its uses on one page of the list; ``stale`` counts those of all pages."""

    conn_id: str
    uses: tuple[Use, ...]
    stale: int

    @classmethod
    def grouped(cls, rows: Sequence[ConnectionRow]) -> tuple[ConnectionUses, ...]:
        """Return the connections of rows that are sorted by connection."""
        groups = groupby(rows, key=lambda row: (row.conn_id, row.stale))
        return tuple(
            cls(conn_id, tuple(row.use for row in of_it if row.use is not None), stale)
            for (conn_id, stale), of_it in groups
        )


@dataclass(frozen=True, slots=True)
class Connections:
    """The uses and alterations of connections in the control store."""

    uses: tuple[Use, ...] = ()
    alterations: tuple[AlterationRecord, ...] = ()

    def with_refreshes(self, statuses: Sequence[TableStatus]) -> Connections:
        """Return a copy in which the use of a task that refreshes has the state of its refresh."""
        states = states_of_refreshes(statuses)
        uses = (replace(use, state=states[use.task].value) if use.task in states else use for use in self.uses)
        return replace(self, uses=tuple(uses))

    def seen_by(self, viewer: Viewer) -> tuple[tuple[ConnectionRow, ...], tuple[AlterationRecord, ...]]:
        """Return uses of connections that the viewer may read, by tasks of DAGs that the viewer may see."""
        viewer.learn({use.task.dag_id for use in self.uses})
        uses = [use for use in self.uses if viewer.sees(use.task.dag_id)]
        by_connection: dict[str, list[Use]] = defaultdict(list)
        stale: Counter[str] = Counter()
        for use in uses:
            for copy in use.connections:
                by_connection[copy.conn_id].append(use)
                stale[copy.conn_id] += copy.is_stale
        readable = viewer.connections({*by_connection, *(alteration.conn_id for alteration in self.alterations)})
        rows = [
            ConnectionRow(conn_id, use, stale[conn_id])
            for conn_id in sorted(readable)
            for use in by_connection.get(conn_id) or (None,)
        ]
        return tuple(rows), tuple(alteration for alteration in self.alterations if alteration.conn_id in readable)


def read_connections() -> Connections:
    from airflow_provider_rfr.store.connections import list_alterations, list_uses

    store = control_store()
    if store is None:
        return Connections()
    with store.read() as connection:
        uses = list_uses(connection)
        alterations = tuple(list_alterations(connection, limit=_ALTERATIONS))
    states = states_of_uses(uses)
    return Connections(tuple(replace(use, state=states[use.task]) for use in uses), alterations)


@dataclass(frozen=True, slots=True)
class Project:
    """A deployed project of built-in objects, as the control store records it for all lakes.

    :ivar steps: steps of the newest deploy
    :ivar garbage: tables that wait to be deleted
    """

    name: str
    version: str | None
    revision: int
    objects: tuple[RecordedObject, ...]
    deploys: tuple[Deploy, ...]
    steps: tuple[JournalStep, ...]
    garbage: tuple[str, ...]

    @property
    def is_planned(self) -> bool:
        """Tell whether the page shows a plan of it, which it does only for the project of the ready DAG."""
        return self.name == PROJECT


@dataclass(frozen=True, slots=True)
class InLake:
    """The state of the ready DAG's project in one lake.

    :ivar is_deployed: whether any of the deployed objects exists in this lake
    :ivar broken_views: users' views that are broken, as name and reason
    :ivar plan: plan of the declarations of this server's package and ``RFR_BUILTIN_OBJECTS``; None if it can't be made
    :ivar text: the plan in words
    :ivar problem: why there is no plan
    """

    is_deployed: bool
    broken_views: tuple[tuple[str, str], ...]
    plan: Plan | None
    text: str
    problem: str | None


def read_projects() -> tuple[Project, ...]:
    """Read the projects that were deployed, sorted by name; none if there is no control store yet."""
    from airflow_provider_rfr.builtins.maintenance import read_recorded
    from airflow_provider_rfr.store import deploys

    store = control_store()
    if store is None:
        return ()
    projects = []
    with store.read() as connection:
        for name in deploys.deployed_projects(connection):
            recorded = read_recorded(connection, name)
            history = deploys.history(connection, name, _DEPLOYS)
            project = Project(
                name=name,
                version=recorded.version,
                revision=recorded.revision,
                objects=recorded.objects,
                deploys=history,
                steps=deploys.steps_of(connection, history[0].deploy_id),
                garbage=tuple(retired.physical for retired in deploys.queued(connection, name)),
            )
            projects.append(project)
    return tuple(projects)


def read_in_lake(lake: str) -> InLake | None:
    """Read the state of the ready DAG's project in one lake; None if there is no control store yet.

    :param lake: id of the lake's connection
    """
    from airflow_provider_rfr.builtins.plan import render

    store = control_store()
    if store is None:
        return None
    plan: Plan | None = None
    problem: str | None = None
    declared = [path for path in os.environ.get("RFR_BUILTIN_OBJECTS", "").split(os.pathsep) if path]
    try:
        hook = BuiltinsHook(declared, lake_conn_id=lake)
    except RfrError as error:
        hook, problem = BuiltinsHook(lake_conn_id=lake), str(error)
    # Otherwise the hook would open a store of its own.
    hook.store = store
    with closing(hook.catalog):
        recorded, live = hook.observe()
        try:
            plan = hook.plan() if problem is None else None
        except RfrError as error:
            problem = str(error)
    return InLake(
        is_deployed=any(obj.marker in recorded.by_uuid for obj in live.objects.values()),
        broken_views=tuple(
            (user_view.name, user_view.broken) for user_view in live.user_views if user_view.broken is not None
        ),
        plan=plan,
        text="" if plan is None else render(plan),
        problem=problem,
    )
