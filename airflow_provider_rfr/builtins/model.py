"""Immutable value types of declared, recorded and live objects, with their names, marks and JSON form."""

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
"""Suffix of a retired table's name: the first eight digits of the id of the deploy that retired it."""
LONGEST_PART: Final = 100
"""Maximum length of one part of a name, in characters: catalogs accept 128, and deploys append suffixes."""


class Kind(str, Enum):
    """The kind of a built-in object."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized_view"
    SOURCE = "source"
    SINK = "sink"
    LOG = "log"


STORED = frozenset({Kind.TABLE, Kind.MATERIALIZED_VIEW, Kind.SOURCE, Kind.LOG})
"""Kinds that are stored as an Iceberg table."""
QUERIED = frozenset({Kind.VIEW, Kind.MATERIALIZED_VIEW})
"""Kinds that are defined by a query."""


@dataclass(frozen=True, slots=True)
class DeclarationPlace:
    """The file and line of a declaration; without a file for an object that is declared in Python.

    All places are equal: a declaration that moves is not another one.
    """

    file: str | None = field(default=None, compare=False)
    line: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return "declared in Python" if self.file is None else f"{self.file}:{self.line or 1}"


@dataclass(frozen=True, slots=True)
class Was:
    """A former state of a column, from which its values are carried over.

    :ivar name: former name; None: the present one
    :ivar type: former type, as canonical text; None: any type
    :ivar using: SQL expression over the former columns that computes the values; None: the values are kept. Without
        ``name`` and ``type``, it applies to a new column, and where values can't be kept, e.g. to an incompatible type
    :ivar fields: former names of struct fields, by their present paths inside the column, e.g. ``{geo.lat: y}``
    """

    name: str | None = None
    type: str | None = None
    using: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A declared, recorded or live column.

    :ivar type: canonical text, e.g. ``bigint``, ``decimal(10,2)``, ``array<string>``, ``struct<a:int,b:string>``
    :ivar was: former states, the newest first; the first one that matches the live table applies
    """

    name: str
    type: str
    required: bool = False
    comment: str | None = None
    was: tuple[Was, ...] = ()


@dataclass(frozen=True, slots=True)
class Dependency:
    """An object that another one reads.

    :ivar name: case-folded
    :ivar uuid: None if the object is not declared, or was not looked up yet
    :ivar columns: case-folded names of the columns that are read, with some too many if the query does not qualify a
        column. None: all columns, or unknown
    """

    name: str
    uuid: UUID | None = None
    columns: tuple[str, ...] | None = None


class Named:
    """A value with a name. Names are compared without regard to case."""

    __slots__ = ()
    name: str

    @property
    def key(self) -> str:
        """Return the case-folded name, by which objects are compared and looked up."""
        return self.name.casefold()


@dataclass(frozen=True, slots=True)
class Removed(Named):
    """A document of kind ``removed``, which accepts the loss of an object, or of ``namespace.table.column``."""

    name: str
    place: DeclarationPlace = DeclarationPlace()


