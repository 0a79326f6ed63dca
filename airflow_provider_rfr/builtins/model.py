"""Objects as immutable values, compared by content: declared, recorded and live; their names; and values as JSON."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID, uuid5

import orjson

from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.lake.types import is_plain
from airflow_provider_rfr.sinks import SinkSpec, SinkState

_NAMESPACE: Final = UUID("5f0a1d5e-6a0f-5a3b-9d5c-7f6d1f6f8f10")
_RETIRED: Final = re.compile(r"__g([0-9a-f]{8})$", re.IGNORECASE)
"""Suffix of a retired table's name, followed by eight hex digits; its properties stay what they were."""
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
class DeclarationPlace:
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
    place: DeclarationPlace = DeclarationPlace()


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
    place: DeclarationPlace = DeclarationPlace()


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

    def by_id(self) -> dict[UUID, BuiltinObject]:
        """Return the declarations by id; a template also by the ids of the objects that are generated from it."""
        objects = {obj.id: obj for obj in self.objects}
        for obj in self.objects:
            objects |= {instance_id(obj.id, one.id): obj for one in self.instances.get(obj.per_instance or "", ())}
        return objects


YamlPath = tuple[str | int | None, ...]


class YamlMark(NamedTuple):
    """A position at which a value begins, and for a scalar its raw text in the file, with its quotes or its ``|``."""

    line: int
    column: int = 1
    raw: str = ""

    def place_in(self, text: str, line: int, column: int) -> str | None:
        """Return the file's line and column for a place in the text; None if the file writes the text differently."""
        raw, lines = self.raw, text.split("\n")
        is_block, is_quoted = raw[:1] in ("|", ">"), raw[:1] in ("'", '"')
        # Of what is not escaped, YAML changes nothing but white space.
        places = range(raw.find("\n") + 1 if is_block else int(is_quoted), len(raw) - int(is_quoted))
        ink = [place for place in places if not raw[place].isspace()]
        before = len("".join("".join([*lines[: line - 1], lines[line - 1][: column - 1]]).split()))
        if "".join(raw[place] for place in ink) != "".join(text.split()) or before >= len(ink):
            return None
        above, start = raw.count("\n", 0, ink[before]), raw.rfind("\n", 0, ink[before])
        return f"{self.line + above}:{ink[before] - start if above else self.column + ink[before]}"


def nearest_mark(marks: Mapping[YamlPath, YamlMark], location: YamlPath) -> YamlMark:
    """Return the mark of a location, or of the nearest enclosing location that the document has."""
    return marks[location] if location in marks else nearest_mark(marks, location[:-1])


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances for which a template's objects are generated: names by ids."""

    name: str
    instances: Mapping[str, str]
    place: DeclarationPlace


@dataclass(frozen=True, slots=True)
class Declared:
    """An object and the marks of its document."""

    obj: BuiltinObject
    marks: Mapping[YamlPath, YamlMark]

    def problem(self, path: str, problem: str, remedy: str = "") -> Problem:
        """Return a problem at a path, e.g. ``columns.2.type``, or at the nearest enclosing part that has a place."""
        location = tuple(int(part) if part.isdecimal() else part for part in path.split("."))
        place = DeclarationPlace(self.obj.place.file, nearest_mark(self.marks, location).line)
        return Problem(self.obj.name, problem, remedy, str(place))

    def query_problem(self, line: int, column: int, problem: str, remedy: str) -> Problem:
        """Return a problem at a line and column of the query."""
        place = nearest_mark(self.marks, ("query",)).place_in(self.obj.query or "", line, column)
        if place is None:
            return self.problem("query", f"line {line}, column {column}: {problem}", remedy)
        return Problem(self.obj.name, problem, remedy, f"{self.obj.place.file}:{place}")


def stable_id(project: str, first_name: str) -> UUID:
    """Return the id of an object that declares none, by its first name: a renamed object has to declare its id."""
    return uuid5(_NAMESPACE, f"{project}/{first_name.casefold()}")


