"""What has to hold of each object by itself, whether it comes from YAML or from Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from airflow_provider_rfr.builtins.columns import (
    Finding,
    canonical_columns,
    canonical_partitioning,
    column_findings,
    key_findings,
    partition_findings,
)
from airflow_provider_rfr.builtins.fingerprint import contract_of
from airflow_provider_rfr.builtins.names import is_plain, name_problem, nearest
from airflow_provider_rfr.builtins.planning import chain
from airflow_provider_rfr.builtins.spec import (
    QUERIED,
    STORED,
    BuiltinObject,
    Contents,
    How,
    Kind,
    Migration,
    Removal,
    SinkSpec,
)
from airflow_provider_rfr.builtins.sql.parse import check_expression
from airflow_provider_rfr.builtins.wanted import is_gone, release
from airflow_provider_rfr.exceptions import ConfigurationError, QueryError

_QUERY = ("query", "depends_on", "follow_star")
_SOURCE = ("source", "refresh")
_STORAGE = ("partitioning", "keys", "migrations", "exportable", "protect")
_STRANGE: dict[Kind, Sequence[str]] = {
    Kind.TABLE: (*_QUERY, *_SOURCE, "sink"),
    Kind.LOG: (*_QUERY, *_SOURCE, "sink"),
    Kind.SOURCE: (*_QUERY, "sink"),
    Kind.MATERIALIZED_VIEW: (*_SOURCE, "sink"),
    Kind.VIEW: (*_STORAGE, *_SOURCE, "sink"),
    Kind.SINK: (*_QUERY, *_STORAGE, *_SOURCE, "columns", "properties"),
}
_NEEDED: dict[Kind, Sequence[str]] = {
    Kind.TABLE: ("columns",),
    Kind.LOG: ("columns",),
    Kind.SOURCE: ("source",),
    Kind.MATERIALIZED_VIEW: ("columns", "query"),
    Kind.VIEW: ("query",),
    Kind.SINK: ("sink",),
}
INSTRUCTIONS = (How.EVOLVE, How.REWRITE, How.SHADOW, How.RECOMPUTE, How.REPLACE_EMPTY)
"""Mechanisms that can lead from one contract to another."""
ON_REPLACE = ("hold", "resume_from_new", "resend")
_FILLED = ("rfr.generated", "objects")
_TARGETS = {"files": ("path",), "http": ("connection",)}
_EMITS = ("rows", "diff")
_FORMATS = ("jsonl", "parquet")
_DIGEST = re.compile(r"c1:[0-9a-f]{8,64}[.…]*")


def canonical(obj: BuiltinObject) -> BuiltinObject:
    """The object with its types and transforms written in the one way, and nothing in it that could be changed."""
    columns = canonical_columns(obj.columns)
    return replace(
        obj,
        columns=columns,
        partitioning=canonical_partitioning(obj.partitioning, columns),
        keys=tuple(obj.keys),
        depends_on=tuple(obj.depends_on),
        migrations=tuple(obj.migrations),
        properties=MappingProxyType(dict(obj.properties)),
        source=_frozen(obj.source),
        refresh=_frozen(obj.refresh),
    )


def _frozen(given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if given is None else MappingProxyType(dict(given))


def findings(obj: BuiltinObject, version: str) -> Iterator[Finding]:
    """What is wrong with one object.

    :param version: of the project; what is gone in it needs nothing but its name
    """
    if problem := name_problem(obj.name):
        yield Finding("name", problem, "write namespace.name")
    if obj.removed is not None:
        yield from _removal(obj.removed)
    if not is_gone(obj, version):
        yield from _shape(obj)
        yield from column_findings(obj.columns)
        yield from _storage(obj) if obj.kind in STORED else ()
        yield from _sink(obj.sink) if obj.kind is Kind.SINK and obj.sink is not None else ()


def _shape(obj: BuiltinObject) -> Iterator[Finding]:
    for name in _STRANGE[obj.kind]:
        if getattr(obj, name):
            yield Finding(name, f"a {obj.kind.value} has no {name}")
    for name in _NEEDED[obj.kind]:
        if not getattr(obj, name):
            yield Finding(name, f"a {obj.kind.value} has {name}", "none is given")
    for name, value in obj.properties.items():
        if name.casefold().startswith("rfr.") and (name, value) != _FILLED:
            yield Finding(f"properties.{name}", f"{name} is one of the marks that a deploy writes", "take another name")
    if obj.per_instance is not None and not is_plain(obj.per_instance):
        yield Finding("per_instance", f"{obj.per_instance!r} is no name")


def _storage(obj: BuiltinObject) -> Iterator[Finding]:
    if obj.protect is not None and not obj.protect.strip():
        yield Finding("protect", "protect says why, and nothing is said")
    if obj.columns:
        yield from key_findings(obj.keys, obj.columns)
        yield from partition_findings(obj.partitioning, obj.columns)
    seen = dict[tuple[str, str], int]()
    for number, each in enumerate(obj.migrations):
        for found in _migration(each, obj):
            yield Finding(f"migrations.{number}.{found.path}", found.problem, found.remedy)
        if seen.setdefault((each.before, each.after), number) != number:
            yield Finding(f"migrations.{number}", f"two instructions lead from {each.before} to {each.after}")


def _migration(each: Migration, obj: BuiltinObject) -> Iterator[Finding]:
    for path, digest in (("from", each.before), ("to", each.after)):
        if not _DIGEST.fullmatch(digest):
            yield Finding(path, f"{digest!r} is no contract fingerprint", "write c1: and at least 8 of its digits")
    if each.before == each.after:
        yield Finding("to", f"it leads from {each.before} to itself")
    if each.how not in INSTRUCTIONS:
        allowed = ", ".join(how.value for how in INSTRUCTIONS)
        yield Finding("how", f"{each.how.value} changes no columns", f"allowed: {allowed}")
    if each.how is How.REPLACE_EMPTY and obj.protect is not None:
        yield Finding("how", f"replace_empty would lose its rows, and it is protected: {obj.protect}", "write rewrite")
    if each.how is How.RECOMPUTE and obj.kind not in QUERIED and obj.contents is not Contents.DERIVABLE:
        yield Finding("how", "recompute needs a query, or contents: derivable", "write rewrite")
    yield from _expressions(each, obj)


def _expressions(each: Migration, obj: BuiltinObject) -> Iterator[Finding]:
    if each.expressions and each.how not in (How.REWRITE, How.SHADOW):
        yield Finding("expressions", f"{each.how.value} computes nothing", "write rewrite")
    names = {column.name.casefold() for column in obj.columns}
    last = chain.names(each.after, _contract(obj)) if _DIGEST.fullmatch(each.after) else False
    for name, expression in each.expressions.items():
        if last and name.casefold() not in names:
            known = nearest(name, (column.name for column in obj.columns))
            yield Finding(f"expressions.{name}", f"there is no column {name}", known)
        try:
            check_expression(expression)
        except QueryError as error:
            yield Finding(f"expressions.{name}", f"{name}: {error.problem}", error.remedy)


def _contract(obj: BuiltinObject) -> str:
    try:
        return contract_of(obj.columns).digest
    except ConfigurationError:
        return ""


def _removal(removed: Removal) -> Iterator[Finding]:
    if not removed.deprecated_since.strip() or not removed.removed_in.strip():
        yield Finding("removed", "a removal says deprecated_since and removed_in, two versions")
    elif release(removed.deprecated_since) > release(removed.removed_in):
        yield Finding("removed", f"it is removed in {removed.removed_in}, before {removed.deprecated_since}")


def _sink(sink: SinkSpec) -> Iterator[Finding]:
    if sink.on_replace not in ON_REPLACE:
        yield Finding("sink.on_replace", f"{sink.on_replace!r} is unknown", nearest(sink.on_replace, ON_REPLACE))
    if sink.to not in _TARGETS:
        yield Finding("sink.to", f"{sink.to!r} is no target", nearest(sink.to, _TARGETS))
    for name in _TARGETS.get(sink.to, ()):
        if not isinstance(sink.settings.get(name), str) or not sink.settings[name]:
            yield Finding("sink.settings", f"a sink to {sink.to} has settings.{name}, a text")
    form = sink.settings.get("format", "jsonl")
    if sink.to == "files" and form not in _FORMATS:
        yield Finding("sink.settings.format", f"{form!r} is no format", nearest(str(form), _FORMATS))
    emit = sink.settings.get("emit", "rows")
    if emit not in _EMITS:
        yield Finding("sink.settings.emit", f"{emit!r} is unknown", nearest(str(emit), _EMITS))
    keys = sink.settings.get("keys", [])
    if not isinstance(keys, (list, tuple)) or not all(isinstance(each, str) for each in keys):
        yield Finding("sink.settings.keys", f"{keys!r} is no list of columns")
    size = sink.settings.get("batch_size", 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        yield Finding("sink.settings.batch_size", f"{size!r} is no number of rows")