@dataclass(frozen=True, slots=True)
class BuiltinObject(Named):
    """One declared object.

    :ivar name: ``namespace.name``; compared without case
    :ivar id: never changes; by default derived from project and name, so an object that is renamed has to declare it
    :ivar query: SQL of a view or a materialized view, as its author wrote it
    :ivar depends_on: names of objects that the query reads, for a query that can't be parsed
    :ivar keep: True: a loss of rows has to be accepted by name; False: the rows can be made again, so they may be lost;
        a text: the reason why no loss can be accepted
    :ivar exportable: whether sinks of users and of other namespaces may export it
    :ivar per_instance: name of a list of instances, e.g. ``lake``: the declaration is a template, and one object with a
        generated name is made for each instance
    :ivar source: arguments of the load operator that say what a ``source`` reads
    :ivar refresh: the other arguments of the operator that refreshes a ``source`` or a materialized view, and
        ``schedule``; not recorded, because a change of them needs no deploy
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
    """An instance for which objects are generated from templates. Its id stays the same when it is renamed."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CatalogSpec:
    """All declarations of one version of the code, sorted by name.

    :ivar instances: by ``per_instance`` name; without an entry, the instances of a template are unknown
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
    """The position at which a YAML value begins; for a scalar also its raw text, with its quotes or its ``|``."""

    line: int
    column: int = 1
    raw: str = ""

    def place_in(self, text: str, line: int, column: int) -> str | None:
        """Translate a position in the scalar's value to ``line:column`` in the file; all of them count from 1.

        :returns: None if the raw text differs from the value in more than white space, e.g. by an escape
        """
        raw, lines = self.raw, text.split("\n")
        is_block, is_quoted = raw[:1] in ("|", ">"), raw[:1] in ("'", '"')
        # Without escapes, YAML changes only white space. So the other characters of both texts are the same.
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
    """A document of kind ``instances``: the names of instances by id, for templates with this ``per_instance``."""

    name: str
    instances: Mapping[str, str]
    place: DeclarationPlace


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared object, with the positions of all values in its YAML document."""

    obj: BuiltinObject
    marks: Mapping[YamlPath, YamlMark]

    def problem(self, path: str, problem: str, remedy: str = "") -> Problem:
        """Return a problem at a path, e.g. ``columns.2.type``, or at the nearest enclosing value with a position."""
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
    """Return the default id of an object, derived from its first name. If it is renamed, it has to declare this id."""
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
    """Return the first digits of the id of the deploy that retired the table; None if it is not retired."""
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

    :raises ValueError: the document does not fit the type; the message shows no value of it
    """
    from pydantic import ValidationError

    from airflow_provider_rfr.documents import problems_of

    try:
        return cast(Value, _adapter(cast(Any, kind)).validate_python(document))
    except ValidationError as error:
        raise ValueError(str(next(iter(problems_of(error, kind).values())))) from None


@cache
def _adapter(kind: Any) -> Any:
    # Imported here, because DAG files import this module and decode nothing.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _container_as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


MARKER: Final = "rfr.object-id"
"""Property of each table and view that a deploy made or adopted: the object's id. Nothing without it is dropped."""
PROJECT: Final = "rfr.project"
DEPLOY: Final = "rfr.deploy-id"
"""Property: id of the deploy that last changed the object."""
STEP: Final = "rfr.step"
"""Property: ``<deploy>/<seq>`` of the step that last changed the object, written in the same commit as the change."""
TOKEN: Final = "rfr.token"
"""Property: fencing token of the lease under which the object was last changed."""
DONE: Final = "rfr.done"
"""Property: digest of the state that the object was brought to, see :func:`done_mark`. After a crash, the next plan
skips an object that has the desired state already."""
BRIDGED: Final = "rfr.bridged"
"""Property of a user's view that is bridged: its own text, which is restored later. It counts only while the view's
text contains it, because a view that its user replaces keeps its properties."""
BROKEN: Final = "rfr.broken"
"""Property of a user's view: digest of its text, and why it broke. It counts only while the view has that text."""
WAS: Final = "rfr.was"
"""Property ``<revision>/<JSON>``: the former names of columns and struct fields that were declared when a deploy last
changed the table, and the registry's revision that this deploy was planned from. While the registry is still at that
revision, the deploy has not finished, and the registry does not know of its renames."""
EMPTIED: Final = "rfr.emptied"
"""Property ``<revision>/<deploy>``: the deploy that created or emptied the table, and a revision as in :data:`WAS`."""


def token_of(properties: Mapping[str, str]) -> int:
    """Return the fencing token of the lease under which an object was last changed; 0 if it is unknown."""
    text = properties.get(TOKEN, "")
    return int(text) if text.isdigit() else 0


def broken_mark(query: str, why: str) -> str:
    """Return the value of :data:`BROKEN` for a view with this text, and the reason why it broke."""
    return f"{hashlib.sha256(' '.join(query.split()).encode()).hexdigest()[:16]} {why}"


def was_mark(base: int, columns: Iterable[Column]) -> str:
    """Return the value of :data:`WAS` for a table with these columns.

    :param base: the registry's revision from which the deploy was planned
    """
    names = defaultdict[str, list[str]](list)
    for column in columns:
        for was in column.was:
            # The path is unambiguous, because no column's name has a dot.
            inside = {f"{column.name}.{path}": name for path, name in was.fields.items()}
            for path, name in {column.name: was.name, **inside}.items():
                if name is not None:
                    names[path.casefold()].append(name.casefold())
    return f"{base}/{dumps(names).decode()}"


def names_since(base: int, properties: Mapping[str, str]) -> Mapping[str, Sequence[str]] | None:
    """Return the former names that an unfinished deploy declared, by column, or by path for a struct field.

    :param base: the registry's present revision
    :returns: None if no unfinished deploy that was planned from this revision changed the table
    """
    at, _, names = properties.get(WAS, "").partition("/")
    return orjson.loads(names) if at == str(base) else None


