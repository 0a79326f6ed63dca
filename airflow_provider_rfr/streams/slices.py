"""Stream slices: the units of work that a stream divides itself into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.state import State, load_state

RESERVED_KEYS = frozenset({"partition", "cursor_slice"})


class SliceError(ConfigurationError, ValueError):
    """A stream slice has the wrong shape."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__("stream_slices", problem, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.remedy)


class StreamSlice(Mapping[str, Any]):
    """A partition, and where its reading stands.

    Reads as one flat mapping, in which the partition's keys win over a token's keys of the same name;
    ``partition`` and ``cursor_slice`` keep the two apart.  Equal to every mapping with the same items.

    :ivar partition: identifies the unit of work; ``{}`` for a stream that isn't divided
    :ivar cursor_slice: state in the flat form, ``{}`` at the start
    """

    __slots__ = ("cursor_slice", "partition")

    def __init__(
        self, partition: Mapping[str, Any] | None = None, cursor_slice: Mapping[str, Any] | None = None
    ) -> None:
        self.partition: Mapping[str, Any] = dict(partition or {})
        self.cursor_slice: Mapping[str, Any] = dict(cursor_slice or {})

    @property
    def state(self) -> State:
        """The cursor slice as a structured state."""
        return load_state(self.cursor_slice)

    def __getitem__(self, key: str) -> Any:
        return self.partition[key] if key in self.partition else self.cursor_slice[key]

    def __iter__(self) -> Iterator[str]:
        yield from self.partition
        yield from (key for key in self.cursor_slice if key not in self.partition)

    def __len__(self) -> int:
        return len(self.partition.keys() | self.cursor_slice.keys())

    def __repr__(self) -> str:
        return f"StreamSlice(partition={self.partition!r}, cursor_slice={self.cursor_slice!r})"


def as_stream_slice(value: Any) -> StreamSlice:
    """A stream's own slice as a StreamSlice; None, as old streams yield, is the empty one.

    :raises SliceError: no mapping
    """
    if isinstance(value, StreamSlice):
        return value
    if value is None or isinstance(value, Mapping):
        return StreamSlice(partition=value)
    raise SliceError(f"{value!r} is not a mapping", "yield one mapping for each unit of work")


def legacy_slice(stream_slice: StreamSlice) -> dict[str, Any]:
    """The dictionary that streams written for the CDK get: flat keys, and both parts by name.

    :raises SliceError: the partition uses one of those two names
    """
    taken = RESERVED_KEYS & stream_slice.partition.keys()
    if taken:
        raise SliceError(
            f"a slice may not have the key {sorted(taken)[0]!r}, which is reserved",
            "rename it, or make the stream a PagedStream",
        )
    parts = {"partition": dict(stream_slice.partition), "cursor_slice": dict(stream_slice.cursor_slice)}
    return {**stream_slice, **parts}
