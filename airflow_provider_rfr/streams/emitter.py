"""Turns the states that a checkpoint reader gives into messages with record counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_rfr.streams.messages import StateMessage
from airflow_provider_rfr.streams.state_manager import ConnectorStateManager, frozen_state


class StateEmitter:
    """The states of one stream.

    A state equal to the one before, without a record between them, is not emitted.

    :param seconds: a state that comes sooner than that after the last message, or after the start, is
        held back; a later one replaces it and takes over its records
    """

    def __init__(
        self,
        stream: str,
        namespace: str | None,
        manager: ConnectorStateManager,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._namespace = namespace
        self._manager = manager
        self._seconds = seconds
        self._clock = clock
        self._emitted_at = clock()
        self._records = 0
        self._last: Mapping[str, Any] | None = None
        self._held: StateMessage | None = None

    def count_record(self) -> None:
        """One record was yielded."""
        self._records += 1

    def offer(self, state: Mapping[str, Any] | None) -> Iterator[StateMessage]:
        """Take a state, None being none; yields it, holds it back, or drops it as already emitted."""
        if state is None or (not self._records and state == self._last):
            return
        self._last = frozen_state(state)
        held = self._held.record_count if self._held else 0
        self._held = StateMessage(self._stream, self._last, held + self._records, self._namespace)
        self._records = 0
        self._manager.update_state_for_stream(self._stream, self._namespace, self._last)
        if self._clock() - self._emitted_at >= self._seconds:
            yield from self.flush()

    def flush(self) -> Iterator[StateMessage]:
        """The state that is held back, if any."""
        held, self._held = self._held, None
        if held is not None:
            self._emitted_at = self._clock()
            yield held
