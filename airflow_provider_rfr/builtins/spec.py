"""Declarations as immutable values, compared by content; and the rules for names of objects and columns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from uuid import UUID, uuid5

from airflow_provider_rfr.lake.types import is_plain
from airflow_provider_rfr.sinks.spec import SinkSpec

_NAMESPACE: Final = UUID("5f0a1d5e-6a0f-5a3b-9d5c-7f6d1f6f8f10")
_RETIRED: Final = re.compile(r"__g([0-9a-f]{8})$", re.IGNORECASE)
"""Suffix of a retired table's name, followed by eight hex digits; its properties stay what they were."""
_MOST_COMPARED: Final = 500
LONGEST_PART: Final = 100
"""Characters of one part of a name: catalogs take 128, and a suffix has to fit too."""


class Kind(str, Enum):
    """The kind of an object."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized_view"
    SOURCE = "source"
    SINK = "sink"
    LOG = "log"


STORED = frozenset({Kind.TABLE, Kind.MATERIALIZED_VIEW, Kind.SOURCE, Kind.LOG})
"""Kinds with an Iceberg table behind them."""
QUERIED = frozenset({Kind.VIEW, Kind.MATERIALIZED_VIEW})
"""Kinds whose contents are a query."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a declaration, without a file for Python objects; equal to every other place."""

    file: str | None = field(default=None, compare=False)
    line: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return "declared in Python" if self.file is None else f"{self.file}:{self.line or 1}"


@dataclass(frozen=True, slots=True)
class Was:
    """A former state of a column, from which its values are carried over.

    :ivar name: the name that it had; None: the present one
    :ivar type: the type that it had, as canonical text; None: any
    :ivar using: SQL over the columns of then that makes its values; None: they are taken as they are. With neither name
        nor type, it makes them where they can't be taken: for an incompatible type, and for a column that is new
    :ivar fields: names that fields of structs had, by their present paths inside the column, e.g. ``{geo.lat: y}``
    """

    name: str | None = None
    type: str | None = None
    using: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    :ivar type: canonical text, e.g. ``bigint``, ``decimal(10,2)``, ``array<string>``, ``struct<a:int,b:string>``
    :ivar was: what it was in versions before, the newest first; the one that meets the live table is taken
    """

    name: str
    type: str
    required: bool = False
    comment: str | None = None
    was: tuple[Was, ...] = ()


@dataclass(frozen=True, slots=True)
class Dependency:
    """An object that another one reads, by its name as compared; without an id: not one of ours, or not looked up.

    :ivar columns: those that are used, sorted, as they are compared; some too many where a query does not say whose a
        column is. None: all, or it can't be known
    """

    name: str
    uuid: UUID | None = None
    columns: tuple[str, ...] | None = None


class Named:
    """Something with a name, which is compared without case."""

    __slots__ = ()
    name: str

    @property
    def key(self) -> str:
        """Return the name as it is compared."""
        return self.name.casefold()


@dataclass(frozen=True, slots=True)
class Removed(Named):
    """A reviewed document: the object, or ``namespace.table.column``, may go with its rows."""

    name: str
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class BuiltinObject(Named):
    """One declared object.

    :ivar name: ``namespace.name``; compared without case
    :ivar id: stable for life; made from the project and the first name where none is written
    :ivar query: of a view or a materialized view, as its author wrote it
    :ivar depends_on: names that the query reads, for a query that can't be parsed
    :ivar keep: True: its rows are lost only where somebody accepts that by name; False: they may be made again; a text:
        the reason why no acceptance counts
    :ivar exportable: whether users may attach sinks
    :ivar per_instance: name of the instances (one object each, its name generated), e.g. ``lake``
    :ivar source: what a ``source`` reads: arguments of a resumable refresh
    :ivar refresh: how and when it, or a materialized view, is refreshed: the operator's other arguments, and
        ``schedule``; in no fingerprint, for nothing is deployed
    """

    kind: Kind
    name: str
    id: UUID
    columns: tuple[Column, ...] = ()
    keep: bool | str = True
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    owner: str | None = None
    query: str | None = None
    depends_on: tuple[str, ...] = ()
    exportable: bool = False
    per_instance: str | None = None
    source: Mapping[str, Any] | None = None
    refresh: Mapping[str, Any] | None = None
    sink: SinkSpec | None = None
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class Instance:
    """One of those for which objects are generated; its id stays when it is renamed."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CatalogSpec:
    """Everything that this version of the code declares, sorted by name; instances by their ``per_instance`` names.

    If a name is not among these, its instances are unknown.
    """

    project: str
    version: str
    objects: tuple[BuiltinObject, ...]
    instances: Mapping[str, tuple[Instance, ...]] = field(default_factory=dict)
    removed: tuple[Removed, ...] = ()

    def by_key(self) -> dict[str, BuiltinObject]:
        return {obj.key: obj for obj in self.objects}


def stable_id(project: str, first_name: str) -> UUID:
    """Return the id of an object that declares none.

    It is always made from the project and the first name, so a renamed object has to declare its id.
    """
    return uuid5(_NAMESPACE, f"{project}/{first_name.casefold()}")


def present_names(names: Iterable[str], columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the present names of columns: a former name is replaced, an unknown name stays unchanged."""
    now = {was.name.casefold(): column.name for column in columns for was in column.was if was.name is not None}
    now |= {column.name.casefold(): column.name for column in columns}
    return tuple(now.get(name.casefold(), name) for name in names)


def namespace_of(name: str) -> str:
    return name.rpartition(".")[0]


def retired_name(name: str, deploy_id: str) -> str:
    """Return the name that a deploy gives to a table which it retires."""
    return f"{name}__g{deploy_id[:8]}"


def retired_by(name: str) -> str | None:
    """Return the start of the id of the deploy that retired the table; None if it is not retired."""
    found = _RETIRED.search(name)
    return found[1].lower() if found else None


def name_problem(name: str) -> str | None:
    """Return the problem with the name of an object; None if the name is valid."""
    parts = name.split(".")
    if len(parts) < 2:
        return f"{name!r} has no namespace"
    if len(parts) > 2:
        return f"{name!r} has a namespace inside another one, which SQL, Hive and Glue catalogs can't hold"
    for part in parts:
        if not is_plain(part):
            return f"{name!r} is not a name: its parts are letters, digits and underscores, and begin with no digit"
        if len(part) > LONGEST_PART:
            return f"{part[:20]}... is longer than {LONGEST_PART} characters"
    if retired_by(name) is not None:
        return f"{name!r} ends like the tables that a deploy puts aside"
    return None


def nearest(name: str, names: Iterable[str], *, show: int = 20) -> str:
    """Return a sentence with the nearest of the valid names, and all of them if they are few."""
    valid = sorted(names)
    close = difflib.get_close_matches(name, valid, n=1) if len(valid) <= _MOST_COMPARED else []
    allowed = [f"allowed: {', '.join(valid)}"] if 0 < len(valid) <= show else []
    return " ".join([*(f"did you mean {name}?" for name in close), *allowed])
