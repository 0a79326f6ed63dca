"""From YAML to declarations: pydantic reads the value types, and each mistake gets its line.

Plain values mean what they mean in :mod:`airflow_provider_rfr.documents`. Aliases are refused: an object says
everything itself, and a few lines can't expand without bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import takewhile
from typing import Any, Final

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from airflow_provider_rfr.builtins.spec import BuiltinObject, Column, Kind, Place, Removed, Was, nearest, stable_id
from airflow_provider_rfr.builtins.sql.parse import Flaw
from airflow_provider_rfr.documents import plain_value
from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.sinks.spec import SinkSpec

_DEEPEST: Final = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT: Final = "tag:yaml.org,2002:str"
_TAGS: Final = (None, "!", _TEXT, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_WRITE_OUT: Final = "write it out; an object says everything itself"


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place.

    :ivar value: None, a bool, a number or a text; a list of nodes; nodes by their keys
    :ivar text: a plain value as it was written
    :ivar raw: what the file has for a value without parts, with its quotes or its ``|``
    """

    line: int
    value: Any
    text: str | None = None
    column: int = 1
    raw: str = ""

    def place_in(self, flaw: Flaw) -> str:
        """Line and column of a flaw of a text in the file; empty where the file writes the text otherwise."""
        raw, lines = self.raw, str(self.value).split("\n")
        is_block, is_quoted = raw[:1] in ("|", ">"), raw[:1] in ("'", '"')
        # Of what is not escaped, YAML changes nothing but white space.
        places = range(raw.find("\n") + 1 if is_block else int(is_quoted), len(raw) - int(is_quoted))
        ink = [each for each in places if not raw[each].isspace()]
        before = "".join([*lines[: flaw.line - 1], lines[flaw.line - 1][: flaw.column - 1]])
        number = len("".join(before.split()))
        if "".join(raw[each] for each in ink) != "".join("".join(lines).split()) or number >= len(ink):
            return ""
        above, start = raw.count("\n", 0, ink[number]), raw.rfind("\n", 0, ink[number])
        return f"{self.line + above}:{ink[number] - start if above else self.column + ink[number]}"


def documents(text: str) -> Iterator[tuple[Node, list[Flaw]]]:
    """The documents of a text with what is wrong in them, empty ones left out. A mistake of syntax ends the text: it
    comes with a node without a value, after the documents before it."""
    reader = _Reader(text)
    try:
        for event in reader.events:
            if isinstance(event, yaml.DocumentStartEvent):
                reader.flaws = []
                node = reader.node(next(reader.events))
                if node.value is not None or reader.flaws:
                    yield node, reader.flaws
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
    yield Node(flaw.line, None), [flaw]


