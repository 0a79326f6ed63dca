"""Sources: streams, their slices and states, and how they are read.

Nothing here needs Airflow or Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.streams.checkpoint_readers import (
    CheckpointReader,
    FullRefreshCheckpointReader,
    IncrementalCheckpointReader,
    ResumableFullRefreshCheckpointReader,
)
from airflow_provider_rfr.streams.context import Limiter, ReadContext
from airflow_provider_rfr.streams.core import IncrementalMixin, LogMessage, StateMixin, Stream
from airflow_provider_rfr.streams.cursor_readers import (
    CursorBasedCheckpointReader,
    LegacyCursorBasedCheckpointReader,
)
from airflow_provider_rfr.streams.page import Page
from airflow_provider_rfr.streams.paged import PagedStream, as_paged
from airflow_provider_rfr.streams.slices import StreamSlice
from airflow_provider_rfr.streams.state import Complete, NextPage, NotStarted, State, dump_state, load_state

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.rest import RestStream

__all__ = [
    "CheckpointReader",
    "Complete",
    "CursorBasedCheckpointReader",
    "FullRefreshCheckpointReader",
    "IncrementalCheckpointReader",
    "IncrementalMixin",
    "LegacyCursorBasedCheckpointReader",
    "Limiter",
    "LogMessage",
    "NextPage",
    "NotStarted",
    "Page",
    "PagedStream",
    "ReadContext",
    "RestStream",
    "ResumableFullRefreshCheckpointReader",
    "State",
    "StateMixin",
    "Stream",
    "StreamSlice",
    "as_paged",
    "dump_state",
    "load_state",
]


def __getattr__(name: str) -> Any:
    if name == "RestStream":  # requests and tenacity are only loaded by who uses them
        from airflow_provider_rfr.streams.rest import RestStream

        return RestStream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
