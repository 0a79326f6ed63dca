"""The loader of declarations, from YAML files, Python objects and entry points, and their validation.

Pydantic validates the value types, and each error gets its line in the file. Plain scalars have the same meaning as in
:mod:`airflow_provider_rfr.documents`. YAML aliases are refused, so that each document is complete by itself, and a few
lines can't expand without bounds. Rules are checked for each object by itself, and then for all objects together.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import chain, starmap, takewhile
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from airflow_provider_rfr import __version__
from airflow_provider_rfr.builtins import model, queries
from airflow_provider_rfr.builtins.desired import CycleError, in_order
from airflow_provider_rfr.builtins.model import (
    QUERIED,
    STORED,
    BuiltinObject,
    CatalogSpec,
    Column,
    DeclarationPlace,
    Declared,
    Dependency,
    Instance,
    Instances,
    Kind,
    Removed,
    Was,
    YamlMark,
    YamlPath,
    nearest_mark,
    stable_id,
)
from airflow_provider_rfr.builtins.sql import columns_read
from airflow_provider_rfr.documents import nearest, plain_value, problems_of, suggestion
from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    DeclarationError,
    Problem,
    QueryError,
    UnreadableQueryError,
)
from airflow_provider_rfr.lake.types import field_types, is_plain, parse_transform, parse_type
from airflow_provider_rfr.sinks import SinkSpec, findings

_DEEPEST: Final = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT: Final = "tag:yaml.org,2002:str"
_TEXTS: Final = (("properties",), ("instances",))
"""Fields in which plain scalars, such as ``1`` or ``true``, stay texts."""
_TAGS: Final = (None, "!", _TEXT, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_ONE_BY_ONE: Final = "write each object on its own, --- between two"
_WRITE_OUT: Final = "write it out; an object says everything itself"


class Flaw(NamedTuple):
    """An error in a YAML text, with its line, which counts from 1."""

    line: int
    problem: str
    remedy: str = ""


class Document:
    """A parsed YAML document: its value, the positions of all values in it by path, and its flaws.

    A document that is created with a flaw stands for a syntax error, and has no value. :func:`.documents.read_yaml` is
    not used here, because it stops at the first mistake and keeps no positions.
    """

    def __init__(self, text: str, events: Iterator[Any], *flaws: Flaw) -> None:
        self.flaws = [*flaws]
        self.marks: dict[YamlPath, YamlMark] = {(): YamlMark(flaws[0].line)} if flaws else {}
        self._text, self._events = text, events
        self.value = None if flaws else self._value(next(events), ())

    def _value(self, event: Any, path: YamlPath) -> Any:
        """Return the value that begins with an event, and consume all events of the value."""
        start, end, line = event.start_mark, event.end_mark, event.start_mark.line + 1
        self.marks[path] = YamlMark(line, start.column + 1)
        if isinstance(event, yaml.AliasEvent):
            self.flaws.append(Flaw(line, f"*{event.anchor} is an alias", _WRITE_OUT))
            return None
        if event.tag not in _TAGS:
            self.flaws.append(Flaw(line, f"the tag {event.tag} is not known"))
        if isinstance(event, yaml.ScalarEvent):
            self.marks[path] = YamlMark(line, start.column + 1, self._text[start.index : end.index])
            is_text = not event.implicit[0] or event.tag == _TEXT
            value = event.value if is_text else plain_value(event.value)
            return event.value if path[:1] in _TEXTS and value is not None else value
        if len(path) == _DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"it is nested more than {_DEEPEST} deep", problem_mark=start)
        if isinstance(event, yaml.SequenceStartEvent):
            inside = enumerate(self._until(yaml.SequenceEndEvent))
            return [self._value(event, (*path, number)) for number, event in inside]
        mapping = dict[str, Any]()
        for event in self._until(yaml.MappingEndEvent):
            key, name = self._value(event, (*path, None)), getattr(event, "value", "here")
            line = event.start_mark.line + 1
            if not isinstance(key, str):
                self.flaws.append(Flaw(line, f"the key {name} is not text", "put it in quotes"))
            elif key == "<<":
                self.flaws.append(Flaw(line, "<< merges mappings", _WRITE_OUT))
            elif key in mapping:
                first = self.marks[(*path, key)].line
                self.flaws.append(Flaw(line, f"duplicate key {key!r}", f"it is in line {first} too"))
            mapping.setdefault(name, self._value(next(self._events), (*path, name)))
        return mapping

    def _until(self, end: type) -> Iterator[Any]:
        return takewhile(lambda event: not isinstance(event, end), self._events)


def documents(text: str) -> Iterator[Document]:
    """Yield the documents of a YAML text, except empty ones.

    A syntax error ends the text. It is yielded as a last document, with a flaw and without a value.
    """
    events = iter(yaml.parse(text, Loader=_LOADER))
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                document = Document(text, events)
                if document.value is not None or document.flaws:
                    yield document
        return
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        near = "".join(text.splitlines()[max(line - 2, 0) : line])
        remedy = "indent with spaces: YAML takes no tabs" if "\t" in near else ""
        flaw = Flaw(line, str(error.problem or error.context), remedy)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        flaw = Flaw(line, f"the character {chr(error.character)!r} is not allowed")
    yield Document(text, events, flaw)


Declaration = BuiltinObject | Removed | Instances
_MODELS: Final[dict[str, type]] = {"instances": Instances, "removed": Removed}
"""Value types of documents by ``kind``; a document of any other kind declares an object."""


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    # Pydantic accepts no configuration for a dataclass, but applies that of a list to the dataclasses in it.
    return TypeAdapter(list[model], config=ConfigDict(extra="forbid"))


def read(document: Document, place: DeclarationPlace, project: str) -> Declaration | None:
    """Return the declaration of a document; if the document is invalid, add the errors to its flaws and return None."""
    value, marks, flaws = document.value, document.marks, document.flaws
    model: Any = BuiltinObject
    if isinstance(value, dict):
        model = _MODELS.get(str(value.get("kind")), BuiltinObject)
        if "place" in value:
            flaws.append(Flaw(marks["place",].line, "place: unknown field"))
        if model is BuiltinObject:
            _list_what_columns_were(value.get("columns"))
            value = {"id": str(stable_id(project, str(value.get("name")))), **value}
        else:
            del value["kind"]
        value["place"] = asdict(place)
    try:
        # From JSON, strict validation still converts a list to a tuple and a text to a UUID, but no number to a text.
        declarations: list[Declaration] = _adapter(model).validate_json(json.dumps([value]), strict=True)
    except ValidationError as error:
        for location, problem in problems_of(error, list[model], hidden=("place",)).items():
            fields, line = ".".join(map(str, location[1:])), nearest_mark(marks, location[1:]).line
            if fields:
                flaws.append(Flaw(line, f"{fields}: {problem.problem}", problem.remedy))
            else:
                flaws.append(Flaw(line, "the document is not a mapping", _ONE_BY_ONE))
    return None if flaws else declarations[0]


def _list_what_columns_were(columns: Any) -> None:
    """Normalize each column's ``was``, which may be a name, a mapping, or a list of these, to a list of mappings."""
    for column in columns if isinstance(columns, list) else ():
        if isinstance(column, dict) and "was" in column:
            was = column["was"] if isinstance(column["was"], list) else [column["was"]]
            column["was"] = [{"name": name} if isinstance(name, str) else name for name in was]