@dataclass(frozen=True, slots=True)
class RecordedObject(Named):
    """An object's entry in the registry: the declaration that was deployed last, and the results of that deploy.

    :ivar contract: digest of positions, names and types of the columns
    :ivar definition: what a source reads or a sink sends, as JSON without secrets
    :ivar canonicalizer: version of the parser that found ``deps``; another one may find others in the same text
    :ivar raw_sql: the query as its author wrote it; ``sql``: the query as it was executed, with expanded stars
    :ivar instance: id of the instance for which it was generated from a template; its generated name is kept
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
    """Return the value of :data:`DONE` for an object in the state of its record.

    :param base: the registry's revision from which the deploy was planned; it makes the value differ after each
        finished deploy
    :param record: its revision and deploy do not count
    :param inputs: id of each object that was read, and the last step that changed it
    """
    wanted = replace(record, revision=base, deploy_id="")
    content = dumps((wanted, sorted((str(identity), step) for identity, step in inputs)))
    return f"{base}/{hashlib.sha256(content).hexdigest()}"


def files_family(identity: UUID, since: str) -> str:
    """Return the name prefix of the data files that are written for one commit of an object.

    All attempts at the commit use the same prefix, until one commits and ``since`` changes. So the files of dead
    attempts can be deleted by prefix, and files of other commits are never among them.

    :param since: identifies the state from which the commit starts; no state after the commit may have the same
    """
    return f"rfr-{hashlib.sha256(f'{identity}/{since}'.encode()).hexdigest()[:32]}-"


def rewrite_family(identity: UUID, properties: Mapping[str, str], token: int) -> str:
    """Return the name prefix of the data files that a deploy writes for one commit of a table.

    The last step in the table's properties changes with the commit, and no other deploy has the lease's token. So once
    the deploy is fenced, files with the prefix may be deleted.
    """
    return files_family(identity, f"{properties.get(STEP, '')}/{token}")


@dataclass(frozen=True)
class RegistryState:
    """The registry. Each write raises its revision; its version is that of the code that wrote last."""

    revision: int = 0
    version: str | None = None
    objects: tuple[RecordedObject, ...] = ()
    sinks: tuple[SinkState, ...] = ()

    @cached_property
    def by_uuid(self) -> dict[UUID, RecordedObject]:
        return {obj.uuid: obj for obj in self.objects}


@dataclass(frozen=True, slots=True)
class LiveObject(Named):
    """A table or a view in the catalog.

    :ivar marker: id of the object that it belongs to, from its properties; None: no deploy made it
    :ivar columns: with canonical types; empty if the catalog does not list them
    :ivar rows: for display only, like ``bytes``; plans do not depend on it
    :ivar names: former names that an unfinished deploy declared (:func:`names_since`)
    :ivar nulls: case-folded names of columns that the declaration requires and that may hold a NULL
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
        """Return the unfinished deploy, planned from this revision, that created or emptied the table; else None."""
        at, _, deploy = self.properties.get(EMPTIED, "").partition("/")
        return deploy if deploy and at == str(revision) else None


@dataclass(frozen=True, slots=True)
class UserView(Named):
    """A view that no deploy made.

    :ivar reads: None if its text can't be parsed, so that it may read anything
    :ivar broken: why it broke, if a deploy was allowed to break it
    :ivar bridged: an unfinished deploy gave it a temporary text; ``query`` is its own text
    :ivar pinned: its text with stars expanded to the columns that they show now; None without a star, or if that fails
    :ivar star_last: a new last column of the star's table adds a last column to the view, and changes nothing else
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
    """The state of the catalog, including objects of users.

    :ivar objects: by case-folded name, including tables that unfinished deploys retired
    :ivar unfinished: ids of the objects that unfinished deploys began to change
    :ivar holds_views: whether the catalog supports views
    """

    objects: Mapping[str, LiveObject] = field(default_factory=dict)
    user_views: tuple[UserView, ...] = ()
    unfinished: frozenset[UUID] = frozenset()
    holds_views: bool = True

    @cached_property
    def by_marker(self) -> Mapping[UUID | None, Sequence[LiveObject]]:
        """Return the objects by marker, sorted by name. A marker has several objects if one of them is retired."""
        objects = defaultdict[UUID | None, list[LiveObject]](list)
        for obj in sorted(self.objects.values(), key=lambda one: one.key):
            objects[obj.marker].append(obj)
        return objects
