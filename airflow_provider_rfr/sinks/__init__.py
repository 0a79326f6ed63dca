"""Exports that continue across migrations: what was sent is not sent again, what came meanwhile is sent once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr.lazy import lazy_exports

if TYPE_CHECKING:
    from airflow_provider_rfr.sinks.registry import apply_sink_step, needed_physicals, release_sink, sink_states
    from airflow_provider_rfr.sinks._windows import release_snapshots
    from airflow_provider_rfr.sinks.run import Limits, SinkRun, run_sink
    from airflow_provider_rfr.sinks.targets import FilesTarget, HttpTarget

__all__ = [
    "FilesTarget",
    "HttpTarget",
    "Limits",
    "SinkRun",
    "apply_sink_step",
    "needed_physicals",
    "release_sink",
    "release_snapshots",
    "run_sink",
    "sink_states",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "FilesTarget": "targets",
        "HttpTarget": "targets",
        "Limits": "run",
        "SinkRun": "run",
        "apply_sink_step": "registry",
        "needed_physicals": "registry",
        "release_sink": "registry",
        "release_snapshots": "_windows",
        "run_sink": "run",
        "sink_states": "registry",
    },
)
