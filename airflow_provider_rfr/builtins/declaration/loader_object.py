"""From a YAML document to an object, with the places of its fields."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_rfr.builtins.declaration.loader_fields import Fields
from airflow_provider_rfr.builtins.declaration.loader_yaml import Flaw, Node
from airflow_provider_rfr.builtins.spec import (
    BuiltinObject,
    Column,
    Contents,
    How,
    Kind,
    Migration,
    Place,
    Removal,
    SinkSpec,
    Stability,
    stable_id,
)
from airflow_provider_rfr.exceptions import DeclarationProblem

FIELDS = (
    *("kind", "name", "id", "comment", "owner", "stability", "contents", "protect", "exportable", "per_instance"),
    *("columns", "keys", "partitioning", "properties", "query", "depends_on", "follow_star", "source", "refresh"),
    *("sink", "migrations", "removed"),
)
_UNKNOWN = "?"
_COLUMN = ("name", "type", "required", "comment", "renamed_from")


@dataclass(frozen=True, slots=True)
class Declared:
    """An object, and where each part of it was written.

    :ivar node: its document; None for what was declared in Python
    :ivar ours: it is one of this package's own
    """

    obj: BuiltinObject
    node: Node | None = None
    ours: bool = False

    def problem(self, path: str, problem: str, remedy: str = "") -> DeclarationProblem:
        """Something wrong at a path, e.g. ``columns.2.type``, or at the nearest part around it that has a place."""
        place = self.obj.place
        if self.node is not None:
            place = Place(place.file, _line(self.node, path))
        return DeclarationProblem(str(place), self.obj.name, problem, remedy)


def _line(node: Node, path: str) -> int:
    for part in path.split("."):
        inside = node.value[int(part) : int(part) + 1] if isinstance(node.value, list) and part.isdigit() else []
        found = node.value.get(part) if isinstance(node.value, dict) else next(iter(inside), None)
        if found is None:
            break
        node = found
    return node.line


def declared(node: Node, flaws: list[Flaw], *, file: str, project: str, ours: bool) -> Declared | None:
    """The object that a document declares; None if that can't be told.

    :param flaws: takes what is wrong
    """
    fields = Fields(node, flaws)
    fields.only(FIELDS)
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
        contents=fields.choice("contents", Contents, Contents.HISTORY),
        partitioning=fields.texts("partitioning"),
        keys=fields.texts("keys"),
        properties=fields.mapping("properties"),
        depends_on=fields.texts("depends_on"),
        follow_star=fields.flag("follow_star"),
        source=fields.anything("source"),
        sink=_sink(fields),
        migrations=_migrations(fields),
        removed=_removal(fields),
        place=Place(file, node.line),
    )
    return Declared(_with_words(obj, fields), node, ours)


def _with_words(obj: BuiltinObject, fields: Fields) -> BuiltinObject:
    return replace(
        obj,
        stability=fields.choice("stability", Stability, Stability.STABLE),
        exportable=fields.flag("exportable"),
        protect=fields.text("protect"),
        comment=fields.text("comment"),
        owner=fields.text("owner"),
        query=fields.text("query"),
        per_instance=fields.text("per_instance"),
        refresh=fields.anything("refresh"),
    )


def _id(fields: Fields) -> uuid.UUID | None:
    text = fields.text("id")
    if text is None:
        return None
    try:
        return uuid.UUID(text)
    except ValueError:
        fields.wrong("id", f"{text!r} is no UUID", "leave it out to have one made from the name")
        return None


def _columns(fields: Fields) -> tuple[Column, ...]:
    found = []
    for each in fields.each("columns"):
        each.only(_COLUMN)
        each.needs("name", "type")
        name, kind = each.text("name"), each.text("type")
        if name is not None and kind is not None:
            comment, before = each.text("comment"), each.text("renamed_from")
            found.append(Column(name, kind, each.flag("required"), comment, before))
    return tuple(found)


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


def _migrations(fields: Fields) -> tuple[Migration, ...]:
    return tuple(found for each in fields.each("migrations") if (found := _migration(each)) is not None)


def _migration(each: Fields) -> Migration | None:
    each.only(("from", "to", "how", "expressions", "note"))
    complete = each.needs("from", "to", "how")
    before, after = each.written("from"), each.written("to")
    how = each.choice("how", How, How.EVOLVE)
    if not complete or before is None or after is None:
        return None
    return Migration(before, after, how, each.mapping("expressions"), each.text("note"))


def _removal(fields: Fields) -> Removal | None:
    inside = fields.inside("removed")
    if inside is None:
        return None
    inside.only(("deprecated_since", "removed_in"))
    inside.needs("deprecated_since", "removed_in")
    return Removal(inside.written("deprecated_since") or _UNKNOWN, inside.written("removed_in") or _UNKNOWN)


def told(flaws: Sequence[Flaw], file: str, name: str) -> list[DeclarationProblem]:
    """What is wrong in a document, with its place."""
    return [DeclarationProblem(str(Place(file, each.line)), name, each.problem, each.remedy) for each in flaws]
