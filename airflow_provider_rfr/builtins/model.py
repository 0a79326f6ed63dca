"""Declarations as immutable values, compared by content; rules for names; and the reasons in a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.lake.types import is_plain
from airflow_provider_rfr.sinks.spec import SinkSpec

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


class Why(str, Enum):
    """The meaning of a reason: its code in a plan's JSON, and its sentence, with a placeholder for each fact."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> Why:
        member = str.__new__(cls, code)
        member._value_, member.sentence = code, sentence
        return member

    # What changed.
    NEW = "new", "new"
    KIND_CHANGED = "kind_changed", "kind: {} -> {}"
    RENAMED = "renamed", "renamed from {}"
    COLUMNS_CHANGED = "columns_changed", "columns changed"
    CONSTRAINTS_CHANGED = "constraints_changed", "constraints changed"
    QUERY_CHANGED = "query_changed", "query changed"
    DEFINITION_CHANGED = "definition_changed", "definition changed"
    STAR_CHANGED = "star_changed", "star expanded again"
    METADATA_CHANGED = "metadata_changed", "metadata changed"
    READS = "reads", "reads {}"
    READS_ANOTHER = "reads_another", "reads {}, which is another object now"
    LISTS_OBJECTS = "lists_objects", "lists the objects, and there are others: {}"
    NOT_RECORDED = "not_recorded", "it is there with our marker, though not recorded"
    UNFINISHED = "unfinished", "a deploy that did not finish left it so"
    CHANGED_BY_HAND = "changed_by_hand", "changed by hand"
    ADOPTED = "adopted", "as declared; takes our marker"
    DECLARED_NAME = "declared_name", "declared name"
    REMOVED = "removed", "no longer declared"
    # What readers and sinks notice.
    CURSOR_KEPT = "cursor_kept", "{} kept, nothing is sent again"
    SINK_UNDECIDED = "sink_undecided", "{}: say what it is to do, by sinks: {{{}: hold | resume_from_new | resend}}"
    EMPTIED_UNFINISHED = "emptied_unfinished", "{} was emptied by deploy {}, which did not finish"
    EMPTIED = "emptied", "{} is emptied"
    EXPORTS_ANOTHER = "exports_another", "it exports {} now"
    COLUMN_RENAMED = "column_renamed", "{} is called {} now"
    SAY_COLUMNS = "say_columns", "say under sink which columns it is to send"
    READS_RENAMED = "reads_renamed", "reads {}, which is called {} now"
    READS_REMOVED = "reads_removed", "reads {}, which is removed"
    READS_UNKNOWN = "reads_unknown", "can't be read; maybe it {}"
    STAYS_READABLE = "stays_readable", "stays readable while what it reads gets wider"
    STAR_MOVES = "star_moves", "its star is written out, for the columns of {} change their places"
    BRIDGED = "bridged", "bridged by a deploy that did not finish"
    # What stops a deploy.
    NEEDS_USING = "needs_using", "{}: {} -> {} needs values: write in its `was` how they are made"
    USING_UNREADABLE = "using_unreadable", "the `using` of {}: {}"
    MAYBE_RENAMED = "maybe_renamed", "if {} is {} under a new name, write was: {}"
    FIELD_TAKEN = (
        "field_taken",
        "a field of {} is to take the name of one that is still there: rename that one too, "
        "or drop it in a release before",
    )
    MAYBE_RENAMED_OBJECT = "maybe_renamed_object", "{} comes and is like it. If it is the same, write id: {} there"
    WOULD_LOSE = (
        "would_lose",
        "{} would be lost: accept that by a document {{kind: removed, name: {}}}, "
        "or for one deploy by accept_data_loss: {}",
    )
    KEPT = "kept", "{} would be lost, and it is kept: {}. To lose it, deploy it without that reason first"
    NOT_UNDONE = "not_undone", "{} was changed by hand in a way that can't be undone without inventing values"
    DOWNGRADE = "downgrade", "downgrade not supported: recorded by {}, this is {}"
    NAME_TAKEN = "name_taken", "the name of the {} {} is taken: {}; rename one of the two, or adopt what has no marker"
    NOT_ADOPTABLE = "not_adoptable", "{} can't be adopted: {}"
    NOT_OURS = "not_ours", "the {} {} is there and lacks our marker: no deploy made it"
    MARKED_OTHER = "marked_other", "the {} {} is there and carries the marker of {}, not of {}"
    NOT_REMOVED = "not_removed", "it is not dropped: {}. Forget {} instead"
    EXPORTED = "exported", "the sink {} exports it"
    GONE_ADOPT = "gone_adopt", "it is gone from the catalog: remove or forget it, or let it be repaired"
    DECLARE_NAME = "declare_name", "it is called {} now: declare that name, or repair it"
    DECLARE_IT = "declare_it", "{}, and adopting that means to declare it so"
    NO_SUCH_SOURCE = "no_such_source", "its source {} is not declared"
    USER_VIEW_BREAKS = "user_view_breaks", "change the view, or let it break with break_views: {}"
    TEXT = "text", "{}"
    # What was changed by hand.
    GONE = "gone", "it is gone from the catalog"
    IS_OTHER_KIND = "is_other_kind", "it is a {}, not a {}"
    CALLED = "called", "it is called {} now"
    DIFFERS = "differs", "{}: {} -> {}"
    VIEW_TEXT = "view_text", "its text was changed by hand"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason as data; its sentence is ``str(reason)``.

    :ivar facts: names, types and values, in the order of the sentence
    """

    why: Why
    facts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.why.sentence.format(*self.facts)


def because(why: Why, *facts: object) -> Reason:
    """Return a reason with its facts as texts."""
    return Reason(why, tuple(map(str, facts)))
