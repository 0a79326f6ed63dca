"""States of many partitions, of which a snapshot can be taken at any time for nothing.

Changes are appended to a log, and a snapshot is a length of it.  Only who looks into a snapshot pays for
its size; so a state after each of n pages costs O(n) in all, where copying a growing list costs O(n²).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from airflow_provider_rfr.streams.state import State, dump_state


class _Change(NamedTuple):
    key: str
    partition: Mapping[str, Any]
    before: State | None
    after: State


class PartitionStates:
    """The log, and the newest state of each partition by its key."""

    def __init__(self) -> None:
        self._log: list[_Change] = []
        self._newest: dict[str, State] = {}

    def get(self, key: str) -> State | None:
        """The newest state; None for a partition never recorded."""
        return self._newest.get(key)

    def record(self, key: str, partition: Mapping[str, Any], state: State) -> None:
        """Append a change; one that changes nothing isn't one."""
        before = self._newest.get(key)
        if before != state:
            self._log.append(_Change(key, partition, before, state))
            self._newest[key] = state

    def snapshot(self) -> StatesSnapshot:
        """All states as they are now, in the order in which partitions were first recorded."""
        return StatesSnapshot(self._log, len(self._log))


class StatesSnapshot(Mapping[str, Any]):
    """``{"states": [{"partition": ..., "cursor": ...}, ...]}``, made when somebody looks.

    Immutable.  ``dict(snapshot)`` can be given to ``json.dumps``.
    """

    __slots__ = ("_length", "_log")

    def __init__(self, log: list[_Change], length: int) -> None:
        self._log = log
        self._length = length

    def __getitem__(self, key: str) -> Any:
        if key != "states":
            raise KeyError(key)
        newest: dict[str, tuple[Mapping[str, Any], State]] = {}
        for change in self._log[: self._length]:
            newest[change.key] = (change.partition, change.after)
        return [{"partition": dict(partition), "cursor": dump_state(state)} for partition, state in newest.values()]

    def __iter__(self) -> Iterator[str]:
        yield "states"

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StatesSnapshot) and other._log is self._log:
            return not self._changed_between(other)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> StatesSnapshot:
        return self

    def __repr__(self) -> str:
        return repr(dict(self))

    def _changed_between(self, other: StatesSnapshot) -> bool:
        """Costs the number of changes between the two, not the number of partitions."""
        start, end = sorted((self._length, other._length))
        first: dict[str, State | None] = {}
        last: dict[str, State] = {}
        for index in range(start, end):
            change = self._log[index]
            first.setdefault(change.key, change.before)
            last[change.key] = change.after
        return any(first[key] != state for key, state in last.items())
