"""Sources: streams, their slices and states, and how they are read.

Nothing here needs Airflow or Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr import lazy_exports
from airflow_provider_rfr.streams.checkpoint import (
    CheckpointReader,
    CursorBasedCheckpointReader,
    FullRefreshCheckpointReader,
    IncrementalCheckpointReader,
    LegacyCursorBasedCheckpointReader,
    ResumableFullRefreshCheckpointReader,
)
from airflow_provider_rfr.streams.core import (
    Complete,
    IncrementalMixin,
    Limiter,
    LogMessage,
    NextPage,
    NotStarted,
    Page,
    ReadContext,
    State,
    StateMixin,
    Stream,
    StreamSlice,
    dump_state,
    load_state,
)
from airflow_provider_rfr.streams.paged import PagedStream, as_paged

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

# Importing this package must not load requests: DAGs are parsed with it.
__getattr__ = lazy_exports(__name__, {"rest": ("RestStream",)})
