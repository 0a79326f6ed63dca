"""What an object may read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_rfr.builtins.columns import named
from airflow_provider_rfr.builtins.declaration.loader_object import Declared
from airflow_provider_rfr.builtins.names import namespace_of, nearest
from airflow_provider_rfr.builtins.spec import STORED, BuiltinObject, Kind, Stability
from airflow_provider_rfr.builtins.sql.queries import Reads, unqualified
from airflow_provider_rfr.exceptions import DeclarationProblem


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that is declared.

    :ivar alive: by name, as it is compared; tombstones are left out
    :ivar all: tombstones too
    :ivar whole: a name that is not there is not declared
    """

    alive: Mapping[str, Declared]
    all: Mapping[str, Declared]
    whole: bool
    namespaces: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespaces", frozenset(map(namespace_of, self.all)))


def read_problems(reader: Declared, reads: Sequence[Reads], known: Known) -> Iterator[DeclarationProblem]:
    """What is wrong with the names that an object reads."""
    obj = reader.obj
    path = "query" if obj.sink is None else "sink.source"
    for name in unqualified(obj.query) if obj.query is not None else ():
        remedy = f"write {namespace_of(obj.name)}.{name}"
        yield reader.problem(path, f"{name} has no namespace, and Spark's own may be any", remedy)
    for each in reads:
        found = known.alive.get(each.name)
        told = _missing(reader, each.name, known) if found is None else _refused(obj, found.obj)
        if told is not None:
            yield reader.problem(path, *told)
    if obj.sink is not None and obj.sink.source.casefold() in known.alive:
        source = known.alive[obj.sink.source.casefold()].obj
        for finding in named(obj.sink.columns, (c.name for c in source.columns), "sink.columns", "column"):
            yield reader.problem(finding.path, finding.problem, finding.remedy)


def _missing(reader: Declared, name: str, known: Known) -> tuple[str, str] | None:
    if name in known.all:
        removed = known.all[name].obj.removed
        return f"it reads {name}, which is removed in {removed.removed_in if removed else '?'}", "read something else"
    if name in (each.casefold() for each in reader.obj.depends_on):
        return None
    _, _, inside = name.partition(".")
    if inside in known.alive:
        return f"it reads {name} with a catalog's name before it", f"write {inside}: each lake has a catalog of its own"
    if not known.whole or not (namespace_of(name) in known.namespaces or reader.obj.sink is not None):
        return None
    beside = [each.rpartition(".")[2] for each in known.alive if namespace_of(each) == namespace_of(name)]
    close = nearest(name.rpartition(".")[2], beside, show=0)
    hint = "declare it, or name it in depends_on if somebody else makes it"
    if reader.obj.sink is not None:
        hint = "declare it, e.g. as a source"
    return f"it reads {name}, which is not declared", " ".join(part for part in (close, hint) if part)


def _refused(reader: BuiltinObject, found: BuiltinObject) -> tuple[str, str] | None:
    """Why the one may not read the other. Who shares a namespace may build on what is unstable."""
    stranger = namespace_of(reader.key) != namespace_of(found.key)
    if found.kind is Kind.SINK:
        return f"it reads {found.name}, which is a sink", "read what that one reads"
    if found.per_instance is not None:
        return f"it reads {found.name}, which is one object for each {found.per_instance}", "read a single object"
    if stranger and found.stability is Stability.UNSTABLE:
        return f"it reads {found.name}, which is unstable: it may change or go at any time", "read something stable"
    if reader.kind is not Kind.SINK:
        return None
    if found.kind not in STORED:
        return f"{found.name} is a {found.kind.value}, which has no history to send", "make it a materialized_view"
    if stranger and not found.exportable:
        remedy = "send a materialized_view over it, or have it declare exportable: true"
        return f"{found.name} is not exportable", remedy
    return None
