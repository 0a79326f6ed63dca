"""The lakes of this Airflow and the state in their ledgers, by a shared read for each, so that no lake delays another.

Lakes are the connections of type ``rfr_lake`` in Airflow's database, and the one that operators use by default. All
viewers share the reads: one at a time, none sooner than two seconds after the last, each in its own thread. A catalog
that is slow or dead costs a viewer a bounded wait. Then the page shows the last value and says how old it is.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from airflow.models.connection import Connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_rfr.connections.airflow.lookup import read_connection
from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.task_states import with_tasks
from airflow_provider_rfr.web.access import FailedRead
from airflow_provider_rfr.web.display import without_cursors
from airflow_provider_rfr.web.store_pages import read_deliveries_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.lake.catalog import LakeSettings
    from airflow_provider_rfr.lake.sample import TableSample
    from airflow_provider_rfr.refresh.inspection import RefreshDetails
    from airflow_provider_rfr.refresh.state import TableStatus
    from airflow_provider_rfr.store.deliveries import Delivery

_log = logging.getLogger(__name__)

T = TypeVar("T")
_LONG_WAIT_SECONDS: Final = 3.0
"""Longest wait of a viewer while no value is known, or only an old one; the page asks again by itself."""
_WAIT_SECONDS: Final = 1.0
"""Longest wait of a viewer while a recent value can be shown."""
_OLD_SECONDS: Final = 10.0
"""A value is old if its next read is overdue by this, because nobody looked at the page for a while."""
_LOST_SECONDS: Final = 120.0
"""Time after which a read counts as lost, and another one may begin: a connection that is cut off may hang for ever.
It doubles with each lost read, so that hanging reads stay few."""
_PAUSE_BY_READ: Final = 3.0
_LONGEST_PAUSE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Latest(Generic[T]):
    """The latest value of a read.

    :ivar value: value of the last read that succeeded; None before the first
    :ivar age: age of the value, in seconds
    :ivar problem: why there is no newer value, without secrets; None if the last read succeeded
    """

    value: T | None
    age: float
    problem: str | None

    def problems_with(self, subject: str, lake: str = "") -> tuple[FailedRead, ...]:
        """Return a problem if there is no newer value, else nothing.

        :param subject: subject of the problem's sentence
        :param lake: id of the connection of the lake that was read; empty if the read concerns all lakes
        """
        if self.problem is None:
            return ()
        shown = f"What is shown is {self.age:.0f} s old." if self.value is not None else "Nothing of it is shown."
        return (FailedRead(f"{subject} can't be read now: {self.problem}.", shown, lake),)


class SharedRead(Generic[T]):
    """A value that is read once for all viewers.

    :param read: blocking function; runs in a thread of its own
    :param seconds: pause between the end of a read and the next one; longer after a read that took long, so that a
        large lake does not keep the server busy
    """

    def __init__(
        self, read: Callable[[], T], seconds: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._value: T | None = None
        self._problem: str | None = None
        self._read_at = self._ended = self._began = self._pause = 0.0
        self._was_asked = False
        self._running: Future[None] | None = None
        self._lost = 0

    @property
    def is_idle(self) -> bool:
        return self._running is None and self._lost == 0

    async def latest(self, *, may_begin: bool = True) -> Latest[T]:
        """Return the latest value. If a read is due, begin it, and wait for it for a bounded time.

        :param may_begin: if False, begin no read, and wait only for one that is under way
        """
        with self._lock:
            now = self._clock()
            if may_begin and self._running is not None and now - self._began > _LOST_SECONDS * 2**self._lost:
                # Its thread can't be ended. It counts as lost until it ends by itself, so that the limit grows.
                self._running, self._lost = None, self._lost + 1
            is_fresh = self._was_asked and now - self._ended < self._pause
            if may_begin and self._running is None and not is_fresh:
                begun: Future[None] = Future()
                # No thread of a pool, because Python waits for those when it exits.
                threading.Thread(target=self._run, args=(begun, now), name="rfr-page", daemon=True).start()
                self._running, self._began, self._was_asked = begun, now, True
            running = self._running
        if running is not None:
            now = self._clock()
            is_old = self._value is None or now - self._read_at > self._pause + _OLD_SECONDS
            left = (_LONG_WAIT_SECONDS if is_old else _WAIT_SECONDS) - (now - self._began)
            if left > 0:
                await asyncio.wait([asyncio.wrap_future(running)], timeout=left)
        with self._lock:
            now, problem = self._clock(), self._problem
            if self._running is not None and now - self._began >= _LONG_WAIT_SECONDS:
                problem = f"no answer for {now - self._began:.0f} s"
            elif self._running is not None and self._value is None and problem is None:
                problem = "it is being read for the first time"
            elif self._running is None and not may_begin:
                problem = "too many other reads have not ended yet"
            return Latest(self._value, max(0.0, now - self._read_at), problem)

    def _run(self, running: Future[None], began: float) -> None:
        value: T | None = None
        problem = None
        try:
            value = self._read()
        except RfrError as error:
            problem = str(error)
        except BaseException as error:  # noqa: BLE001 - of any library, Rust panics too; texts may hold secrets
            problem = f"{type(error).__name__}; the log of the API server may say more"
            if problem != self._problem:
                where = "".join(traceback.format_tb(error.__traceback__))
                _log.warning("a page of the refreshes can't be read: %s at\n%s", type(error).__name__, where)
            _log.debug("reading failed", exc_info=error)
        with self._lock:
            if self._running is running:
                self._running, self._ended, self._problem = None, self._clock(), problem
                took = self._ended - self._began
                self._pause = max(self._seconds, min(_PAUSE_BY_READ * took, _LONGEST_PAUSE_SECONDS))
                if problem is None:
                    self._value, self._read_at = value, self._ended
            else:
                self._lost -= 1
                if problem is None and began > self._read_at:
                    # This read was given up as lost, but its value is newer than the known one.
                    self._value, self._read_at = value, self._clock()
        running.set_result(None)


_DETAIL_SECONDS: Final = 5.0
_MOST_READS: Final = 64
"""Limit of kept reads of single refreshes, deliveries and the like. The least recently used are dropped, unless they
are under way."""
_CONNECTIONS: Final = "The list of connections in Airflow's database"
_MOST_AT_WORK: Final = 16
"""Limit of reads of one lake that are under way: each is a thread, and if the lake hangs none of them ends."""


@dataclass(frozen=True, slots=True)
class LakeRefresh:
    """A table's newest refresh in one of the lakes; ``lake`` is the connection's id."""

    lake: str
    status: TableStatus


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The refreshes of all lakes, as they were read last.

    :ivar problems: failed reads of lakes that can't be read now
    """

    refreshes: tuple[LakeRefresh, ...]
    problems: tuple[FailedRead, ...]

    def problems_of(self, lake: str) -> tuple[FailedRead, ...]:
        """Return the problems because of which refreshes of this lake may be missing."""
        return tuple(problem for problem in self.problems if problem.lake in (lake, ""))


