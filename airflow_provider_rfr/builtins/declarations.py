"""Declarations from YAML files, folders, objects, other packages and this one, as one immutable value.

Pydantic reads the value types, and each error gets its line. Plain values have the same meaning as in
:mod:`airflow_provider_rfr.documents`. Aliases are refused: an object says everything itself, and a few lines can't
expand without bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import chain, starmap, takewhile
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from airflow_provider_rfr import __version__
from airflow_provider_rfr.builtins.model import (
    BuiltinObject,
    CatalogSpec,
    DeclarationPlace,
    Declared,
    Instance,
    Instances,
    Removed,
    YamlMark,
    YamlPath,
    nearest_mark,
    stable_id,
)
from airflow_provider_rfr.builtins.rules import catalog_problems, checked, other_problems
from airflow_provider_rfr.documents import plain_value, problems_of
from airflow_provider_rfr.exceptions import DeclarationError, Problem

_DEEPEST: Final = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT: Final = "tag:yaml.org,2002:str"
_TEXTS: Final = (("properties",), ("instances",))
"""Plain values in these are texts, as they were written."""
_TAGS: Final = (None, "!", _TEXT, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_ONE_BY_ONE: Final = "write each object on its own, --- between two"
_WRITE_OUT: Final = "write it out; an object says everything itself"


class Flaw(NamedTuple):
    """An error in a text."""

    line: int
    problem: str
    remedy: str = ""


class Document:
    """A YAML document as it is parsed: its value, the marks of all values in it by their paths, and its flaws as YAML.

    A document that is created with a flaw has no value: a syntax error ended the text. A reader of its own, because
    :func:`.documents.read_yaml` stops at the first mistake and keeps no marks.
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
    """Yield the documents of a text without the empty ones.

    A syntax error ends the text: it is yielded as a document without a value, after the documents before it.
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
"""What a document of a kind declares; one of another kind is an object."""


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    # The configuration of a list is that of the dataclasses in it, which can't be given one.
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
        # Of JSON, a strict reader takes lists for tuples and texts for ids, and a number for no text.
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
"""Entry points of packages that declare objects: a package whose folder holds YAML files, objects, or a function that
returns either."""
_SUFFIXES: Final = (".yaml", ".yml")
_OWN_PROJECT: Final = "rfr"
Source = Path | str | BuiltinObject | Removed | Iterable["Source"]
_Found = Declared | Removed | Instances | Problem


class _DeclarationLoader:
    def __init__(self, project: str) -> None:
        self._project = project
        self._files: set[Path] = set()

    def read(self, source: Any) -> Iterator[_Found]:
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

    def installed(self) -> Iterator[_Found]:
        """Yield the declarations of this package, which may be in an archive, and of other packages by entry points."""
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

    def _path(self, path: Path) -> Iterator[_Found]:
        paths = [path]
        if path.is_dir():
            paths = sorted(path for path in path.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
            # A hidden folder may be the source itself.
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

    def _text(self, text: str, file: str) -> Iterator[_Found]:
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
    """Read declarations; nothing has to be registered besides.

    :param sources: YAML files, folders of them (with those inside), objects, or lists of any of these
    :param project: whose objects they are; ids of objects that write none are made from it
    :param version: of the code that declares them; this package's, where it is not given
    :param entry_points: take in what this package and other installed ones declare; by default in the project ``rfr``
        alone, since what they declare is there once in a lake
    :raises DeclarationError: with all problems
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
    """Return a sort key in which the numbers of a place compare as numbers: line 9 comes before line 10."""
    parts = re.split(r"(\d+)", problem.place)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], problem.field