def instance_id(template: UUID, instance: str) -> UUID:
    """Return the id of a template's object for an instance; it does not depend on the instance's name."""
    return uuid5(template, instance)


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
    match = _RETIRED.search(name)
    return match[1].lower() if match else None


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


Value = TypeVar("Value")


def dumps(value: Any) -> bytes:
    """Return the canonical JSON of a value type: the same bytes for equal values."""
    return orjson.dumps(value, default=_container_as_json, option=orjson.OPT_SORT_KEYS)


def encode(value: Any) -> Any:
    """Return the value as JSON's own types: fields by name, enums by value, ids as texts."""
    return orjson.loads(dumps(value))


def decode(kind: type[Value], document: Mapping[str, Any]) -> Value:
    """Return the value of a document that :func:`encode` made.

    Fields with defaults may be missing, and unknown fields are ignored.

    :raises ValueError: it is none; no value is shown
    """
    from pydantic import ValidationError

    from airflow_provider_rfr.documents import problems_of

    try:
        return cast(Value, _adapter(cast(Any, kind)).validate_python(document))
    except ValidationError as error:
        raise ValueError(str(next(iter(problems_of(error, kind).values())))) from None


@cache
def _adapter(kind: Any) -> Any:
    # Imported here: reading DAGs needs these values, but decodes none.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _container_as_json(value: Any) -> Any:
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
STEP: Final = "rfr.step"
"""Property: ``<deploy>/<seq>`` of the step that changed it last, written in the same commit as the change."""
TOKEN: Final = "rfr.token"
"""Property: token of the lease under which it was changed last."""
DONE: Final = "rfr.done"
"""Property: what the object was brought to, see :func:`done_mark`: after a deploy that died, nothing is done twice."""
BRIDGED: Final = "rfr.bridged"
"""Property of a user's view with its own text, which it gets back. It counts as long as the view has that text within
casts: a view that is replaced keeps its properties."""
BROKEN: Final = "rfr.broken"
"""Property of a user's view: its text's digest, and why it broke. It counts as long as the view has that text."""
WAS: Final = "rfr.was"
"""Property ``<revision>/<JSON>``: the names that the table's columns, and fields inside them, had, as declared to the
deploy which changed it last, and the registry's revision that it was planned from. As long as the registry is at that
one, that deploy did not finish, and the record does not know what it did."""
EMPTIED: Final = "rfr.emptied"
"""Property ``<revision>/<deploy>``: the deploy that emptied or made the table, and as in :data:`WAS`."""


def token_of(properties: Mapping[str, str]) -> int:
    """Return the token of the lease under which something was changed last; 0 if it is unknown."""
    text = properties.get(TOKEN, "")
    return int(text) if text.isdigit() else 0


def broken_mark(query: str, why: str) -> str:
    """Return the value of :data:`BROKEN` for a view with this text."""
    return f"{hashlib.sha256(' '.join(query.split()).encode()).hexdigest()[:16]} {why}"


def was_mark(base: int, columns: Iterable[Column]) -> str:
    """Return the value of :data:`WAS` for a table with these columns."""
    names = defaultdict[str, list[str]](list)
    for column in columns:
        for was in column.was:
            # No column's name has a dot.
            inside = {f"{column.name}.{path}": name for path, name in was.fields.items()}
            for path, name in {column.name: was.name, **inside}.items():
                if name is not None:
                    names[path.casefold()].append(name.casefold())
    return f"{base}/{dumps(names).decode()}"


def names_since(base: int, properties: Mapping[str, str]) -> Mapping[str, Sequence[str]] | None:
    """Return the former names of each column, and of each field by its path, that an unfinished deploy declared.

    :returns: None if there was no unfinished deploy of this revision
    """
    at, _, names = properties.get(WAS, "").partition("/")
    return orjson.loads(names) if at == str(base) else None


