"""Triggers that wait for commits of a table by any program, and for declarations that are not deployed.

The trigger that follows a deferred refresh is in ``refresh``: it needs the Spark provider, whose import would slow down
the parse of every DAG with a sensor.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_rfr import __version__
from airflow_provider_rfr.connections.airflow.lookup import quiet_masking
from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError, DeclarationError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.hooks.lake import CommitsReader, LakeHook, Position

__all__ = ["CommitTrigger", "DeployTrigger"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SEEN = "rfr_commit_seen"
_ANNOUNCED = "rfr_deploy_announced"
_CONNECTION_SECONDS = 60.0
"""Seconds between two reads of a connection that works: at each read, Airflow warns about the ``_`` in its type."""

# Own threads, so that a catalog that hangs does not use up those of other triggers; and others for what ends a driver,
# which must not wait behind polls that hang.
_POLLS = ThreadPoolExecutor(16, thread_name_prefix="rfr-trigger")
_STOPS = ThreadPoolExecutor(8, thread_name_prefix="rfr-stop")

log = logging.getLogger(__name__)


async def in_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Run a blocking function in a thread, with the context variables by which Airflow's log finds the task.

    It uses asgiref and not asyncio: if the function reads a connection, Airflow 3.1 and 3.2 then request it in the
    triggerer's own event loop. From another loop, one answer would be taken for another, and the triggerer would end.
    """
    return await sync_to_async(function, thread_sensitive=False, executor=_POLLS)(*args, **kwargs)


async def in_stop_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Run a blocking function that ends something as :func:`in_thread` does, but never behind polls."""
    return await sync_to_async(function, thread_sensitive=False, executor=_STOPS)(*args, **kwargs)


class CommitTrigger(BaseEventTrigger):
    """A trigger with an event for each commit of a table.

    It is for ``AssetWatcher``, so that commits made outside Airflow schedule DAGs.

    A compaction, which changes no rows, is no event. A catalog that does not answer, and a connection that is missing
    or wrong, do not end the trigger: there is one warning, and the next check is after ``poll_interval``.

    The position of the last event is kept in the asset's state. It is written after the event, so a triggerer that dies
    between the two sends the event again, and never misses it: let the DAG be idempotent by ``snapshot_id``. A watcher
    without a position begins with the next commit; the first commit of a table that does not exist yet is one. Before
    Airflow 3.3 assets have no state, so commits made while no triggerer runs have no event.

    :param table: ``namespace.table``
    :param asset: name of the asset that is watched. Airflow keeps one trigger for equal arguments, so two assets
        need two names here
    :param lake_conn_id: connection of type ``rfr_lake``
    :param poll_interval: seconds between two checks
    """

    # Airflow sets it since 3.3.
    asset_state_store: Any = None

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
        """Yield an event for each commit, without end: table, snapshot, sequence, time, and figures of the summary."""
        known, seen = False, None
        if self.asset_state_store is not None:
            match await self.asset_state_store.aget(_SEEN, default=None):
                case [str(table_uuid), int(sequence)]:
                    known, seen = True, Position(table_uuid, sequence)
                case []:
                    known = True
        lake = _PolledLake(self.lake_conn_id, self.poll_interval, AirflowNotFoundException, ConfigurationError)
        while True:
            with lake.check():
                reader = await lake.reader()
                if not known:
                    known, seen = True, await in_thread(reader.position, self.table)
                    await self._remember(seen)
                for position, commit in await in_thread(reader.commits, self.table, seen):
                    if commit is not None:
                        yield TriggerEvent(commit)
                    seen = position
                    await self._remember(seen)
            await asyncio.sleep(self.poll_interval)

    async def _remember(self, position: Position | None) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(_SEEN, list(position or ()))


class CommitReachedTrigger(BaseTrigger):
    """A trigger with one event, once every table has a commit that the sensor waits for.

    :param tables: names of the tables, ``namespace.table``
    :param after: ISO time with offset; commits after it count
    :param snapshots: by table, the id of a snapshot that counts as well, as do the commits after it
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
        """Yield one event with the newest commit by table."""
        after = datetime.fromisoformat(self.after)
        lake = _PolledLake(self.lake_conn_id, self.poll_interval)
        while True:
            with lake.check():
                reader = await lake.reader()
                commits = await in_thread(reader.newest_after, self.tables, after, self.snapshots)
                if commits is not None:
                    yield TriggerEvent({"commits": commits})
                    return
            await asyncio.sleep(self.poll_interval)


