"""Exports that go on across migrations: what was sent is not sent again, what came meanwhile is sent once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.sinks.holds import release_snapshots
    from airflow_provider_rfr.builtins.sinks.run import Limits, SinkRun, run_sink
    from airflow_provider_rfr.builtins.sinks.steps import (
        apply_sink_step,
        map_cursor,
        needed_physicals,
        release_sink,
        sink_states,
    )
    from airflow_provider_rfr.builtins.sinks.targets import FilesTarget, HttpTarget

__all__ = [
    "FilesTarget",
    "HttpTarget",
    "Limits",
    "SinkRun",
    "apply_sink_step",
    "map_cursor",
    "needed_physicals",
    "release_sink",
    "release_snapshots",
    "run_sink",
    "sink_states",
]

_ELSEWHERE = {
    "FilesTarget": "targets",
    "HttpTarget": "targets",
    "Limits": "run",
    "SinkRun": "run",
    "release_snapshots": "holds",
    "run_sink": "run",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: a deploy without sinks needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'steps')}"), name)
