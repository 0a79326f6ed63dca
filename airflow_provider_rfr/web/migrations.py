"""Built-in objects: what the registry holds, the last deploys, and what a deploy would do now."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.web.deliveries import control_store

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins import Plan
    from airflow_provider_rfr.builtins.state import RecordedObject
    from airflow_provider_rfr.store.deploys import Deploy, JournalStep

SECONDS: Final = 30.0
"""Between two plans: each one reads the metadata of every table."""
_DEPLOYS: Final = 20


@dataclass(frozen=True, slots=True)
class Migrations:
    """The project of built-in objects in one lake.

    :ivar steps: of the newest deploy
    :ivar broken_views: name and reason
    :ivar garbage: tables that wait to be deleted
    :ivar plan: of what this server's package and its ``RFR_BUILTIN_OBJECTS`` declare; None where none can be made
    :ivar problem: why not
    """

    version: str | None = None
    revision: int = 0
    objects: tuple[RecordedObject, ...] = ()
    deploys: tuple[Deploy, ...] = ()
    steps: tuple[JournalStep, ...] = ()
    broken_views: tuple[tuple[str, str], ...] = ()
    garbage: tuple[str, ...] = ()
    plan: Plan | None = None
    text: str = ""
    problem: str | None = None


def read_migrations(lake: str) -> Migrations:
    """:param lake: id of the lake's connection"""
    from airflow_provider_rfr.builtins.planning.render import render
    from airflow_provider_rfr.store import deploys

    store = control_store()
    if store is None:
        return Migrations(problem="there is no control store yet; the first deploy makes one")
    with store.read() as connection:
        history = deploys.history(connection, PROJECT, _DEPLOYS)
        steps = deploys.steps_of(connection, history[0].deploy_id) if history else ()
        garbage = tuple(each.physical for each in deploys.queued(connection, PROJECT))
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
    return Migrations(
        version=recorded.version,
        revision=recorded.revision,
        objects=recorded.objects,
        deploys=history,
        steps=steps,
        broken_views=tuple((each.name, each.broken) for each in live.user_views if each.broken is not None),
        garbage=garbage,
        plan=plan,
        text="" if plan is None else render(plan),
        problem=problem,
    )


def _hook(lake: str) -> tuple[BuiltinsHook, str | None]:
    """Of what this server declares, or of nothing, and why."""
    declared = [path for path in os.environ.get("RFR_BUILTIN_OBJECTS", "").split(os.pathsep) if path]
    try:
        return BuiltinsHook(declared, lake_conn_id=lake), None
    except RfrError as error:
        return BuiltinsHook(lake_conn_id=lake), str(error)
