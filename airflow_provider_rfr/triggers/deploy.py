"""The trigger that starts a deploy when the declarations have changed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_rfr import __version__
from airflow_provider_rfr.exceptions import DeclarationError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.triggers.commit import LastProblem

log = logging.getLogger(__name__)

_ANNOUNCED = "rfr_deploy_announced"


class DeployTrigger(BaseEventTrigger):
    """A trigger with an event when a version of the package or of the declarations is not deployed yet.

    It is for ``AssetWatcher``.

    It compares the content of the declarations and the package's version with the last ones. If they differ, a plan is
    made, and if that has steps, or is blocked, there is one event for that content. A new version of the package is
    seen by a triggerer that was restarted with it.

    :param asset: name of the asset that is watched
    :param objects: files or folders of declarations, as absolute paths
    :param project: that the objects belong to; default ``rfr``
    :param declared_version: of the code that declares them; None for this package's
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default``
    :param control_store_conn_id: connection of the control store; None for the default
    :param poll_interval: seconds between two looks at the declarations; default 30
    """

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
        """Yield an event for each content that is not deployed: version, digest, and the number of steps."""
        store = self.asset_state_store
        seen = None if store is None else await store.aget(_ANNOUNCED, default=None)
        problem = LastProblem()
        while True:
            try:
                # Before the plan: a file that changes while the plan is made has another digest at the next look.
                digest = await asyncio.to_thread(self._digest)
                event = await asyncio.to_thread(self._look, digest) if digest != seen else None
            except Exception as error:
                # The lake or the store is away, or a file is half written: the next look may succeed.
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
        """Return a digest of the versions of the packages that declare, and of every file, by name and content."""
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