class DeployTrigger(BaseEventTrigger):
    """A trigger with an event when a version of the package or of the declarations is not deployed yet.

    It is for ``AssetWatcher``.

    It compares the digest of the declarations and of the package's version with the last one. If it differs, a plan is
    made. If the plan has steps, is blocked, or can't be made because a declaration is wrong, there is one event for
    that digest. A new version of the package is seen by a triggerer that was restarted with it.

    :param asset: name of the asset that is watched
    :param objects: files or folders of declarations, as absolute paths
    :param project: project that the objects belong to; default ``rfr``
    :param declared_version: version of the code that declares them; None for this package's
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default``
    :param control_store_conn_id: connection of the control store; None for the default
    :param poll_interval: seconds between two checks of the declarations; default 30
    """

    # Airflow sets it since 3.3.
    asset_state_store: Any = None

    def __init__(
        self,
        asset: str,
        objects: Sequence[str] = (),
        project: str = PROJECT,
        declared_version: str | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        poll_interval: float = 30.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asset = asset
        self.objects = list(objects)
        self.project = project
        self.declared_version = declared_version
        self.lake_conn_id = lake_conn_id
        self.control_store_conn_id = control_store_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("asset", "objects", "project", "declared_version", "lake_conn_id", "control_store_conn_id")
        arguments = {name: getattr(self, name) for name in (*names, "poll_interval")}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each digest of declarations that are not deployed: version, digest, number of steps."""
        store = self.asset_state_store
        seen = None if store is None else await store.aget(_ANNOUNCED, default=None)
        problem = _LastProblem()
        while True:
            try:
                # Before the plan: a file that changes while the plan is made has another digest at the next check.
                digest = await in_thread(self._digest)
                event = await in_thread(self._look, digest) if digest != seen else None
            except Exception as error:
                # The lake or the store does not answer, or a file is half written: the next check may succeed.
                if problem.is_new(error):
                    log.warning("The plan can't be made; checked again every %g s", self.poll_interval, exc_info=True)
                await asyncio.sleep(self.poll_interval)
                continue
            problem.clear()
            if event is not None:
                yield TriggerEvent(event)
            if digest != seen:
                seen = digest
                # After the event: a triggerer that dies between the two announces twice, and the second run finds
                # nothing to do. The other way round, a deploy could be missed.
                if store is not None:
                    await store.aset(_ANNOUNCED, digest)
            await asyncio.sleep(self.poll_interval)

    def _digest(self) -> str:
        """Return a digest of the declaring packages' versions, and of every file's name and content."""
        from airflow_provider_rfr.builtins.declarations import GROUP

        digest = hashlib.sha256(f"{__version__}/{self.declared_version}/{self.project}".encode())
        for point in sorted(entry_points(group=GROUP) if self.project == PROJECT else ()):
            digest.update(f"{point}:{point.dist.version if point.dist is not None else None}".encode())
        for root in map(Path, self.objects):
            files = [root] if root.is_file() else sorted(path for path in root.rglob("*.y*ml") if path.is_file())
            for file in files:
                digest.update(f"{file}:{hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
        return digest.hexdigest()

    def _look(self, digest: str) -> dict[str, Any] | None:
        from airflow_provider_rfr.builtins.plan import exit_code

        hook = BuiltinsHook(
            self.objects,
            project=self.project,
            version=self.declared_version,
            lake_conn_id=self.lake_conn_id,
            control_store_conn_id=self.control_store_conn_id,
        )
        try:
            plan = hook.plan()
        except DeclarationError as error:
            return {"digest": digest, "version": self.declared_version or __version__, "problem": str(error)[:2000]}
        if exit_code(plan) == 0:
            return None
        return {"digest": digest, "version": plan.version, "plan_hash": plan.plan_hash, "steps": len(plan.steps)}


class _LastProblem:
    """The error of the last of many checks, so that a problem that stays is logged once."""

    def __init__(self) -> None:
        self._text = ""

    def is_new(self, error: Exception) -> bool:
        """Record the error; tell whether it differs from that of the last check, or the last check succeeded."""
        before, self._text = self._text, f"{type(error).__name__}: {error}"
        return self._text != before

    def clear(self) -> None:
        """Record that a check succeeded."""
        self._text = ""


class _PolledLake:
    """A lake that a trigger checks again and again.

    :param waited_for: errors after which the trigger goes on, besides :class:`CatalogError`
    """

    def __init__(self, conn_id: str, poll_interval: float, *waited_for: type[Exception]) -> None:
        self._conn_id = conn_id
        self._poll_interval = poll_interval
        self._waited_for: tuple[type[Exception], ...] = (CatalogError, *waited_for)
        self._reader: CommitsReader | None = None
        self._read_at = -math.inf
        self._problem = _LastProblem()

    @contextmanager
    def check(self) -> Iterator[None]:
        """Log an error after which the trigger goes on, unless the last check had it as well; raise any other."""
        try:
            yield
            self._problem.clear()
        except self._waited_for as error:
            self._reader = None
            if self._problem.is_new(error):
                log.warning("%s; checked again every %g s", error, self._poll_interval)

    async def reader(self) -> CommitsReader:
        """Return a reader. Its connection is read again after a minute, and after a check that failed."""
        if self._reader is None or time.monotonic() - self._read_at >= _CONNECTION_SECONDS:
            with quiet_masking():
                self._reader = CommitsReader(await BaseHook.aget_connection(self._conn_id))
            self._read_at = time.monotonic()
        return self._reader
