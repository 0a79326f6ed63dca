"""Triggers that wait for commits of a table, made by any program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_provider_rfr.exceptions import CatalogError
from airflow_provider_rfr.hooks.commits import CommitsReader, Position
from airflow_provider_rfr.hooks.common import quiet_masking
from airflow_provider_rfr.hooks.lake import LakeHook

log = logging.getLogger(__name__)

_SEEN = "rfr_commit_seen"


class CommitTrigger(BaseEventTrigger):
    """An event for each commit of a table: for ``AssetWatcher``, so that commits made outside Airflow schedule DAGs.

    The position of the last event is kept in the asset's state. It is written after the event, so a triggerer that dies
    between the two sends an event twice, and never not at all: let the DAG be idempotent by ``snapshot_id``. A watcher
    without a position begins with the next commit; the first one of a table that is not there yet counts as one.

    :param table: ``namespace.table``
    :param asset: name of the asset that is watched. Airflow keeps one trigger for equal arguments, so two assets
        need two names here
    :param lake_conn_id: connection of type ``rfr_lake``
    :param poll_interval: seconds between two checks
    """

    def __init__(
        self, table: str, asset: str, lake_conn_id: str = LakeHook.default_conn_name, poll_interval: float = 30.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.asset = asset
        self.lake_conn_id = lake_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in ("table", "asset", "lake_conn_id", "poll_interval")}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """An event for each commit, without end: table, snapshot, sequence, time, and the summary's own figures."""
        known, seen = False, None
        if self.asset_state_store is not None:
            match await self.asset_state_store.aget(_SEEN, default=None):
                case [str(table_uuid), int(sequence)]:
                    known, seen = True, Position(table_uuid, sequence)
                case []:
                    known = True
        while True:
            with _until_it_answers(self.poll_interval):
                reader = await _reader(self.lake_conn_id)
                if not known:
                    known, seen = True, await asyncio.to_thread(reader.position, self.table)
                    await self._remember(seen)
                for position, commit in await asyncio.to_thread(reader.commits, self.table, seen):
                    yield TriggerEvent(commit)
                    seen = position
                    await self._remember(seen)
            await asyncio.sleep(self.poll_interval)

    async def _remember(self, position: Position | None) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(_SEEN, list(position or ()))


class CommitReachedTrigger(BaseTrigger):
    """One event, once every table has a commit later than the sensor waits for.

    :param tables: ``namespace.table`` each
    :param after: ISO time with offset; commits after it count
    :param snapshots: by table, a snapshot that counts as well
    :param lake_conn_id: connection of type ``rfr_lake``
    :param poll_interval: seconds between two checks
    """

    _ARGUMENTS = ("tables", "after", "snapshots", "lake_conn_id", "poll_interval")

    def __init__(
        self, tables: Sequence[str], after: str, snapshots: Mapping[str, str], lake_conn_id: str, poll_interval: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tables = list(tables)
        self.after = after
        self.snapshots = dict(snapshots)
        self.lake_conn_id = lake_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in self._ARGUMENTS}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The newest commit by table."""
        after = datetime.fromisoformat(self.after)
        while True:
            with _until_it_answers(self.poll_interval):
                reader = await _reader(self.lake_conn_id)
                commits = await asyncio.to_thread(reader.newest_after, self.tables, after, self.snapshots)
                if commits is not None:
                    yield TriggerEvent({"commits": commits})
                    return
            await asyncio.sleep(self.poll_interval)


@contextmanager
def _until_it_answers(poll_interval: float) -> Iterator[None]:
    """A catalog that does not answer once ends no wait of hours."""
    try:
        yield
    except CatalogError as error:
        log.warning("%s; checked again in %g s", error, poll_interval)


async def _reader(lake_conn_id: str) -> CommitsReader:
    """A reader with today's connection: one that is altered while a trigger waits is used from its next check on."""
    with quiet_masking():
        return CommitsReader(await BaseHook.aget_connection(lake_conn_id))