class Lakes:
    """The lakes of this Airflow, with the reads and catalogs that all viewers of this process share."""

    def __init__(self) -> None:
        self._ids = SharedRead(_lake_ids, seconds=10.0)
        self._statuses: dict[str, SharedRead[tuple[TableStatus, ...]]] = {}
        self._reads: OrderedDict[tuple[str, ...], SharedRead[Any]] = OrderedDict()
        self._catalogs: dict[str, tuple[LakeSettings, Catalog]] = {}
        self._lock = threading.Lock()

    async def snapshot(self) -> Snapshot:
        """Return the newest refresh of each table of each lake."""
        ids = await self._ids.latest()
        if ids.value is None:
            return Snapshot((), ids.problems_with(_CONNECTIONS))
        latest_statuses = await asyncio.gather(
            *(
                self._statuses.setdefault(lake, SharedRead(partial(self._read_statuses, lake))).latest()
                for lake in ids.value
            )
        )
        pairs = list(zip(ids.value, latest_statuses, strict=True))
        return Snapshot(
            tuple(LakeRefresh(lake, status) for lake, latest in pairs for status in latest.value or ()),
            tuple(problem for lake, latest in pairs for problem in latest.problems_with(f"The lake {lake}", lake)),
        )

    async def details(self, refresh: LakeRefresh) -> Latest[RefreshDetails | None]:
        """Return the details of one refresh, and never of an older one, from the ledger's page rows and the target."""
        header = refresh.status.header
        whose = "" if header is None else repr((header.generation, header.dag_id))
        key = ("details", refresh.lake, refresh.status.ledger, whose)
        return await self.shared(key, partial(self._read_details, refresh))

    async def rows(self, refresh: LakeRefresh) -> Latest[TableSample | None]:
        """Return rows of the refreshed table. The caller has checked the viewer's right to them."""
        table = refresh.status.table
        return await self.shared(("rows", refresh.lake, table), partial(self._read_rows, refresh.lake, table), 30.0)

    async def webhooks(self, refresh: LakeRefresh) -> Latest[tuple[Delivery, ...]]:
        """Return deliveries about the refresh's publish."""
        header = refresh.status.header
        snapshot_id = None if header is None else header.snapshot_id
        read = partial(read_deliveries_of, refresh.lake, refresh.status.table, snapshot_id)
        return await self.shared(("webhooks", refresh.lake, refresh.status.table, str(snapshot_id)), read)

    async def each_lake(
        self, name: str, read: Callable[[str], T], seconds: float = 2.0
    ) -> tuple[list[tuple[str, T]], list[FailedRead]]:
        """Read from each lake, and return the values by the lake's connection, and the problems with other lakes.

        :param name: name of the values, for messages
        """
        latest_ids = await self._ids.latest()
        ids = latest_ids.value or ()
        reads = await asyncio.gather(*(self.shared((name, lake), partial(read, lake), seconds) for lake in ids))
        pairs = list(zip(ids, reads, strict=True))
        values = [(lake, latest.value) for lake, latest in pairs if latest.value is not None]
        problems = [problem for lake, latest in pairs for problem in latest.problems_with(f"The {name} of {lake}")]
        return values, problems if latest_ids.value is not None else list(latest_ids.problems_with(_CONNECTIONS))

    async def shared(self, key: tuple[str, ...], read: Callable[[], T], seconds: float = _DETAIL_SECONDS) -> Latest[T]:
        """Return the latest value of the shared read with this key, which is created if there is none.

        :param key: kind of the value, the id of the lake's connection if it is of one lake, and further parts
        """
        shared: SharedRead[T] = self._reads.pop(key) if key in self._reads else SharedRead(read, seconds)
        self._reads[key] = shared
        # A read that is under way is kept, so that the next request waits for it and does not begin another one.
        idle = [other for other, read in self._reads.items() if read.is_idle and other != key]
        for other in idle[: max(0, len(self._reads) - _MOST_READS)]:
            del self._reads[other]
        at_work = sum(other[1:2] == key[1:2] and not read.is_idle for other, read in self._reads.items())
        return await shared.latest(may_begin=at_work < _MOST_AT_WORK)

    def catalog(self, lake: str) -> Catalog:
        """Return the catalog; it is opened again only if its connection has changed."""
        from airflow_provider_rfr.lake.catalog import open_catalog

        settings = LakeHook(lake).get_lake_settings()
        with self._lock:
            opened = self._catalogs.get(lake)
        if opened is not None and opened[0] == settings:
            return opened[1]
        # Without the lock: a catalog that does not answer would keep the readers of all other lakes waiting.
        catalog = open_catalog(settings)
        with self._lock:
            self._catalogs[lake] = settings, catalog
        return catalog

    def settings(self, lake: str) -> LakeSettings | None:
        """Return the settings with which the catalog was opened; None before that."""
        with self._lock:
            opened = self._catalogs.get(lake)
        return None if opened is None else opened[0]

    def _read_statuses(self, lake: str) -> tuple[TableStatus, ...]:
        """Read the statuses; mask page tokens in their errors, so that no page shows one, and no search finds one."""
        from airflow_provider_rfr.refresh.inspection import read_again, statuses

        catalog = self.catalog(lake)
        shown = []
        for status in with_tasks(statuses(catalog), partial(read_again, catalog)):
            header = status.header
            if header is not None:
                past = tuple(
                    replace(generation, error=generation.error and without_cursors(generation.error))
                    for generation in header.past
                )
                earlier = tuple(
                    replace(attempt, error=attempt.error and without_cursors(attempt.error))
                    for attempt in header.earlier
                )
                error = header.error and without_cursors(header.error)
                header = replace(header, error=error, past=past, earlier=earlier)
            shown.append(replace(status, sentence=without_cursors(status.sentence), header=header))
        return tuple(shown)

    def _read_rows(self, lake: str, table: str) -> TableSample | None:
        from airflow_provider_rfr.lake.catalog import load_table
        from airflow_provider_rfr.lake.sample import sample_of

        loaded = load_table(self.catalog(lake), table)
        return None if loaded is None else sample_of(loaded)

    def _read_details(self, refresh: LakeRefresh) -> RefreshDetails | None:
        from airflow_provider_rfr.refresh.inspection import read_details

        return read_details(self.catalog(refresh.lake), refresh.status)


def prepare() -> None:
    """Import slow modules in a thread, so that the first viewer does not wait for them."""

    def load() -> None:
        from airflow_provider_rfr.refresh import inspection  # noqa: F401

    threading.Thread(target=load, name="rfr-page-imports", daemon=True).start()


def _lake_ids() -> tuple[str, ...]:
    with create_session() as session:
        query = select(Connection.conn_id).where(Connection.conn_type == LakeHook.conn_type)
        ids = {str(conn_id) for conn_id in session.scalars(query)}
    default = LakeHook.default_conn_name
    if ids and default not in ids:
        try:
            # The default connection may be in the environment, or in a secrets backend.
            read_connection(default)
        except AirflowNotFoundException:
            return tuple(sorted(ids))
        except Exception as error:  # noqa: BLE001 - of any backend; the lake's own read reports it, and hides no other
            _log.debug("%s can't be read", default, exc_info=error)
    return tuple(sorted({*ids, default}))