GROUP = "airflow_provider_rfr.builtins"
"""Group of the entry points of packages that declare objects. An entry point is a package with YAML files, a declared
object, a list of these, or a function that returns one of them."""
_SUFFIXES: Final = (".yaml", ".yml")
_OWN_PROJECT: Final = "rfr"
Source = Path | str | BuiltinObject | Removed | Iterable["Source"]
_LoadedItem = Declared | Removed | Instances | Problem


class _DeclarationLoader:
    """A loader of the declarations of one project, which reads each file only once."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._files: set[Path] = set()

    def read(self, source: Any) -> Iterator[_LoadedItem]:
        if isinstance(source, (str, Path)):
            yield from self._path(Path(source))
        elif isinstance(source, ModuleType):
            yield from self.read(map(Path, getattr(source, "__path__", ())))
        elif isinstance(source, BuiltinObject):
            yield Declared(source, {(): YamlMark(source.place.line or 1)})
        elif isinstance(source, Removed):
            yield source
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
            for declared in source:
                yield from self.read(declared)
        else:
            problem = f"a source is {type(source).__name__}"
            yield Problem("", problem, "give a folder, a YAML file or an object", str(DeclarationPlace()))

    def installed(self) -> Iterator[_LoadedItem]:
        """Yield the declarations of this package, and those of other packages by entry points.

        This package may be imported from an archive, so its files are read as resources.
        """
        folder = files("airflow_provider_rfr.builtins").joinpath("own")
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(_SUFFIXES):
                yield from self._text(file.read_text("utf-8"), f"airflow_provider_rfr/builtins/own/{file.name}")
        for entry_point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            try:
                loaded = entry_point.load()
                yield from self.read(loaded() if callable(loaded) else loaded)
            except Exception as error:  # noqa: BLE001
                place = f"entry point {entry_point.name} ({entry_point.value})"
                yield Problem("", f"it can't be loaded: {type(error).__name__}: {error}", place=place)

    def _path(self, path: Path) -> Iterator[_LoadedItem]:
        paths = [path]
        if path.is_dir():
            paths = sorted(path for path in path.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
            # Hidden files and folders are skipped, but the source itself may be in a hidden folder.
            paths = [file for file in paths if not re.search(r"(^|/)\.", file.relative_to(path).as_posix())]
        if not paths:
            yield Problem("", "the folder has no YAML files", place=str(path))
        for file in paths:
            try:
                if (real := file.resolve()) not in self._files:
                    self._files.add(real)
                    yield from self._text(file.read_text("utf-8-sig"), str(file))
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
                yield Problem("", f"it can't be read: {why}", place=str(file))

    def _text(self, text: str, file: str) -> Iterator[_LoadedItem]:
        for document in documents(text):
            place = DeclarationPlace(file, document.marks[()].line)
            declaration = None if document.flaws else read(document, place, self._project)
            name = document.value.get("name") if isinstance(document.value, dict) else ""
            for line, problem, remedy in document.flaws:
                yield Problem(name if isinstance(name, str) else "", problem, remedy, str(DeclarationPlace(file, line)))
            if declaration is not None:
                yield Declared(declaration, document.marks) if isinstance(declaration, BuiltinObject) else declaration


def load_objects(
    *sources: Source, project: str = _OWN_PROJECT, version: str | None = None, entry_points: bool | None = None
) -> CatalogSpec:
    """Read and validate declarations.

    :param sources: YAML files, folders of them (read recursively), objects, or lists of any of these
    :param project: the project that owns the objects; default ids are derived from it
    :param version: version of the code that declares them; by default this package's
    :param entry_points: include the declarations of this package and of entry points; by default only in the project
        ``rfr``, because a lake has these objects once
    :raises DeclarationError: some declarations are invalid; it lists all problems
    """
    loader = _DeclarationLoader(project)
    with_installed = project == _OWN_PROJECT if entry_points is None else entry_points
    items = [*(loader.installed() if with_installed else ()), *loader.read(sources)]
    problems = [item for item in items if isinstance(item, Problem)]
    checks = [checked(item) for item in items if isinstance(item, Declared)]
    removed = sorted((item for item in items if isinstance(item, Removed)), key=lambda item: item.key)
    listed = [item for item in items if isinstance(item, Instances)]
    every = catalog_problems(checks, is_whole=not problems), other_problems(removed, listed)
    problems += chain(*(wrong for _, wrong in checks), *every)
    if problems:
        raise DeclarationError.of(sorted(dict.fromkeys(problems), key=_by_place))
    objects = sorted((check.obj for check, _ in checks), key=lambda obj: obj.key)
    instances = {one.name: tuple(starmap(Instance, sorted(one.instances.items()))) for one in listed}
    version = __version__ if version is None else version
    return CatalogSpec(project, version, tuple(objects), MappingProxyType(instances), tuple(removed))


def _by_place(problem: Problem) -> tuple[list[str | int], str]:
    """Return a sort key that compares the numbers in a place as numbers: line 9 comes before line 10."""
    parts = re.split(r"(\d+)", problem.place)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], problem.field


_MAY: Final[Mapping[str, Set[Kind]]] = {
    **dict.fromkeys(("columns", "properties"), STORED | QUERIED),
    **dict.fromkeys(("partitioning", "keys", "exportable"), STORED),
    **dict.fromkeys(("keep", "columns.was"), STORED - QUERIED),
    **dict.fromkeys(("query", "depends_on"), QUERIED),
    "source": {Kind.SOURCE},
    "refresh": {Kind.SOURCE, Kind.MATERIALIZED_VIEW},
    "sink": {Kind.SINK},
}
"""The kinds that may have a field, by field; ``_MUST``: the kinds that must have it."""
_MUST: Final = {"columns": STORED - {Kind.SOURCE}, "query": QUERIED, "source": {Kind.SOURCE}, "sink": {Kind.SINK}}
_GOOD_NAME: Final = "1 to 255 characters without outer spaces, dots, backticks, backslashes, control signs; not *"
T = TypeVar("T")


def checked(declared: Declared) -> tuple[Declared, Sequence[Problem]]:
    """Return the object in canonical form, with immutable values, and its problems; an invalid type stays as it is."""
    obj = declared.obj
    problems = [*_field_problems(obj)]
    columns, partitioning = tuple(_columns(obj.columns, problems)), tuple(obj.partitioning)
    if columns and obj.kind in STORED:
        problems += _name_findings(obj.keys, (column.name for column in columns), "keys")
        transform = partial(canonical_transform, columns=columns)
        numbered = enumerate(partitioning)
        partitioning = tuple(
            _canonical(text, transform, problems, f"partitioning.{number}") for number, text in numbered
        )
        problems += _name_findings(partitioning, partitioning, "partitioning")
    if obj.sink is not None and obj.kind is Kind.SINK:
        problems += findings(obj.sink)
    mutable = ("keys", "depends_on", "properties", "source", "refresh", "sink")
    frozen = {name: _frozen(getattr(obj, name)) for name in mutable}
    # The rows of a query can always be computed again.
    keep = False if obj.kind is Kind.MATERIALIZED_VIEW and obj.keep is True else obj.keep
    obj = replace(obj, columns=columns, partitioning=partitioning, keep=keep, **frozen)
    return replace(declared, obj=obj), [declared.problem(one.field, one.problem, one.remedy) for one in problems]


def _frozen(value: Any) -> Any:
    if isinstance(value, SinkSpec):
        return replace(value, settings=_frozen(value.settings))
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _field_problems(obj: BuiltinObject) -> Iterator[Problem]:
    kind = obj.kind.value
    if problem := model.name_problem(obj.name):
        yield Problem("name", problem, "write namespace.name")
    # ``keep: true`` and ``keep: false`` are accepted for every kind; only a reason counts as given.
    is_set = {"keep": isinstance(obj.keep, str), "columns.was": any(column.was for column in obj.columns)}
    for name, kinds in _MAY.items():
        is_given = is_set[name] if name in is_set else bool(getattr(obj, name))
        if is_given and obj.kind not in kinds:
            yield Problem(name, f"a {kind} has no {name}", "leave it out")
        elif not is_given and obj.kind in _MUST.get(name, ()):
            yield Problem(name, f"a {kind} has {name}", "none is given")
    if isinstance(obj.keep, str) and not obj.keep.strip():
        yield Problem("keep", "keep says why no rows may be lost, and nothing is said", "give a reason, or true")
    for name in obj.properties:
        if name.casefold().startswith("rfr."):
            yield Problem(f"properties.{name}", f"{name} is one of the marks that a deploy writes", "take another name")
    if obj.per_instance is not None and not is_plain(obj.per_instance):
        yield Problem("per_instance", f"{obj.per_instance!r} is not a name")


def _columns(columns: Sequence[Column], problems: list[Problem]) -> Iterator[Column]:
    """Yield the columns with canonical types, and add problems with them to ``problems``."""
    before = dict[str, int]()
    for number, column in enumerate(columns):
        path, name = f"columns.{number}", column.name
        is_good = name.strip() == name and name.isprintable() and 0 < len(name) <= 255 and name != "*"
        if not is_good or set(name) & set(".`\\"):
            problems.append(Problem(f"{path}.name", f"{name[:40]!r} can't be a column's name", _GOOD_NAME))
        was = []
        for at, former in enumerate(column.was):
            inside, prefix = f"{path}.was.{at}", f"{name}: was: "
            if former == Was():
                problems.append(Problem(inside, f"{prefix}it says nothing", "give name, type, using or fields"))
            if former.name is not None and before.setdefault(former.name.casefold(), number) != number:
                problems.append(Problem(inside, f"two columns were called {former.name}"))
            if former.using is not None:
                _canonical(former.using, columns_read, problems, inside, prefix)
            kind = None if former.type is None else _canonical(former.type, parse_type, problems, inside, prefix)
            was.append(replace(former, type=kind, fields=_frozen(former.fields)))
            problems += (
                Problem(inside, f"{prefix}{text}", remedy) for text, remedy in _former_problems(column, former)
            )
        kind = _canonical(column.type, parse_type, problems, f"{path}.type", f"{name}: ")
        yield replace(column, type=kind, was=tuple(was))
    names = [column.name for column in columns]
    problems += _name_findings(names, names, "columns")


def _former_problems(column: Column, was: Was) -> Iterator[tuple[str, str]]:
    """Yield each problem with the former names of a column's struct fields, and its remedy."""
    try:
        paths = list(field_types(parse_type(column.type))) if was.fields else []
    except ConfigurationError:
        return
    for path, former in was.fields.items():
        if path.casefold() not in map(str.casefold, paths):
            yield f"fields: {column.name} has no field {path}", suggestion(path, paths)
        if not former or set(former) & set(".`"):
            yield f"fields.{path}: {former!r} is not the name of a field", "give the name alone, without its path"


