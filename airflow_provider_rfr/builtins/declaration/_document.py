"""From a YAML document to the value that it declares: pydantic reads the value types, each mistake gets its line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from airflow_provider_rfr.builtins.declaration._yaml import Flaw, Node
from airflow_provider_rfr.builtins.spec import BuiltinObject, Column, Kind, Place, Removed, Was, nearest, stable_id
from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.sinks.spec import SinkSpec


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
    "string_type": "a text",
    "uuid_type": "a text",
    "enum": "a text",
    "bool_type": "true or false",
    "keep": "true, false or a text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
}
_SHOWN: Final = 40
_adapter = cache(TypeAdapter)


def read(node: Node, place: Place, project: str, flaws: list[Flaw]) -> Declaration | None:
    """What a document declares; None if it is wrong.

    :param flaws: takes what is wrong
    """
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
    """The value as JSON has it.

    :param model: what it is; None: whatever its author wants
    :param flaws: takes fields that are not known
    """
    if isinstance(node.value, list):
        return [_plain(each, model, flaws, f"{path}{number}.") for number, each in enumerate(node.value)]
    if not isinstance(node.value, dict):
        return node.text if model is str and node.value is not None else node.value
    if model is None or model is str or path.endswith("columns."):
        # Its keys are the author's own; of columns, it is a problem of its own that they are no list.
        return {key: _plain(each, model, flaws) for key, each in node.value.items()}
    found, known = {}, _fields(model) if path else _fields(model) | {"kind"}
    for key, each in node.value.items():
        if key not in known:
            flaws.append(Flaw(each.line, f"{path}{key} is not a field", nearest(key, known, show=12)))
        elif each.value is not None:
            # A field without a value is as good as left out.
            value = _plain(each, _PARTS.get(key), flaws, f"{path}{key}.")
            found[key] = _listed(value) if key == "was" else value
    return found


@cache
def _fields(model: Any) -> frozenset[str]:
    return frozenset(each.name for each in fields(model)) - {"place"}


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
    wanted = _WANTED.get(kind, kind.replace("_", " "))
    if kind == "dataclass_type" and "was" in location:
        wanted = "a text or a mapping"
    quotes = "put it in quotes" if wanted == "a text" and there.text is not None else ""
    return Flaw(there.line, f"{path or 'the document'} is {_shown(there)}, not {wanted}", quotes)


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


def _shown(node: Node) -> str:
    if isinstance(node.value, (dict, list)):
        return "a mapping" if isinstance(node.value, dict) else "a list"
    text = node.text or "nothing"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


@dataclass(frozen=True, slots=True)
class Declared:
    """An object, and where each part of it was written.

    :ivar node: its document; for what was declared in Python one without a value
    :ivar ours: it is one of this package's own
    """

    obj: BuiltinObject
    node: Node
    ours: bool

    def problem(self, path: str, problem: str, remedy: str = "", at: tuple[int, int] | None = None) -> Problem:
        """Something wrong at a path, e.g. ``columns.2.type``, or at the nearest part around it that has a place.

        :param at: line and column in the text at that path
        """
        _, there = _inside(self.node, path.split("."))
        line, column = there.place_in(*at) if at is not None and there.raw else (there.line, None)
        if at is not None and column is None:
            problem = f"line {at[0]}, column {at[1]}: {problem}"
        place = Place(self.obj.place.file, line)
        return Problem(self.obj.name, problem, remedy, f"{place}" if column is None else f"{place}:{column}")
