"""What a read loop yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from airflow_provider_rfr.streams.core import LogMessage


class StreamStatus(Enum):
    """How far the reading of a stream is.  COMPLETE and INCOMPLETE are final."""

    STARTED = "STARTED"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    INCOMPLETE = "INCOMPLETE"


class SyncMode(Enum):
    """What the reader of a stream asks for."""

    FULL_REFRESH = "full_refresh"
    INCREMENTAL = "incremental"


@dataclass(frozen=True, slots=True)
class RecordMessage:
    """One record."""

    stream: str
    record: Mapping[str, Any]
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class StateMessage:
    """Everything that the state covers was yielded before it.

    :ivar state: immutable; ``dict(state)`` is its JSON form
    :ivar record_count: records of the stream that this state covers and the one before it did not
    """

    stream: str
    state: Mapping[str, Any]
    record_count: int = 0
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class StatusMessage:
    """A stream went over to another status."""

    stream: str
    status: StreamStatus
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """Why a stream ended INCOMPLETE."""

    stream: str
    error: Exception
    namespace: str | None = None


Message: TypeAlias = RecordMessage | StateMessage | StatusMessage | ErrorMessage | LogMessage