def _canonical(text: str, parse: Callable[[str], object], problems: list[Problem], path: str, what: str = "") -> str:
    """Return the canonical text; if it can't be parsed, add a problem to ``problems`` and return the text itself.

    :param what: prefix of the problem's text
    """
    try:
        return str(parse(text))
    except ConfigurationError as error:
        problems.append(Problem(path, f"{what}{error.problem}", error.remedy))
        return text


def canonical_transform(text: str, columns: Sequence[Column]) -> str:
    """Return the canonical text of a partition transform.

    :raises ConfigurationError: it is not a transform, its column does not exist, or the column's type can't be used
    """
    transform = parse_transform(text)
    column = next((column for column in columns if column.name.casefold() == transform.column.casefold()), None)
    if column is None:
        problem, close = f"{text!r}: there is no column {transform.column}", (column.name for column in columns)
        raise ConfigurationError("partitioning", problem, suggestion(transform.column, close))
    kind = parse_type(column.type)
    if not transform.takes(kind):
        raise ConfigurationError("partitioning", f"{text!r}: {column.name} is {kind}", "another column or transform")
    return str(replace(transform, column=column.name))


def _repeated(values: Iterable[T], key: Callable[[T], Hashable]) -> Iterator[tuple[T, T]]:
    """Yield each value that has the key of an earlier value, with that earlier value."""
    known: dict[Hashable, T] = {}
    for value in values:
        if (first := known.setdefault(key(value), value)) is not value:
            yield value, first


