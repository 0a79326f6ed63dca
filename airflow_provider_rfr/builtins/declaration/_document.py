"""What a document may say, as pydantic models, and the values that it makes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from airflow_provider_rfr.builtins.declaration._yaml import Flaw, Node
from airflow_provider_rfr.builtins.spec import (
    BuiltinObject,
    Column,
    Kind,
    Place,
    Was,
    nearest,
    stable_id,
)
from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.sinks.spec import SinkSpec

Model = TypeVar("Model", bound="Document")


class _Part(BaseModel):
    """Types are strict: a number is no text. A field without a value is as good as left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


class _Was(_Part):
    name: str | None = None
    type: str | None = None
    using: str | None = None


class _Column(_Part):
    name: str
    type: str
    required: bool = False
    comment: str | None = None
    was: list[_Was] = []

    @field_validator("was", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> list[Any]:
        """A name, a mapping, or a list of these."""
        return [{"name": each} if isinstance(each, str) else each for each in (value if _is_list(value) else [value])]


class _Sink(_Part):
    source: str
    to: str
    settings: dict[str, Any] = {}
    columns: list[str] = []
    follow_schema: bool = False
    on_replace: str = "hold"


class Document(_Part):
    """One of several kinds."""

    name: str


class InstancesDocument(Document):
    """For which instances objects are made: names by ids."""

    kind: Literal["instances"]
    instances: dict[str, str]


class RemovedDocument(Document):
    """Something goes, with its rows."""

    kind: Literal["removed"]


class ObjectDocument(Document):
    """An object; see :class:`~airflow_provider_rfr.builtins.spec.BuiltinObject`."""

    kind: Literal["table", "view", "materialized_view", "source", "sink", "log"]
    id: str | None = None
    comment: str | None = None
    owner: str | None = None
    keep: Any = True
    exportable: bool = False
    per_instance: str | None = None
    columns: list[_Column] = []
    keys: list[str] = []
    partitioning: list[str] = []
    properties: dict[str, str] = {}
    query: str | None = None
    depends_on: list[str] = []
    source: dict[str, Any] | None = None
    refresh: dict[str, Any] | None = None
    sink: _Sink | None = None

    @field_validator("keep")
    @classmethod
    def _flag_or_text(cls, value: Any) -> bool | str:
        if isinstance(value, (bool, str)):
            return value
        raise PydanticCustomError("wanted", "true, false or a text")

    @field_validator("id")
    @classmethod
    def _uuid(cls, value: str) -> str:
        try:
            return str(uuid.UUID(value))
        except ValueError:
            raise ValueError(f"{value!r} is not a UUID; leave it out to have one made from the name") from None


_AS_WRITTEN: Final = ("properties", "instances")
"""Fields whose plain values are texts, as they were written."""
_INSIDE: Final[Mapping[str, type[_Part]]] = {"columns": _Column, "was": _Was, "sink": _Sink}
_WANTED: Final = {
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_SHOWN: Final = 40


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _plain(node: Node, *, written: bool = False) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(each, written=written or key in _AS_WRITTEN) for key, each in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(each) for each in node.value]
    return node.text if written and node.value is not None else node.value


def read(model: type[Model], node: Node, flaws: list[Flaw]) -> Model | None:
    """The document of a node; None if it is wrong.

    :param flaws: takes what is wrong
    """
    try:
        return model.model_validate(_plain(node))
    except ValidationError as error:
        flaws += [_flaw(model, node, each) for each in error.errors(include_url=False)]
    return None


def _flaw(model: type[Document], node: Node, error: ErrorDetails) -> Flaw:
    location, kind = error["loc"], error["type"]
    path, there = _inside(node, location)
    if kind == "missing" or (location and there.value is None):
        return Flaw(there.line, f"{path} is missing")
    if kind == "extra_forbidden":
        around = map(str, reversed(location[:-1]))
        holder: type[_Part] = next((_INSIDE[part] for part in around if part in _INSIDE), model)
        return Flaw(there.line, f"{path} is not a field", nearest(str(location[-1]), holder.model_fields, show=12))
    if kind == "literal_error":
        return Flaw(
            there.line, f"{path} {there.text!r} is unknown", nearest(str(there.text), [each.value for each in Kind])
        )
    if kind == "value_error":
        problem, _, remedy = str(error["ctx"]["error"]).partition("; ")
        return Flaw(there.line, f"{path} {problem}", remedy)
    wanted = error["msg"] if kind == "wanted" else _WANTED.get(kind, kind.replace("_", " "))
    if kind == "model_type" and "was" in location:
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

    :ivar node: its document; None for what was declared in Python
    :ivar ours: it is one of this package's own
    """

    obj: BuiltinObject
    node: Node | None = None
    ours: bool = False

    def problem(self, path: str, problem: str, remedy: str = "", at: tuple[int, int] | None = None) -> Problem:
        """Something wrong at a path, e.g. ``columns.2.type``, or at the nearest part around it that has a place.

        :param at: line and column in the text at that path
        """
        place, column = self.obj.place, None
        if self.node is not None:
            _, there = _inside(self.node, path.split("."))
            line, column = (there.line, None) if at is None else there.place_in(*at)
            place = Place(place.file, line)
        if at is not None and column is None:
            problem = f"line {at[0]}, column {at[1]}: {problem}"
        return Problem(self.obj.name, problem, remedy, f"{place}" if column is None else f"{place}:{column}")


def object_of(document: ObjectDocument, place: Place, project: str) -> BuiltinObject:
    """The object that a document declares."""
    columns = (
        Column(each.name, each.type, each.required, each.comment, tuple(Was(**dict(was)) for was in each.was))
        for each in document.columns
    )
    return BuiltinObject(
        kind=Kind(document.kind),
        name=document.name,
        id=uuid.UUID(document.id) if document.id is not None else stable_id(project, document.name),
        columns=tuple(columns),
        keep=document.keep,
        partitioning=tuple(document.partitioning),
        keys=tuple(document.keys),
        properties=MappingProxyType(document.properties),
        comment=document.comment,
        owner=document.owner,
        query=document.query,
        depends_on=tuple(document.depends_on),
        exportable=document.exportable,
        per_instance=document.per_instance,
        source=_frozen(document.source),
        refresh=_frozen(document.refresh),
        sink=_sink_of(document.sink),
        place=place,
    )


def _sink_of(sink: _Sink | None) -> SinkSpec | None:
    if sink is None:
        return None
    columns, settings = tuple(sink.columns), _frozen(sink.settings)
    return SinkSpec(sink.source, sink.to, settings, columns, sink.follow_schema, sink.on_replace)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(each) for key, each in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def problems_in(flaws: Sequence[Flaw], file: str, name: str) -> list[Problem]:
    """What is wrong in a document, with its place."""
    return [Problem(name, each.problem, each.remedy, str(Place(file, each.line))) for each in flaws]
