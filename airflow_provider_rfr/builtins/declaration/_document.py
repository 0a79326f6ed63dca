"""Declarations from YAML: pydantic reads the value types, and each error gets its line.

Plain values have the same meaning as in :mod:`airflow_provider_rfr.documents`. Aliases are refused: an object says
everything itself, and a few lines can't expand without bounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import takewhile
from typing import Any, Final, NamedTuple

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from airflow_provider_rfr.builtins.spec import BuiltinObject, Column, Place, Removed, Was, nearest, stable_id
from airflow_provider_rfr.documents import plain_value
from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.sinks.spec import SinkSpec

_DEEPEST: Final = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT: Final = "tag:yaml.org,2002:str"
_TEXTS: Final = (("properties",), ("instances",))
"""Plain values in these are texts, as they were written."""
_TAGS: Final = (None, "!", _TEXT, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_WRITE_OUT: Final = "write it out; an object says everything itself"


class Flaw(NamedTuple):
    """An error in a text."""

    line: int
    problem: str
    remedy: str = ""


class Mark(NamedTuple):
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


Path = tuple[str | int | None, ...]


class Document:
    """A YAML document as it is parsed: its value, the marks of all values in it by their paths, and its flaws as YAML.

    A document that is created with a flaw has no value: a syntax error ended the text.
    """

    def __init__(self, text: str, events: Iterator[Any], *flaws: Flaw) -> None:
        self.flaws = [*flaws]
        self.marks: dict[Path, Mark] = {(): Mark(flaws[0].line)} if flaws else {}
        self._text, self._events = text, events
        self.value = None if flaws else self._value(next(events), ())

    def _value(self, event: Any, path: Path) -> Any:
        """Return the value that begins with an event, and consume all events of the value."""
        start, end, line = event.start_mark, event.end_mark, event.start_mark.line + 1
        self.marks[path] = Mark(line, start.column + 1)
        if isinstance(event, yaml.AliasEvent):
            self.flaws.append(Flaw(line, f"*{event.anchor} is an alias", _WRITE_OUT))
            return None
        if event.tag not in _TAGS:
            self.flaws.append(Flaw(line, f"the tag {event.tag} is not known"))
        if isinstance(event, yaml.ScalarEvent):
            self.marks[path] = Mark(line, start.column + 1, self._text[start.index : end.index])
            is_text = not event.implicit[0] or event.tag == _TEXT
            value = event.value if is_text else plain_value(event.value)
            return event.value if path[:1] in _TEXTS and value is not None else value
        if len(path) == _DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"it is nested more than {_DEEPEST} deep", problem_mark=start)
        if isinstance(event, yaml.SequenceStartEvent):
            inside = enumerate(self._until(yaml.SequenceEndEvent))
            return [self._value(event, (*path, number)) for number, event in inside]
        found = dict[str, Any]()
        for event in self._until(yaml.MappingEndEvent):
            key, name = self._value(event, (*path, None)), getattr(event, "value", "here")
            line = event.start_mark.line + 1
            if not isinstance(key, str):
                self.flaws.append(Flaw(line, f"the key {name} is not text", "put it in quotes"))
            elif key == "<<":
                self.flaws.append(Flaw(line, "<< merges mappings", _WRITE_OUT))
            elif key in found:
                first = self.marks[(*path, key)].line
                self.flaws.append(Flaw(line, f"duplicate key {key!r}", f"it is in line {first} too"))
            found.setdefault(name, self._value(next(self._events), (*path, name)))
        return found

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


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances for which a template's objects are generated: names by ids."""

    name: str
    instances: Mapping[str, str]
    place: Place


Declaration = BuiltinObject | Removed | Instances
_MODELS: Final[dict[str, type]] = {"instances": Instances, "removed": Removed}
"""What a document of a kind declares; one of another kind is an object."""
_PARTS: Final = {"columns": Column, "was": Was, "sink": SinkSpec}


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    # The configuration of a list is that of the dataclasses in it, which can't be given one.
    return TypeAdapter(list[model], config=ConfigDict(extra="forbid"))


def read(document: Document, place: Place, project: str) -> Declaration | None:
    """Return the declaration of a document; if the document is invalid, add the errors to its flaws and return None."""
    given, marks, flaws = document.value, document.marks, document.flaws
    model: Any = BuiltinObject
    if isinstance(given, dict):
        model = _MODELS.get(str(given.get("kind")), BuiltinObject)
        if "place" in given:
            flaws.append(Flaw(marks["place",].line, "place is not a field"))
        if model is BuiltinObject:
            _list_what_columns_were(given.get("columns"))
            given = {"id": str(stable_id(project, str(given.get("name")))), **given}
        else:
            del given["kind"]
        given["place"] = asdict(place)
    try:
        # Of JSON, a strict reader takes lists for tuples and texts for ids, and a number for no text.
        found: list[Declaration] = _adapter(model).validate_json(json.dumps([given]), strict=True)
    except ValidationError as error:
        flaws += [_flaw(marks, model, error) for error in error.errors(include_url=False)]
    return None if flaws else found[0]


def _list_what_columns_were(columns: Any) -> None:
    """Normalize each column's ``was``, which may be a name, a mapping, or a list of these, to a list of mappings."""
    for column in columns if isinstance(columns, list) else ():
        if isinstance(column, dict) and "was" in column:
            was = column["was"] if isinstance(column["was"], list) else [column["was"]]
            column["was"] = [{"name": name} if isinstance(name, str) else name for name in was]


def _flaw(marks: Mapping[Path, Mark], model: type, error: ErrorDetails) -> Flaw:
    location, problem, remedy = error["loc"][1:], f": {error['msg']}", ""
    if error["type"] == "unexpected_keyword_argument":
        holder = next((_PARTS[part] for part in reversed(location[:-1]) if part in _PARTS), model)
        known = {field.name for field in fields(holder)} - {"place"}
        problem, remedy = " is not a field", nearest(str(location[-1]), known, show=12)
    if not location:
        return Flaw(marks[()].line, "the document is not a mapping", "write each object on its own, --- between two")
    return Flaw(_nearest(marks, location).line, f"{'.'.join(map(str, location))}{problem}", remedy)


def _nearest(marks: Mapping[Path, Mark], location: Path) -> Mark:
    """Return the mark of a location, or of the nearest enclosing location that the document has."""
    return marks[location] if location in marks else _nearest(marks, location[:-1])


@dataclass(frozen=True, slots=True)
class Declared:
    """An object and the marks of its document."""

    obj: BuiltinObject
    marks: Mapping[Path, Mark]

    def problem(self, path: str, problem: str, remedy: str = "") -> Problem:
        """Return a problem at a path, e.g. ``columns.2.type``, or at the nearest enclosing part that has a place."""
        location = tuple(int(part) if part.isdecimal() else part for part in path.split("."))
        place = Place(self.obj.place.file, _nearest(self.marks, location).line)
        return Problem(self.obj.name, problem, remedy, str(place))

    def query_problem(self, line: int, column: int, problem: str, remedy: str) -> Problem:
        """Return a problem at a line and column of the query."""
        place = _nearest(self.marks, ("query",)).place_in(self.obj.query or "", line, column)
        if place is None:
            return self.problem("query", f"line {line}, column {column}: {problem}", remedy)
        return Problem(self.obj.name, problem, remedy, f"{self.obj.place.file}:{place}")
