"""What is wanted: every declared object with its final name, its fingerprints and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from airflow_provider_rfr.builtins.fingerprint import Fingerprints
from airflow_provider_rfr.builtins.graph import Graph
from airflow_provider_rfr.builtins.spec import STORED, BuiltinObject, CatalogSpec, Kind
from airflow_provider_rfr.builtins.state import Dependency, LiveKind, LiveObject, RecordedObject

ColumnsOf = Callable[[str], tuple[str, ...] | None]


class Reading(Protocol):
    """A name and the columns of it that a query uses."""

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> Sequence[str] | None: ...


@dataclass(frozen=True)
class Tools:
    """Whatever reads declarations and SQL, given, so that a plan is a function of values alone.

    :ivar canonicalizer: names what writes canonical SQL; another one, and texts can't be compared
    :ivar fingerprints: of an object of a catalog
    :ivar reads: what an object reads, given the names that are known
    :ivar expand: an object's query with its stars written out, given the columns of what it reads
    :ivar outputs: the columns of its result, likewise
    :ivar same_logic: whether a recorded object's query, written by another canonicalizer, is the one that is wanted
    """

    canonicalizer: str
    fingerprints: Callable[[BuiltinObject, CatalogSpec], Fingerprints]
    reads: Callable[[BuiltinObject, Container[str]], Iterable[Reading]]
    expand: Callable[[BuiltinObject, ColumnsOf], str]
    outputs: Callable[[BuiltinObject, ColumnsOf], tuple[str, ...]]
    same_logic: Callable[[BuiltinObject, RecordedObject], bool]


@dataclass(frozen=True, slots=True)
class Want:
    """One object as it should be, beside what is recorded and what is there.

    :ivar obj: with its final name and id
    :ivar sql: the query as it is to be executed
    :ivar instance: id of the instance that it is generated for
    """

    obj: BuiltinObject
    fingerprints: Fingerprints
    reads: tuple[Dependency, ...] = ()
    sql: str | None = None
    recorded: RecordedObject | None = None
    live: LiveObject | None = None
    instance: str | None = None

    @property
    def uuid(self) -> UUID:
        return self.obj.id

    @property
    def key(self) -> str:
        """The name as it is compared."""
        return self.obj.key

    @property
    def kind(self) -> Kind:
        return self.obj.kind

    @property
    def protect(self) -> str | None:
        """Why it must not be emptied. That it no longer says so counts from the next deploy on."""
        return self.obj.protect or (self.recorded.protect if self.recorded is not None else None)


@dataclass(frozen=True)
class Wanted:
    """Everything that is wanted.

    :ivar wants: by id, what is read before its readers
    :ivar graph: of what is read now
    :ivar removed: tombstones by id
    :ivar problems: by id, in words
    :ivar kept: ids that are recorded, not wanted and not to be touched
    :ivar unlisted: what is one object for each instance, where nobody says which there are
    """

    wants: Mapping[UUID, Want]
    graph: Graph[UUID]
    removed: Mapping[UUID, BuiltinObject] = field(default_factory=dict)
    problems: Mapping[UUID, Sequence[str]] = field(default_factory=dict)
    kept: frozenset[UUID] = frozenset()
    unlisted: tuple[BuiltinObject, ...] = ()


def relation(kind: Kind) -> LiveKind | None:
    """What a catalog sees of it; of a sink, nothing."""
    if kind in STORED:
        return LiveKind.TABLE
    return LiveKind.VIEW if kind is Kind.VIEW else None


def rank(want: Want) -> tuple[int, str]:
    """Among objects that could come next: tables before views before sinks, then by name."""
    return (2 if want.kind is Kind.SINK else int(want.kind is Kind.VIEW), want.key)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version. What follows them is left out: a development version is of the release it leads to."""
    numbers: list[int] = []
    for part in version.removeprefix("v").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def is_gone(obj: BuiltinObject, version: str) -> bool:
    """Whether the object is a tombstone in this version."""
    return obj.removed is not None and release(obj.removed.removed_in) <= release(version)
