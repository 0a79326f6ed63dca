"""Registry and catalog as values that a plan compares with the declarations, and values as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import orjson

from airflow_provider_rfr.builtins.spec import Column, Dependency, Kind, Named, no_entries
from airflow_provider_rfr.sinks.spec import SinkState

Value = TypeVar("Value")
_SORTED = orjson.OPT_SORT_KEYS


def dumps(value: Any) -> bytes:
    """Canonical JSON of a value type: the same bytes for equal values."""
    return orjson.dumps(value, default=_plain, option=_SORTED)


def encode(value: Any) -> Any:
    """The value as JSON's own types: fields by name, enums by value, ids as texts."""
    return orjson.loads(dumps(value))


@cache
def _adapter(kind: Any) -> Any:
    # Imported here: reading DAGs needs these values, but decodes none.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def decode(kind: type[Value], document: Mapping[str, Any]) -> Value:
    """The value that :func:`encode` made the document of. Missing fields take their defaults, unknown ones are ignored.

    :raises ValueError: a field is missing that has no default, or a value is not of its type; no value is shown
    """
    from pydantic import ValidationError

    try:
        decoded: Value = _adapter(cast(Any, kind)).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return decoded


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


MARKER: Final = "rfr.object-id"
"""Property of whatever we made: the object's id. Nothing without it is ever dropped or replaced."""
PROJECT: Final = "rfr.project"
DEPLOY: Final = "rfr.deploy-id"
"""Property: the deploy that changed it last."""
STAMP: Final = "rfr.contract"
"""Property: fingerprint of the contract that the columns are of, written in the same commit as they are."""
STEP: Final = "rfr.step"
"""Property: ``<deploy>/<seq>`` of the step that changed it last, written in the same commit as the change."""
DONE: Final = "rfr.done"
"""Property: what the object was brought to, see :func:`done_mark`: after a deploy that died, nothing is done twice."""
BRIDGED: Final = "rfr.bridged"
"""Property of a user's view with its own text, which it gets back. It counts as long as the view has that text within
casts: a view that is replaced keeps its properties."""
BROKEN: Final = "rfr.broken"
"""Property of a user's view: its text's digest, and why it broke. It counts as long as the view has that text: a view
that is replaced keeps its properties."""
WAS: Final = "rfr.was"
"""Property ``<revision>/<JSON>``: the names that the table's columns had, as the deploy which changed it last was told,
and the registry's revision that it was planned from; written in the same commit as the columns. As long as the registry
is at that revision, that deploy did not finish, and the record does not know what it did."""
EMPTIED: Final = "rfr.emptied"
"""Property ``<revision>/<deploy>``: the deploy that emptied or made the table, and the registry's revision that it was
planned from. As long as the registry is at that revision, that deploy did not finish."""


def broken_mark(query: str, why: str) -> str:
    """The value of :data:`BROKEN` for a view with this text."""
    return f"{hashlib.sha256(' '.join(query.split()).encode()).hexdigest()[:16]} {why}"


def was_mark(base: int, columns: Iterable[Column]) -> str:
    """The value of :data:`WAS` for a table with these columns."""
    named = ((each.name.casefold(), [was.name.casefold() for was in each.was if was.name]) for each in columns)
    return f"{base}/{dumps({name: names for name, names in named if names}).decode()}"


def names_since(base: int, properties: Mapping[str, str]) -> Mapping[str, Sequence[str]] | None:
    """What :func:`was_mark` wrote for this revision; None: nothing."""
    at, _, names = properties.get(WAS, "").partition("/")
    found: Mapping[str, Sequence[str]] | None = orjson.loads(names) if at == str(base) else None
    return found


@dataclass(frozen=True, slots=True)
class RecordedObject(Named):
    """An object as the last deploy that changed it left it: what was declared, and what became of it.

    :ivar contract: digest of number, names and types of the columns, which a live table carries
    :ivar definition: what a source reads or a sink sends, without secrets
    :ivar raw_sql: the query as its author wrote it
    :ivar sql: the query as it was executed, its stars written out
    :ivar canonicalizer: what read the query; another one may find other ``deps`` in the same text
    :ivar revision: of the registry, when this was written
    :ivar instance: id of the instance that it was generated for; its name was then generated once and is kept
    """

    uuid: UUID
    name: str
    kind: Kind
    contract: str = ""
    definition: str | None = None
    canonicalizer: str = ""
    raw_sql: str | None = None
    columns: tuple[Column, ...] = ()
    deps: tuple[Dependency, ...] = ()
    keep: bool | str = True
    exportable: bool = False
    revision: int = 0
    deploy_id: str = ""
    sql: str | None = None
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=no_entries)
    comment: str | None = None
    owner: str | None = None
    instance: str | None = None