@dataclass(frozen=True, slots=True)
class RecordedObject(Named):
    """An object as the last deploy that changed it left it: its declaration, and the result of the deploy.

    :ivar contract: digest of the columns' contract
    :ivar definition: what a source reads or a sink sends, without secrets
    :ivar canonicalizer: what read the query; another one may find other ``deps`` in the same text
    :ivar raw_sql: the query as its author wrote it; ``sql``: as it was executed, its stars written out
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
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    owner: str | None = None
    instance: str | None = None


def done_mark(base: int, record: RecordedObject, inputs: Iterable[tuple[UUID, str]] = ()) -> str:
    """Return the mark of an object that has reached the state of the record, from inputs (by id) after these steps.

    The base is the revision from which the deploy was planned: with it, the mark is different after each finished
    deploy.
    """
    wanted = replace(record, revision=base, deploy_id="")
    content = dumps((wanted, sorted((str(identity), step) for identity, step in inputs)))
    return f"{base}/{hashlib.sha256(content).hexdigest()}"


def files_family(identity: UUID, since: str) -> str:
    """Return the prefix of the names of files with an object's rows.

    It is the same for each process that tries, until one commits and ``since`` changes. So files of a dead process are
    collected, and files of a commit never are.
    """
    return f"rfr-{hashlib.sha256(f'{identity}/{since}'.encode()).hexdigest()[:32]}-"


def rewrite_family(identity: UUID, properties: Mapping[str, str], token: int) -> str:
    """Return the prefix of the files that a deploy with this token writes for a table with these properties.

    The mark of the last step changes with the commit, and no other deploy has the token. So once the deploy can't
    commit any more, the files may be deleted.
    """
    return files_family(identity, f"{properties.get(STEP, '')}/{token}")


@dataclass(frozen=True)
class RegistryState:
    """The registry. Each write raises its revision; its version is that of the code which wrote last."""

    revision: int = 0
    version: str | None = None
    objects: tuple[RecordedObject, ...] = ()
    sinks: tuple[SinkState, ...] = ()

    @cached_property
    def by_uuid(self) -> dict[UUID, RecordedObject]:
        return {obj.uuid: obj for obj in self.objects}


@dataclass(frozen=True, slots=True)
class LiveObject(Named):
    """A table or a view as the catalog shows it.

    :ivar marker: id that its properties name as its object; None: it is not ours
    :ivar columns: with canonical types; empty if the catalog does not say
    :ivar rows: for display alone, as is ``bytes``; plans do not depend on it
    :ivar names: what :func:`names_since` finds
    :ivar nulls: of the columns that are to be required, those that may hold a NULL, as they are compared
    """

    name: str
    kind: Kind
    marker: UUID | None = None
    columns: tuple[Column, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    rows: int | None = None
    bytes: int | None = None
    query: str | None = None
    names: Mapping[str, Sequence[str]] | None = None
    nulls: frozenset[str] = frozenset()

    def emptied_by(self, revision: int) -> str | None:
        """Return the deploy that removed all rows since the registry was written at this revision; None if none did."""
        at, _, deploy = self.properties.get(EMPTIED, "").partition("/")
        return deploy if deploy and at == str(revision) else None


@dataclass(frozen=True, slots=True)
class UserView(Named):
    """A view of a user.

    :ivar reads: None when its text can't be read: it may read anything
    :ivar broken: why it broke, if somebody let it break
    :ivar bridged: a deploy that did not finish gave it another text; ``query`` is its own
    :ivar pinned: its text with the columns written out that its stars show now, if it has any and that can be done
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
    """The state of the catalog, also of users' objects, by names as they are compared.

    ``objects`` also has the tables that unfinished deploys retired; ``unfinished`` has the ids of the objects that
    these deploys began to change; ``holds_views`` says whether the catalog can hold views.
    """

    objects: Mapping[str, LiveObject] = field(default_factory=dict)
    user_views: tuple[UserView, ...] = ()
    unfinished: frozenset[UUID] = frozenset()
    holds_views: bool = True

    @cached_property
    def by_marker(self) -> Mapping[UUID | None, Sequence[LiveObject]]:
        """Return the objects that carry our markers, by marker, sorted by name; several if one of them is retired."""
        objects = defaultdict[UUID | None, list[LiveObject]](list)
        for obj in sorted(self.objects.values(), key=lambda one: one.key):
            objects[obj.marker].append(obj)
        return objects