def _name_findings(names: Sequence[str], valid: Iterable[str], path: str) -> Iterator[Problem]:
    """Yield a problem for each unknown or duplicate name of a column."""
    first_of = {name.casefold(): name for name in valid}
    for number, name in enumerate(names):
        if name.casefold() not in first_of:
            yield Problem(f"{path}.{number}", f"there is no column {name}", suggestion(name, first_of.values()))
    for (number, name), _ in _repeated(enumerate(names), lambda item: item[1].casefold()):
        yield Problem(f"{path}.{number}", f"{name} is listed twice")


def catalog_problems(checks: Sequence[tuple[Declared, Sequence[Problem]]], *, is_whole: bool) -> Iterator[Problem]:
    """Yield the problems between objects: duplicate names and ids, invalid reads, cycles, and mistakes in queries.

    :param checks: each object with the problems that it has by itself
    :param is_whole: whether all documents could be read; if not, a name that is not declared is no problem
    """
    declared = [check for check, _ in checks]
    for entry, first in _repeated(declared, lambda entry: entry.obj.key):
        yield entry.problem("name", f"the name is taken by a {first.obj.kind.value}: {first.obj.place}")
    entries, reads = {entry.obj.key: entry for entry in declared}, dict[str, Sequence[Dependency]]()
    for entry, first in _repeated(entries.values(), lambda entry: entry.obj.id):
        problem = f"its id {entry.obj.id} is that of {first.obj.name}: {first.obj.place}"
        yield entry.problem("id", problem, "ids are made from first names; give the newer object an id of its own")
    # If some documents could not be read, a missing object may be declared in one of them.
    names = defaultdict[str, list[str]](list)
    for key in entries if is_whole else ():
        names[model.namespace_of(key)].append(key.rpartition(".")[2])
    for key, entry in entries.items():
        try:
            reads[key] = queries.object_reads(entry.obj, known=entries)
            yield from _read_problems(entry, reads[key], entries, names)
        except QueryError as error:
            ask_spark = "correct it; if Spark understands it, list what it reads in depends_on"
            is_unreadable = isinstance(error, UnreadableQueryError)
            yield entry.problem("query", error.problem, ask_spark if is_unreadable else error.remedy)
    order, circles = _order({key: [read.name for read in inputs] for key, inputs in reads.items()})
    for circle in circles:
        path = " -> ".join(entries[key].obj.name for key in (*circle, circle[0]))
        yield entries[circle[0]].problem("query", f"it reads itself: {path}")
    # Queries over an object that has problems are not checked, because its columns may be wrong.
    hidden = {check.obj.key for check, wrong in checks if wrong}.union(entries.keys() - reads.keys(), *circles)
    columns_of = queries.declared_columns(entry.obj for entry in entries.values())
    for key in order:
        if entries[key].obj.kind in QUERIED and hidden.isdisjoint([key, *(read.name for read in reads[key])]):
            yield from _query_problems(entries[key], columns_of)


