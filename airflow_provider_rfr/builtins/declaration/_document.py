"""Declarations in YAML: documents with the line of everything in them, their fields, and the objects they make.

Plain values mean what they mean in :mod:`airflow_provider_rfr.documents`. Aliases are refused: an object says
everything itself, and a few lines can't expand without bounds. Nothing here recurses while it parses."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from airflow_provider_rfr.builtins.spec import (
    BuiltinObject,
    Column,
    Kind,
    Place,
    Removed,
    SinkSpec,
    Was,
    nearest,
    stable_id,
)
from airflow_provider_rfr.documents import plain_value
from airflow_provider_rfr.exceptions import Problem

_DEEPEST = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX = "tag:yaml.org,2002:"


@dataclass(slots=True)
class Node:
    """A value and its place.

    :ivar line: from 1
    :ivar value: None, a bool, a number or a text; a list of nodes; nodes by their keys
    :ivar text: a plain value as it was written
    """

    line: int
    value: Any
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong in a text."""

    line: int
    problem: str
    remedy: str = ""


class YamlProblem(Exception):
    """The rest of a text can't be read."""

    def __init__(self, line: int, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.flaw = Flaw(line, problem, remedy)


@dataclass(slots=True)
class _Open:
    """A list or a mapping whose end has not come yet."""

    node: Node
    key: str | None = None
    lines: dict[str, int] = field(default_factory=dict)


def documents(text: str) -> Iterator[tuple[Node, Sequence[Flaw]]]:
    """The documents of a text with what is wrong in them, empty ones left out.

    :raises YamlProblem: after the documents before it
    """
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            done = composer.take(event)
            if done is not None:
                flaws, composer.flaws = composer.flaws, []
                if done.value is not None or flaws:
                    yield done, flaws
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        near = "".join(text.splitlines()[max(line - 2, 0) : line])
        remedy = "indent with spaces: YAML takes no tabs" if "\t" in near else ""
        raise YamlProblem(line, str(error.problem or error.context), remedy) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblem(line, f"the character {chr(error.character)!r} is not allowed") from None
    except yaml.YAMLError:
        raise YamlProblem(1, "the file is not YAML") from None


class _Composer:
    def __init__(self) -> None:
        self.flaws: list[Flaw] = []
        self._open: list[_Open] = []

    def take(self, event: Any) -> Node | None:
        """The document, when this event ends it."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            line = event.start_mark.line + 1
            self._check_tag(event, line, "str")
            is_text = not event.implicit[0] or event.tag == _PREFIX + "str"
            return self._put(Node(line, event.value if is_text else plain_value(event.value), event.value))
        if kind in (yaml.MappingEndEvent, yaml.SequenceEndEvent):
            return self._put(self._open.pop().node)
        if kind in (yaml.MappingStartEvent, yaml.SequenceStartEvent):
            line = event.start_mark.line + 1
            self._check_tag(event, line, "map", "seq")
            if len(self._open) == _DEEPEST:
                raise YamlProblem(line, f"it is nested more than {_DEEPEST} deep")
            self._open.append(_Open(Node(line, {} if kind is yaml.MappingStartEvent else [])))
        elif kind is yaml.AliasEvent:
            line = event.start_mark.line + 1
            self._flaw(line, f"*{event.anchor} is an alias", "write it out; an object says everything itself")
            return self._put(Node(line, None))
        return None

    def _flaw(self, line: int, problem: str, remedy: str = "") -> None:
        self.flaws.append(Flaw(line, problem, remedy))

    def _check_tag(self, event: Any, line: int, *known: str) -> None:
        if event.tag is not None and event.tag not in ("!", *(_PREFIX + each for each in known)):
            self._flaw(line, f"the tag {event.tag} is not known")

    def _put(self, node: Node) -> Node | None:
        if not self._open:
            return node
        holder = self._open[-1]
        if isinstance(holder.node.value, list):
            holder.node.value.append(node)
        elif holder.key is not None:
            holder.node.value.setdefault(holder.key, node)
            holder.key = None
        elif not isinstance(node.value, str):
            self._flaw(node.line, f"the key {node.text or 'here'} is not text", "put it in quotes")
            holder.key = ""
        else:
            holder.key = node.value
            if holder.key == "<<":
                self._flaw(node.line, "<< merges mappings", "write it out; an object says everything itself")
            elif holder.key in holder.lines:
                line = holder.lines[holder.key]
                self._flaw(node.line, f"duplicate key {holder.key!r}", f"it is in line {line} too")
            holder.lines.setdefault(holder.key, node.line)
        return None


Choice = TypeVar("Choice", bound=Enum)
_SHOWN = 40


class Fields:
    """The fields of one mapping."""

    def __init__(self, node: Node, flaws: list[Flaw], path: str = "") -> None:
        self.line = node.line
        self._flaws = flaws
        self._path = path
        self._nodes: dict[str, Node] = {}
        if isinstance(node.value, dict):
            self._nodes = node.value
        elif node.value is not None:
            self._refuse(node, path.rstrip(".") or "the document", "a mapping")

    def only(self, known: Collection[str]) -> None:
        for name, node in self._nodes.items():
            if name not in known:
                self._flaws.append(Flaw(node.line, f"{self._path}{name} is not a field", nearest(name, known, show=12)))

    def wrong(self, name: str, problem: str, remedy: str = "") -> None:
        self._flaws.append(Flaw(self._nodes[name].line, f"{self._path}{name} {problem}", remedy))

    def needs(self, *names: str) -> bool:
        """Note the fields that are missing; whether none is."""
        missing = [name for name in names if name not in self._nodes or self._nodes[name].value is None]
        for name in missing:
            self._flaws.append(Flaw(self.line, f"{self._path}{name} is missing"))
        return not missing

    def text(self, name: str) -> str | None:
        """A text; numbers and booleans are none."""
        node = self._get(name)
        if node is None or isinstance(node.value, str):
            return None if node is None else node.value
        self._refuse(node, f"{self._path}{name}", "a text", "put it in quotes" if node.text is not None else "")
        return None

    def written(self, name: str) -> str | None:
        """A plain value as it was written, so that version 1.10 is not 1.1."""
        node = self._get(name)
        if node is not None and node.text is None:
            self._refuse(node, f"{self._path}{name}", "a text")
        return None if node is None else node.text

    def flag(self, name: str) -> bool:
        """A boolean, false where it is not given."""
        node = self._get(name)
        if node is not None and not isinstance(node.value, bool):
            self._refuse(node, f"{self._path}{name}", "true or false")
        return node is not None and node.value is True

    def flag_or_text(self, name: str, *, default: bool) -> bool | str:
        node = self._get(name)
        if node is None:
            return default
        if isinstance(node.value, (bool, str)):
            return node.value
        self._refuse(node, f"{self._path}{name}", "true, false or a text")
        return default

    def choice(self, name: str, kinds: type[Choice], default: Choice) -> Choice:
        text = self.text(name)
        if text is None:
            return default
        try:
            return kinds(text)
        except ValueError:
            values = [str(each.value) for each in kinds]
            self.wrong(name, f"{text!r} is unknown", nearest(text, values))
            return default

    def texts(self, name: str) -> tuple[str, ...]:
        found = []
        for number, node in self._list(name):
            if isinstance(node.value, str):
                found.append(node.value)
            else:
                self._refuse(node, f"{self._path}{name}.{number}", "a text", "put it in quotes" if node.text else "")
        return tuple(found)

    def each(self, name: str) -> Iterator[Fields]:
        for number, node in self._list(name):
            yield Fields(node, self._flaws, f"{self._path}{name}.{number}.")

    def each_or_one(self, name: str) -> Iterator[str | Fields]:
        """A text or a mapping, or a list of these."""
        node = self._get(name)
        if node is None:
            return
        listed = isinstance(node.value, list)
        for number, each in enumerate(node.value if listed else [node]):
            path = f"{self._path}{name}.{number}" if listed else f"{self._path}{name}"
            if isinstance(each.value, str):
                yield each.value
            elif isinstance(each.value, dict):
                yield Fields(each, self._flaws, f"{path}.")
            else:
                self._refuse(each, path, "a text or a mapping")

    def inside(self, name: str) -> Fields | None:
        node = self._get(name)
        return None if node is None else Fields(node, self._flaws, f"{self._path}{name}.")

    def mapping(self, name: str) -> Mapping[str, str]:
        """Texts by key; plain values as they were written."""
        inside = self.inside(name)
        found = {key: inside.written(key) for key in inside._nodes} if inside is not None else {}
        return MappingProxyType({key: value for key, value in found.items() if value is not None})

    def anything(self, name: str) -> Mapping[str, Any] | None:
        """Any values by key."""
        inside = self.inside(name)
        return None if inside is None else MappingProxyType({key: _plain(node) for key, node in inside._nodes.items()})

    def _get(self, name: str) -> Node | None:
        node = self._nodes.get(name)
        return None if node is None or node.value is None else node

    def _list(self, name: str) -> Iterator[tuple[int, Node]]:
        node = self._get(name)
        if node is not None and not isinstance(node.value, list):
            self._refuse(node, f"{self._path}{name}", "a list")
        elif node is not None:
            yield from enumerate(node.value)

    def _refuse(self, node: Node, path: str, wanted: str, remedy: str = "") -> None:
        found = node.text or "nothing"
        if isinstance(node.value, (dict, list)):
            found = "a mapping" if isinstance(node.value, dict) else "a list"
        shown = found if len(found) <= _SHOWN else found[:_SHOWN] + "..."
        self._flaws.append(Flaw(node.line, f"{path} is {shown}, not {wanted}", remedy))


def _plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return MappingProxyType({key: _plain(each) for key, each in node.value.items()})
    return tuple(map(_plain, node.value)) if isinstance(node.value, list) else node.value


_FIELDS = (
    *("kind", "name", "id", "comment", "owner", "keep", "exportable", "per_instance"),
    *("columns", "keys", "partitioning", "properties", "query", "depends_on", "source", "refresh", "sink"),
)
_TEXTS = ("comment", "owner", "query", "per_instance")
_LISTS = ("keys", "partitioning", "depends_on")
_COLUMN = ("name", "type", "required", "comment", "was")


@dataclass(frozen=True, slots=True)
class Declared:
    """An object, and where each part of it was written.

    :ivar node: its document; None for what was declared in Python
    :ivar ours: it is one of this package's own
    """

    obj: BuiltinObject
    node: Node | None = None
    ours: bool = False

    def problem(self, path: str, problem: str, remedy: str = "") -> Problem:
        """Something wrong at a path, e.g. ``columns.2.type``, or at the nearest part around it that has a place."""
        place, node = self.obj.place, self.node
        for part in path.split("."):
            value = node.value if node is not None else None
            found: Node | None = None
            if isinstance(value, dict):
                found = value.get(part)
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                found = value[int(part)]
            if found is None:
                break
            node = found
        place = place if node is None else Place(place.file, node.line)
        return Problem(self.obj.name, problem, remedy, str(place))


def declared(node: Node, flaws: list[Flaw], *, file: str, project: str, ours: bool) -> Declared | None:
    """The object that a document declares; None if that is not known.

    :param flaws: takes what is wrong
    """
    fields = Fields(node, flaws)
    fields.only(_FIELDS)
    if not isinstance(node.value, dict) or not fields.needs("kind", "name"):
        return None
    before = len(flaws)
    name = fields.text("name")
    kind = fields.choice("kind", Kind, Kind.TABLE)
    if name is None or len(flaws) > before:
        return None
    obj = BuiltinObject(
        kind=kind,
        name=name,
        id=_id(fields) or stable_id(project, name),
        columns=_columns(fields),
        keep=fields.flag_or_text("keep", default=True),
        properties=fields.mapping("properties"),
        exportable=fields.flag("exportable"),
        source=fields.anything("source"),
        refresh=fields.anything("refresh"),
        sink=_sink(fields),
        place=Place(file, node.line),
    )
    texts: dict[str, Any] = {each: fields.text(each) for each in _TEXTS}
    lists: dict[str, Any] = {each: fields.texts(each) for each in _LISTS}
    return Declared(replace(obj, **texts, **lists), node, ours)


def _id(fields: Fields) -> uuid.UUID | None:
    text = fields.text("id")
    try:
        return None if text is None else uuid.UUID(text)
    except ValueError:
        fields.wrong("id", f"{text!r} is not a UUID", "leave it out to have one made from the name")
        return None


def _columns(fields: Fields) -> tuple[Column, ...]:
    found = []
    for each in fields.each("columns"):
        each.only(_COLUMN)
        each.needs("name", "type")
        name, kind = each.text("name"), each.text("type")
        if name is not None and kind is not None:
            was = tuple(_was(each))
            found.append(Column(name, kind, each.flag("required"), each.text("comment"), was))
    return tuple(found)


def _was(column: Fields) -> Iterator[Was]:
    """What a column was: a name, a mapping, or a list of these."""
    for each in column.each_or_one("was"):
        if isinstance(each, str):
            yield Was(each)
        else:
            each.only(("name", "type", "using"))
            yield Was(each.text("name"), each.text("type"), each.text("using"))


def _sink(fields: Fields) -> SinkSpec | None:
    inside = fields.inside("sink")
    if inside is None:
        return None
    inside.only(("source", "to", "settings", "columns", "follow_schema", "on_replace"))
    inside.needs("source", "to")
    return SinkSpec(
        inside.text("source") or "",
        inside.text("to") or "",
        inside.anything("settings") or {},
        inside.texts("columns"),
        inside.flag("follow_schema"),
        inside.text("on_replace") or "hold",
    )


def removed(node: Node, flaws: list[Flaw], file: str) -> Removed | None:
    """What a document of kind ``removed`` names."""
    fields = Fields(node, flaws)
    fields.only(("kind", "name"))
    name = fields.text("name") if fields.needs("name") else None
    return None if name is None else Removed(name, Place(file, node.line))


def problems_in(flaws: Sequence[Flaw], file: str, name: str) -> list[Problem]:
    """What is wrong in a document, with its place."""
    return [Problem(name, each.problem, each.remedy, str(Place(file, each.line))) for each in flaws]