class _Reader:
    """Makes nodes of events; ``flaws`` are those of the present document."""

    def __init__(self, text: str) -> None:
        self.events = iter(yaml.parse(text, Loader=_LOADER))
        self.flaws: list[Flaw] = []
        self._text = text

    def node(self, event: Any, depth: int = 0) -> Node:
        """The node that begins with an event; it takes all events of the node."""
        start, end, line = event.start_mark, event.end_mark, event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            self.flaws.append(Flaw(line, f"*{event.anchor} is an alias", _WRITE_OUT))
            return Node(line, None)
        if event.tag not in _TAGS:
            self.flaws.append(Flaw(line, f"the tag {event.tag} is not known"))
        if isinstance(event, yaml.ScalarEvent):
            is_text = not event.implicit[0] or event.tag == _TEXT
            value = event.value if is_text else plain_value(event.value)
            return Node(line, value, event.value, start.column + 1, self._text[start.index : end.index])
        if depth == _DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"it is nested more than {_DEEPEST} deep", problem_mark=start)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(line, [self.node(each, depth + 1) for each in self._until(yaml.SequenceEndEvent)])
        return Node(line, self._mapping(depth + 1))

    def _mapping(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for event in self._until(yaml.MappingEndEvent):
            key, value = self.node(event, depth), self.node(next(self.events), depth)
            if not isinstance(key.value, str):
                self.flaws.append(Flaw(key.line, f"the key {key.text or 'here'} is not text", "put it in quotes"))
                continue
            if key.value == "<<":
                self.flaws.append(Flaw(key.line, "<< merges mappings", _WRITE_OUT))
            elif key.value in found:
                remedy = f"it is in line {found[key.value].line} too"
                self.flaws.append(Flaw(key.line, f"duplicate key {key.value!r}", remedy))
            found.setdefault(key.value, value)
        return found

    def _until(self, end: type) -> Iterator[Any]:
        return takewhile(lambda event: not isinstance(event, end), self.events)


@dataclass(frozen=True, slots=True)
class Instances:
    """For which instances objects are made: names by ids."""

    name: str
    instances: Mapping[str, str]
    place: Place


Declaration = BuiltinObject | Removed | Instances
_MODELS: Final[dict[str | None, type]] = {"instances": Instances, "removed": Removed}
"""What a document of a kind declares; one of another kind is an object."""
_PARTS: Final = {"columns": Column, "was": Was, "sink": SinkSpec, "properties": str, "instances": str}
"""What is in these fields; plain values in those of texts are texts, as they were written."""
_WANTED: Final = {
    **dict.fromkeys(("string_type", "uuid_type", "enum"), "a text"),
    **dict.fromkeys(("dict_type", "dataclass_type"), "a mapping"),
    "bool_type": "true or false",
    "keep": "true, false or a text",
    "tuple_type": "a list",
    "was": "a text or a mapping",
}
_NESTED: Final[Mapping[type, str]] = {dict: "a mapping", list: "a list"}
_SHOWN: Final = 40
_adapter = cache(TypeAdapter)


def read(node: Node, place: Place, project: str, flaws: list[Flaw]) -> Declaration | None:
    """What a document declares; None if it is wrong, and ``flaws`` takes what is."""
    kind = node.value.get("kind") if isinstance(node.value, dict) else None
    model = _MODELS.get(kind.text if kind is not None else None, BuiltinObject)
    given = _plain(node, model, flaws)
    if isinstance(given, dict):
        given = {"id": str(stable_id(project, str(given.get("name")))), **given, "place": asdict(place)}
    try:
        # Of JSON, a strict reader takes lists for tuples and texts for ids, and a number for no text.
        found: Declaration = _adapter(model).validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        flaws += [_flaw(node, each) for each in error.errors(include_url=False)]
    return None if flaws else found


def _plain(node: Node, model: type | None, flaws: list[Flaw], path: str = "") -> Any:
    """The value as JSON has it; fields that its model does not know are flaws. No model: whatever its author wants."""
    if isinstance(node.value, list):
        return [_plain(each, model, flaws, f"{path}{number}.") for number, each in enumerate(node.value)]
    if not isinstance(node.value, dict):
        return node.text if model is str and node.value is not None else node.value
    if model is None or model is str or path.endswith("columns."):
        # Its keys are the author's own; of columns, it is a problem of its own that they are no list.
        return {key: _plain(each, model, flaws) for key, each in node.value.items()}
    found, known = {}, {each.name for each in fields(model)} - {"place"} | ({"kind"} if not path else set())
    for key, each in node.value.items():
        if key not in known:
            flaws.append(Flaw(each.line, f"{path}{key} is not a field", nearest(key, known, show=12)))
        elif each.value is not None:
            # A field without a value is as good as left out.
            value = _plain(each, _PARTS.get(key), flaws, f"{path}{key}.")
            found[key] = _listed(value) if key == "was" else value
    return found


def _listed(was: Any) -> list[Any]:
    """A name, a mapping, or a list of these."""
    return [{"name": each} if isinstance(each, str) else each for each in (was if isinstance(was, list) else [was])]


def _flaw(node: Node, error: ErrorDetails) -> Flaw:
    location, kind = error["loc"], error["type"]
    if location[:1] == ("keep",):
        # It may be of two types, and there is an error for each.
        location, kind = location[:1], "keep"
    path, there = _inside(node, location)
    if kind == "missing" or (location and there.value is None):
        return Flaw(there.line, f"{path} is missing")
    if kind == "enum" and there.text is not None:
        return Flaw(there.line, f"{path} {there.text!r} is unknown", nearest(there.text, [each.value for each in Kind]))
    if kind == "uuid_parsing":
        return Flaw(there.line, f"{path} {there.text!r} is not a UUID", "leave it out to have one made from the name")
    wanted = _WANTED.get("was" if kind == "dataclass_type" and "was" in location else kind, kind.replace("_", " "))
    given = _NESTED.get(type(there.value)) or (there.text or "nothing")[:_SHOWN]
    quotes = "put it in quotes" if wanted == "a text" and there.text is not None else ""
    return Flaw(there.line, f"{path or 'the document'} is {given}, not {wanted}", quotes)


def _inside(node: Node, location: Sequence[str | int]) -> tuple[str, Node]:
    """The path as it is in the document, and the value there, or the nearest one around it."""
    path: list[str] = []
    for part in location:
        if isinstance(part, int) and not isinstance(node.value, list):
            # One that was taken for a list of one.
            continue
        path.append(str(part))
        if isinstance(node.value, dict):
            node = node.value.get(part, node)
        elif isinstance(node.value, list) and str(part).isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
    return ".".join(path), node


@dataclass(frozen=True, slots=True)
class Declared:
    """An object and its document; for what was declared in Python one without a value."""

    obj: BuiltinObject
    node: Node

    def problem(self, path: str, problem: str, remedy: str = "") -> Problem:
        """Something wrong at a path, e.g. ``columns.2.type``, or at the nearest part around it that has a place."""
        _, there = _inside(self.node, path.split("."))
        return Problem(self.obj.name, problem, remedy, str(Place(self.obj.place.file, there.line)))

    def flaw(self, path: str, flaw: Flaw) -> Problem:
        """Something wrong in the text at a path."""
        _, there = _inside(self.node, [path])
        if there.raw and (place := there.place_in(flaw)):
            return Problem(self.obj.name, flaw.problem, flaw.remedy, f"{self.obj.place.file}:{place}")
        return self.problem(path, f"line {flaw.line}, column {flaw.column}: {flaw.problem}", flaw.remedy)
