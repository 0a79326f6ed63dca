"""The lakes of this Airflow and the state in their ledgers: one shared read each, so that a dead one delays no other.

Lakes are the connections of type ``rfr_lake`` in Airflow's database, and the one that operators use by default.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.models.connection import Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_rfr.hooks.common import read_connection
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.tasks import with_tasks
from airflow_provider_rfr.web.deliveries import read_deliveries_of
from airflow_provider_rfr.web.reading import Latest, Problem, SharedRead
from airflow_provider_rfr.web.words import without_cursors

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.lake.catalog import LakeSettings
    from airflow_provider_rfr.refresh.inspection import RefreshDetails
    from airflow_provider_rfr.refresh.status import TableStatus
    from airflow_provider_rfr.store.deliveries import Delivery

_log = logging.getLogger(__name__)

T = TypeVar("T")
_DETAIL_SECONDS: Final = 5.0
_MOST_READS: Final = 64
"""Of single refreshes, deliveries and the like. The longest unused are forgotten, except those that have not ended."""
_CONNECTIONS: Final = "The list of connections in Airflow's database"
_MOST_AT_WORK: Final = 16
"""Of one lake: each is a thread, and in a lake that hangs none of them ends."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """A table's newest refresh in one of the lakes; ``lake`` is the connection's id."""

    lake: str
    status: TableStatus


@dataclass(frozen=True, slots=True)
class Known:
    """The refreshes of all lakes, as they are known.

    :ivar problems: of lakes that can't be read now
    """

    refreshes: tuple[Refresh, ...]
    problems: tuple[Problem, ...]


class Lakes:
    """The lakes as all viewers of this process share them."""

    def __init__(self) -> None:
        self._ids = SharedRead(_lake_ids, seconds=10.0)
        self._statuses: dict[str, SharedRead[tuple[TableStatus, ...]]] = {}
        self._reads: OrderedDict[tuple[str, ...], SharedRead[Any]] = OrderedDict()
        self._catalogs: dict[str, tuple[LakeSettings, Catalog]] = {}
        self._lock = threading.Lock()

    async def known(self) -> Known:
        """Return the newest refresh of each table of each lake."""
        ids = await self._ids.latest()
        if ids.value is None:
            return Known((), ids.problems_with(_CONNECTIONS))
        found = await asyncio.gather(*(self._of(lake_id).latest() for lake_id in ids.value))
        pairs = list(zip(ids.value, found, strict=True))
        return Known(
            tuple(Refresh(lake, status) for lake, latest in pairs for status in latest.value or ()),
            tuple(problem for lake, latest in pairs for problem in latest.problems_with(f"The lake {lake}")),
        )

    async def details(self, refresh: Refresh) -> Latest[RefreshDetails | None]:
        """Return the details of one refresh, and never of an older one, from the ledger's page rows and the target."""
        header = refresh.status.header
        whose = "" if header is None else repr((header.generation, header.dag_id))
        key = ("details", refresh.lake, refresh.status.ledger, whose)
        return await self.shared(key, partial(self._read_details, refresh))

    async def webhooks(self, refresh: Refresh) -> Latest[tuple[Delivery, ...]]:
        """Return deliveries about the refresh's publish."""
        header = refresh.status.header
        snapshot_id = None if header is None else header.snapshot_id
        read = partial(read_deliveries_of, refresh.lake, refresh.status.table, snapshot_id)
        return await self.shared(("webhooks", refresh.lake, refresh.status.table, str(snapshot_id)), read)

    async def each_lake(
        self, name: str, read: Callable[[str], T], seconds: float = 2.0
    ) -> tuple[list[tuple[str, T]], list[Problem]]:
        """Read from each lake, and return the values by the lake's connection, and the problems with other lakes.

        :param name: what is read, for people
        """
        known = await self._ids.latest()
        ids = known.value or ()
        found = await asyncio.gather(*(self.shared((name, id_), partial(read, id_), seconds) for id_ in ids))
        pairs = list(zip(ids, found, strict=True))
        values = [(lake, pair.value) for lake, pair in pairs if pair.value is not None]
        problems = [one for lake, pair in pairs for one in pair.problems_with(f"The {name} of {lake}")]
        return values, problems if known.value is not None else list(known.problems_with(_CONNECTIONS))

    async def shared(self, key: tuple[str, ...], read: Callable[[], T], seconds: float = _DETAIL_SECONDS) -> Latest[T]:
        """Return the latest value of any other read that viewers share, under a key of its own."""
        found: SharedRead[T] = self._reads.pop(key) if key in self._reads else SharedRead(read, seconds)
        self._reads[key] = found
        # One that reads is kept: whoever asks again shall wait for it, and not begin another one.
        idle = [other for other, read in self._reads.items() if read.is_idle and other != key]
        for other in idle[: max(0, len(self._reads) - _MOST_READS)]:
            del self._reads[other]
        at_work = sum(other[1:2] == key[1:2] and not read.is_idle for other, read in self._reads.items())
        return await found.latest(may_begin=at_work < _MOST_AT_WORK)

    def catalog(self, lake: str) -> Catalog:
        """Return the catalog; it is opened again only if its connection has changed."""
        from airflow_provider_rfr.lake.catalog import open_catalog

        settings = LakeHook(lake).get_lake_settings()
        with self._lock:
            known = self._catalogs.get(lake)
        if known is not None and known[0] == settings:
            return known[1]
        catalog = open_catalog(settings)
        with self._lock:
            self._catalogs[lake] = settings, catalog
        return catalog

    def _of(self, lake: str) -> SharedRead[tuple[TableStatus, ...]]:
        return self._statuses.setdefault(lake, SharedRead(partial(self._read_statuses, lake)))

    def _read_statuses(self, lake: str) -> tuple[TableStatus, ...]:
        from airflow_provider_rfr.refresh.inspection import read_again, statuses

        catalog = self.catalog(lake)
        return tuple(map(_showable, with_tasks(statuses(catalog), partial(read_again, catalog))))

    def _read_details(self, refresh: Refresh) -> RefreshDetails | None:
        from airflow_provider_rfr.refresh.inspection import read_details

        return read_details(self.catalog(refresh.lake), refresh.status)


def _showable(status: TableStatus) -> TableStatus:
    """Return the status without cursors in errors, so that no page can show one, and no search can find one."""
    header = status.header
    if header is not None:
        past = tuple(
            replace(generation, error=generation.error and without_cursors(generation.error))
            for generation in header.past
        )
        header = replace(header, error=header.error and without_cursors(header.error), past=past)
    return replace(status, sentence=without_cursors(status.sentence), header=header)


def prepare() -> None:
    """Import slow modules in a thread, so that the first viewer does not wait for them."""

    def load() -> None:
        from airflow_provider_rfr.refresh import inspection  # noqa: F401

    threading.Thread(target=load, name="rfr-page-imports", daemon=True).start()


def _lake_ids() -> tuple[str, ...]:
    with create_session() as session:
        query = select(Connection.conn_id).where(Connection.conn_type == LakeHook.conn_type)
        found = {str(row) for row in session.scalars(query)}
    default = LakeHook.default_conn_name
    if found and default not in found:
        try:
            # It may be in the environment, or in a secrets backend.
            read_connection(default)
        except AirflowNotFoundException:
            return tuple(sorted(found))
        except Exception as error:  # noqa: BLE001 - of any backend; the lake's own read tells it, and hides no other
            _log.debug("%s can't be read", default, exc_info=error)
    return tuple(sorted({*found, default}))