def done_mark(base: int, record: RecordedObject, inputs: Iterable[tuple[UUID, str]] = ()) -> str:
    """A mark of an object in its desired state, made of the current state of its inputs.

    :param base: revision of the registry that the deploy was planned from: another mark for each deploy that finishes
    :param record: what is to be recorded of it
    :param inputs: ids of what it reads, with the last step of each
    """
    wanted = replace(record, revision=base, deploy_id="")
    said = dumps((wanted, sorted((str(identity), step) for identity, step in inputs)))
    return f"{base}/{hashlib.sha256(said).hexdigest()}"


@dataclass(frozen=True)
class RegistryState:
    """The registry.

    :ivar revision: goes up with each write; a plan holds for one revision alone
    :ivar version: of the code that wrote last; None before the first deploy
    """

    revision: int = 0
    version: str | None = None
    objects: tuple[RecordedObject, ...] = ()
    sinks: tuple[SinkState, ...] = ()

    @cached_property
    def by_uuid(self) -> dict[UUID, RecordedObject]:
        return {each.uuid: each for each in self.objects}


class LiveKind(str, Enum):
    """Kinds that a catalog distinguishes."""

    TABLE = "table"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a live table keeps besides its columns."""

    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveObject(Named):
    """A table or a view as the catalog shows it.

    :ivar marker: id that its properties name as its object; None: it is not ours
    :ivar columns: with canonical types; empty if the catalog does not say
    :ivar stamp: contract fingerprint in its properties, written in the same commit as its columns
    :ivar query: text of a view
    :ivar rows: for display alone, as is ``bytes``; plans do not depend on it
    :ivar names: by column, the names that it had, as an unfinished deploy that changed the table was told; None: there
        was no such deploy
    """

    name: str
    kind: LiveKind
    marker: UUID | None = None
    columns: tuple[Column, ...] = ()
    constraints: Constraints | None = None
    properties: Mapping[str, str] = field(default_factory=no_entries)
    rows: int | None = None
    bytes: int | None = None
    stamp: str | None = None
    query: str | None = None
    names: Mapping[str, Sequence[str]] | None = None

    def emptied_by(self, revision: int) -> str | None:
        """The deploy that took all rows since the registry was written at this revision; None: none did."""
        at, _, deploy = self.properties.get(EMPTIED, "").partition("/")
        return deploy if deploy and at == str(revision) else None


@dataclass(frozen=True, slots=True)
class UserView(Named):
    """A view of a user.

    :ivar reads: None when its text can't be read: it may read anything
    :ivar broken: why it broke, if somebody let it break
    :ivar bridged: a deploy that did not finish gave it another text; ``query`` is its own
    :ivar pinned: its text with the columns written out that its stars show now; None: it has no star, or one that
        can't be written out
    :ivar star_last: a column that comes last in what its star stands for changes nothing of what it shows
    """

    name: str
    query: str
    reads: tuple[Dependency, ...] | None = ()
    broken: str | None = None
    bridged: bool = False
    pinned: str | None = None
    star_last: bool = False


@dataclass(frozen=True)
class ActualState:
    """The catalog.

    :ivar objects: everything in it, by the name as it is compared: of users too, and retired tables
    :ivar unfinished: ids of objects that a deploy which did not finish began to change, as its journal says
    """

    objects: Mapping[str, LiveObject] = field(default_factory=dict)
    user_views: tuple[UserView, ...] = ()
    unfinished: frozenset[UUID] = frozenset()

    @cached_property
    def by_marker(self) -> dict[UUID, tuple[LiveObject, ...]]:
        """What carries our markers, by them; several if one is retired."""
        found: dict[UUID, list[LiveObject]] = {}
        for each in self.objects.values():
            if each.marker is not None:
                found.setdefault(each.marker, []).append(each)
        return {marker: tuple(sorted(each, key=lambda one: one.key)) for marker, each in found.items()}

    @classmethod
    def of(cls, *objects: LiveObject, user_views: tuple[UserView, ...] = ()) -> ActualState:
        return cls({each.key: each for each in objects}, user_views)