def _order(reads: Mapping[str, Sequence[str]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the objects in dependency order, inputs before their readers, and the cycles that were left out."""
    circles: list[tuple[str, ...]] = []
    while True:
        try:
            return in_order(reads, str), circles
        except CycleError as error:
            circles.append(error.cycle)
            # in_order() ignores reads of the objects that are left out here.
            reads = {key: inputs for key, inputs in reads.items() if key not in error.cycle}


def _read_problems(
    reader: Declared, reads: Sequence[Dependency], known: Mapping[str, Declared], names: Mapping[str, Sequence[str]]
) -> Iterator[Problem]:
    """Yield the problems with the names that an object reads.

    :param names: last parts of the declared names by namespace; empty if some declarations could not be read
    """
    obj, path = reader.obj, "query" if reader.obj.sink is None else "sink.source"
    for name in queries.unqualified(obj.query) if obj.query and reads else ():
        remedy = f"write {model.namespace_of(obj.name)}.{name}"
        yield reader.problem(path, f"{name} has no namespace, and Spark's own may be any", remedy)
    for read in reads:
        declared = known.get(read.name)
        problem = _missing(obj, read.name, known, names) if declared is None else _refused(obj, declared.obj)
        if problem is not None:
            yield reader.problem(path, *problem)
        # A source may declare no columns: its refreshes add them.
        if obj.sink is not None and declared is not None and (columns := declared.obj.columns):
            sent = model.present_names(obj.sink.columns, columns)
            for finding in _name_findings(sent, (column.name for column in columns), "sink.columns"):
                yield reader.problem(finding.field, finding.problem, finding.remedy)


def _missing(
    reader: BuiltinObject, name: str, known: Mapping[str, Declared], names: Mapping[str, Sequence[str]]
) -> tuple[str, str] | None:
    """Return the problem with a name that is not declared, and a remedy; None if it may exist undeclared."""
    namespace, _, last = name.rpartition(".")
    if name in map(str.casefold, reader.depends_on):
        return None
    if (inside := name.partition(".")[2]) in known:
        return f"it reads {name} with a catalog's name before it", f"write {inside}: each lake has a catalog of its own"
    if not names or (namespace not in names and reader.sink is None):
        return None
    close = nearest(last, names.get(namespace, ()))
    remedy = "declare it, e.g. as a source; a view may have it in depends_on instead"
    return f"it reads {name}, which is not declared", f"did you mean {close}? {remedy}" if close else remedy


def _refused(reader: BuiltinObject, source: BuiltinObject) -> tuple[str, str] | None:
    """Return the reason why ``reader`` may not read ``source``, and a remedy; None if it may."""
    if source.kind is Kind.SINK:
        return f"it reads {source.name}, which is a sink", "read what that one reads"
    if source.per_instance is not None:
        return f"it reads {source.name}, which is one object for each {source.per_instance}", "read a single object"
    if reader.kind is Kind.SINK and source.kind not in STORED:
        return f"{source.name} is a {source.kind.value}, which has no history to send", "make it a materialized_view"
    near = model.namespace_of(reader.key) == model.namespace_of(source.key)
    if reader.kind is not Kind.SINK or near or source.exportable:
        return None
    return f"{source.name} is not exportable", "send a materialized_view over it, or have it declare exportable: true"


def _query_problems(reader: Declared, columns_of: queries.ColumnsOf) -> Iterator[Problem]:
    """Yield the problems with the query of an object; the names that it reads were checked before."""
    query, namespace = reader.obj.query or "", model.namespace_of(reader.obj.name)
    try:
        yield from (reader.query_problem(*problem) for problem in queries.column_problems(query, columns_of, namespace))
        starred = queries.expand_stars(query, columns_of, namespace) != query
        names = queries.output_columns(query, columns_of, namespace)
    except UnreadableQueryError:
        return
    except QueryError as error:
        yield reader.problem("query", error.problem, error.remedy)
        return
    outputs = [name.casefold() for name in names]
    for (_, name), _ in _repeated(enumerate(outputs), lambda one: one[1]):
        yield reader.problem("query", f"two of its columns are called {name}", "give one another name: ... AS name")
    columns, rest = [column.name for column in reader.obj.columns], iter(outputs)
    wanted = [name.casefold() for name in columns]
    # With a star, the query may give more columns: the star is limited to those that are declared.
    fits = all(name in rest for name in wanted) if starred else wanted == outputs
    if columns and not fits:
        problem = f"its columns are {', '.join(columns)}, and its query gives {', '.join(names)}"
        yield reader.problem("columns", problem, "write them alike, in the same order")


def other_problems(removed: Sequence[Removed], listed: Sequence[Instances]) -> Iterator[Problem]:
    """Yield the problems with documents of kind ``removed``, and with lists of instances."""
    for entry in removed:
        # Further parts name a column or a field of one, which may have any name.
        if problem := model.name_problem(".".join(entry.name.split(".")[:2])):
            yield Problem(entry.name, problem, "write namespace.name, or namespace.table.column", str(entry.place))
    for one in listed:
        if not is_plain(one.name):
            problem = f"{one.name!r} is not a name"
            yield Problem(one.name, problem, "write what per_instance says, e.g. lake", str(one.place))
        if not all(text.strip() for pair in one.instances.items() for text in pair):
            yield Problem(one.name, "an instance has an empty id or name", "write ID: NAME", str(one.place))
    both: list[Removed | Instances] = [*removed, *listed]
    for other, first in _repeated(both, lambda reader: (type(reader), reader.name.casefold())):
        yield Problem(other.name, f"a document says so already: {first.place}", "keep one of the two", str(other.place))
