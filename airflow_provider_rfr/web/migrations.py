"""Built-in objects: the registry, the last deploys, and the plan of a deploy."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.web.deliveries import control_store

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.model import RecordedObject
    from airflow_provider_rfr.builtins.plan import Plan
    from airflow_provider_rfr.store.deploys import Deploy, JournalStep

SECONDS: Final = 30.0
"""Between two plans: each one reads the metadata of every table."""
_DEPLOYS: Final = 20


@dataclass(frozen=True, slots=True)
class Project:
    """The project of built-in objects, as the control store has it: there is one, whatever lakes there are.

    :ivar steps: of the newest deploy
    :ivar garbage: tables that wait to be deleted
    """

    version: str | None
    revision: int
    objects: tuple[RecordedObject, ...]
    deploys: tuple[Deploy, ...]
    steps: tuple[JournalStep, ...]
    garbage: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InLake:
    """The state of the project in one lake.

    :ivar is_deployed: whether any of the objects that were deployed is there
    :ivar broken_views: name and reason
    :ivar plan: of what this server's package and its ``RFR_BUILTIN_OBJECTS`` declare; None where none can be made
    :ivar problem: why not
    """

    is_deployed: bool
    broken_views: tuple[tuple[str, str], ...]
    plan: Plan | None
    text: str
    problem: str | None


def read_project() -> Project | None:
    """Read the project from the control store; None if there is no control store yet."""
    from airflow_provider_rfr.builtins.maintenance import read_recorded
    from airflow_provider_rfr.store import deploys

    store = control_store()
    if store is None:
        return None
    with store.read() as connection:
        recorded = read_recorded(connection, PROJECT)
        history = deploys.history(connection, PROJECT, _DEPLOYS)
        return Project(
            version=recorded.version,
            revision=recorded.revision,
            objects=recorded.objects,
            deploys=history,
            steps=deploys.steps_of(connection, history[0].deploy_id) if history else (),
            garbage=tuple(retired.physical for retired in deploys.queued(connection, PROJECT)),
        )


def read_in_lake(lake: str) -> InLake | None:
    """Read the state of the project in one lake; None if there is no control store yet.

    :param lake: id of the lake's connection
    """
    from airflow_provider_rfr.builtins.plan import render

    store = control_store()
    if store is None:
        return None
    hook, problem = _hook(lake)
    plan = None
    # Else the hook opens a store of its own.
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


def _hook(lake: str) -> tuple[BuiltinsHook, str | None]:
    """Return a hook with this server's declarations; if they are invalid, a hook without any, and the error."""
    declared = [path for path in os.environ.get("RFR_BUILTIN_OBJECTS", "").split(os.pathsep) if path]
    try:
        return BuiltinsHook(declared, lake_conn_id=lake), None
    except RfrError as error:
        return BuiltinsHook(lake_conn_id=lake), str(error)
