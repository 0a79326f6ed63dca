"""Webhooks as the control store has them: endpoints with their deliveries, and the last attempts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.store import deliveries as rows
from airflow_provider_rfr.store.engine import ControlStore, find_store

if TYPE_CHECKING:
    from sqlalchemy import URL, RowMapping

    from airflow_provider_rfr.store.deliveries import Delivery, EndpointRow
    from airflow_provider_rfr.web.access import Viewer

_ATTEMPTS: Final = 200
_ATTEMPTS_READ: Final = 1000
"""More than are shown, because not all of them are of DAGs that the viewer may see."""
_SHOWN_OF_COMMIT: Final = 50
_stores: dict[str, tuple[tuple[int, int] | None, ControlStore]] = {}


@dataclass(frozen=True, slots=True)
class EndpointView:
    """An endpoint.

    :ivar lake: id of the lake's connection
    :ivar dag_ids: of the runs that made the commits it was told of; None in it for no DAG
    :ivar condition: disabled, paused, circuit open, failing, dead letters or ok
    :ivar counts: of its deliveries, by state
    :ivar latency: median of its last attempts, in milliseconds; None where there is none
    """

    lake: str
    row: EndpointRow
    dag_ids: frozenset[str | None]
    condition: str
    counts: dict[str, int]
    latency: float | None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt that ended; its answer was masked when it was stored.

    :ivar lake: id of the lake's connection
    :ivar dag_ids: of the runs that made the commits of which it told; None in it for no DAG
    """

    lake: str
    dag_ids: frozenset[str | None]
    row: RowMapping


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The control store's knowledge of one lake's webhooks."""

    endpoints: tuple[EndpointView, ...] = ()
    attempts: tuple[AttemptView, ...] = ()

    def seen_by(self, viewer: Viewer) -> Webhooks:
        """Return the attempts and endpoints that concern no other DAGs than those that the viewer may see."""
        dag_ids = (*(attempt.dag_ids for attempt in self.attempts), *(endpoint.dag_ids for endpoint in self.endpoints))
        viewer.learn(frozenset().union(*dag_ids))
        attempts = [attempt for attempt in self.attempts if all(map(viewer.sees, attempt.dag_ids))]
        return Webhooks(
            tuple(endpoint for endpoint in self.endpoints if all(map(viewer.sees, endpoint.dag_ids))),
            tuple(attempts[:_ATTEMPTS]),
        )

    @classmethod
    def of_lakes(cls, by_lake: Sequence[Webhooks]) -> Webhooks:
        """Return the webhooks of several connections.

        Connections of one catalog have the same webhooks, which appear once, with the first of these connections.
        """
        endpoints = {endpoint.row.id: endpoint for lake in reversed(by_lake) for endpoint in lake.endpoints}
        attempts = {
            (attempt.row["id"], attempt.row["number"]): attempt
            for lake in reversed(by_lake)
            for attempt in lake.attempts
        }
        newest = sorted(attempts.values(), key=lambda attempt: -attempt.row["at"])
        # Endpoints with dead deliveries first, and then those that do not work.
        shown = sorted(
            endpoints.values(),
            key=lambda view: (-view.counts["dead"], view.condition == "ok", view.lake, str(view.row.key)),
        )
        return cls(tuple(shown), tuple(newest[:_ATTEMPTS]))

    @property
    def lakes(self) -> frozenset[str]:
        return frozenset(endpoint.lake for endpoint in self.endpoints).union(attempt.lake for attempt in self.attempts)


def control_store() -> ControlStore | None:
    """Return the control store, opened once for each address; None if there is none yet: reading creates none."""
    hook = ControlStoreHook()
    if not hook.is_there():
        return None
    url = hook.url.render_as_string(hide_password=False)
    opened, file = _stores.get(url), _file_of(hook.url)
    if opened is not None and opened[0] == file:
        return opened[1]
    store = find_store(url)
    if opened is not None:
        opened[1].close()
    if store is not None:
        _stores[url] = file, store
    return store


def _file_of(url: URL) -> tuple[int, int] | None:
    """Return the identity of the file at SQLite's path: another file may have replaced the opened one."""
    if url.get_backend_name() != "sqlite":
        return None
    with suppress(OSError):
        status = Path(str(url.database)).stat()
        return status.st_dev, status.st_ino
    return None


def read_webhooks(lake: str) -> Webhooks:
    """Read the webhooks of a lake.

    :param lake: id of the lake's connection
    """
    store = control_store()
    if store is None:
        return Webhooks()
    name = LakeHook(lake).get_lake_document().name
    with store.read() as connection:
        now = store.now(connection)
        endpoints = rows.endpoints_of_table(connection, name)
        counts = rows.counts_by_endpoint(connection, name)
        attempts = rows.newest_attempts(connection, name, _ATTEMPTS_READ)
    nothing = dict.fromkeys(("pending", "delivered", "dead", "cancelled", "merged"), 0)
    views = [
        EndpointView(
            lake=lake,
            row=endpoint,
            dag_ids=endpoint.dag_ids or frozenset({None}),
            condition=_condition(endpoint, counts.get(endpoint.id, nothing)["dead"], now),
            counts=counts.get(endpoint.id, nothing),
            latency=_latency(endpoint, attempts),
        )
        for endpoint in endpoints
    ]
    return Webhooks(tuple(views), tuple(AttemptView(lake, attempt["dag_ids"], attempt) for attempt in attempts))


def read_deliveries_of(lake: str, table: str, snapshot_id: int | None) -> tuple[Delivery, ...]:
    """Return deliveries about one commit, the newest first."""
    store = control_store()
    if store is None or snapshot_id is None:
        return ()
    selection = rows.Selection(lake=LakeHook(lake).get_lake_document().name, tables=(table,), snapshot_id=snapshot_id)
    with store.read() as connection:
        return tuple(rows.select_deliveries(connection, selection, _SHOWN_OF_COMMIT))


def _condition(row: EndpointRow, dead: int, now: int) -> str:
    if row.disabled_at is not None:
        return "disabled"
    if row.paused_at is not None:
        return "paused"
    if row.is_circuit_open(now):
        return "circuit open"
    if row.failing:
        return "failing"
    return "dead letters" if dead else "ok"


def _latency(row: EndpointRow, attempts: Sequence[Any]) -> float | None:
    times = [attempt["milliseconds"] for attempt in attempts if attempt["endpoint_id"] == row.id]
    return median(times) if times else None
