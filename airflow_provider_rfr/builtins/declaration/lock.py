"""``builtins.lock.json``: a copy of the declarations next to the code, so that a pull request shows each change.

A missing migration instruction then stops a pull request and not a deploy. The file has one line for each thing that
can change, sorted by name, so that its diff reads like that of the declarations."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_provider_rfr.builtins.desired import is_gone
from airflow_provider_rfr.builtins.fingerprint import Fingerprint, Fingerprints, fingerprints, same_logic
from airflow_provider_rfr.builtins.planning import instructions
from airflow_provider_rfr.builtins.planning.diff import (
    NEEDS_VALUES,
    Change,
    diff_columns,
    instruction,
    pending_renames,
    rename_hints,
    short,
)
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Column, Contents, Kind, Stability
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER
from airflow_provider_rfr.exceptions import ConfigurationError, DeclarationError, DeclarationProblem

LOCK_FILE: Final = "builtins.lock.json"
_FORMAT: Final = 1
_COMPONENTS = ("contract", "constraints", "logic", "meta")


@dataclass(frozen=True, slots=True)
class _LockedObject:
    """An object as it was when the lock was written.

    :ivar columns: without their comments, which no instruction is about
    :ivar canonicalizer: what wrote the text of its logic
    :ivar raw_sql: its query as its author wrote it
    """

    id: uuid.UUID
    name: str
    kind: Kind
    stability: Stability
    fingerprints: Fingerprints
    columns: tuple[Column, ...] = ()
    canonicalizer: str = CANONICALIZER
    raw_sql: str | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """A whole lock file.

    :ivar objects: by id
    """

    project: str
    objects: Mapping[uuid.UUID, _LockedObject]


def _lock_of(spec: CatalogSpec) -> Lock:
    """The lock of what is declared now; removed objects are left out."""
    found = {}
    for obj in spec.objects:
        if not is_gone(obj, spec.version):
            prints = fingerprints(obj, spec)
            columns = tuple(replace(each, comment=None) for each in obj.columns)
            found[obj.id] = _LockedObject(
                obj.id, obj.name, obj.kind, obj.stability, prints, columns, CANONICALIZER, obj.query
            )
    return Lock(spec.project, found)


def _write_lock(lock: Lock) -> str:
    """The content of a lock file: the same text for equal declarations."""
    objects = sorted(lock.objects.values(), key=lambda each: each.name.casefold())
    document = {"format": _FORMAT, "project": lock.project, "objects": [_document(each) for each in objects]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _document(each: _LockedObject) -> dict[str, Any]:
    prints = {name: getattr(each.fingerprints, name) for name in _COMPONENTS}
    return {
        "name": each.name,
        "id": str(each.id),
        "kind": each.kind.value,
        "stability": each.stability.value,
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                **({"required": True} if column.required else {}),
                **({"renamed_from": column.renamed_from} if column.renamed_from is not None else {}),
            }
            for column in each.columns
        ],
        **({} if each.raw_sql is None else {"query": each.raw_sql, "canonicalizer": each.canonicalizer}),
        "fingerprints": {
            name: {"digest": found.digest, "text": found.text.split("\n")} for name, found in prints.items()
        },
    }


def read_lock(text: str) -> Lock:
    """The lock that a file holds.

    :raises ConfigurationError: it holds none, or one of another format
    """
    problem = ""
    try:
        document = json.loads(text)
        if document["format"] == _FORMAT:
            found = [_read(each) for each in document["objects"]]
            return Lock(str(document["project"]), {each.id: each for each in found})
        problem = f"its format is {document['format']!r}, this version reads {_FORMAT}"
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        problem = f"it can't be read: {type(error).__name__}: {error}"
    raise ConfigurationError(LOCK_FILE, problem, "restore it from the repository, or write it again")


def _read(each: Mapping[str, Any]) -> _LockedObject:
    prints = {
        name: Fingerprint("\n".join(each["fingerprints"][name]["text"]), each["fingerprints"][name]["digest"])
        for name in _COMPONENTS
    }
    columns = [
        Column(column["name"], column["type"], column.get("required", False), None, column.get("renamed_from"))
        for column in each["columns"]
    ]
    return _LockedObject(
        uuid.UUID(each["id"]),
        each["name"],
        Kind(each["kind"]),
        Stability(each["stability"]),
        Fingerprints(**prints),
        tuple(columns),
        each.get("canonicalizer", CANONICALIZER),
        each.get("query"),
    )


_WITH_CONTRACT = frozenset({Kind.TABLE, Kind.LOG, Kind.SOURCE})
_WRITE = "write the lock again"


@dataclass(frozen=True, slots=True)
class _LockProblem:
    """One difference between the declaration and the lock.

    :ivar place: of the declaration, or the lock file where there is none any more
    :ivar stale: the change is fine, and only the lock has to be written again
    :ivar entry: YAML to paste into the declaration
    """

    place: str
    name: str
    problem: str
    remedy: str = _WRITE
    stale: bool = True
    entry: str = ""

    def __str__(self) -> str:
        problem = f"{self.place}: {self.name}: {self.problem}; {self.remedy}"
        return problem + "".join(f"\n    {line}" for line in self.entry.splitlines())


def lock_problems(spec: CatalogSpec, lock: Lock) -> list[_LockProblem]:
    """Every difference, by name: first what needs an entry, then what only needs a new lock."""
    found: list[_LockProblem] = []
    alive = [each for each in spec.objects if not is_gone(each, spec.version)]
    moved = {each.key: each for each in alive if each.id not in lock.objects}
    for obj in alive:
        locked = lock.objects.get(obj.id)
        found += _new(obj, lock) if locked is None else _changed(obj, locked, spec)
        wanted = fingerprints(obj, spec).contract.digest if obj.migrations else ""
        for each in instructions.unused(obj.migrations, wanted):
            problem = f"the instruction from {each.before} to {each.after} leads nowhere"
            problem = f"{problem}: the columns are {short(wanted)}"
            found.append(_LockProblem(str(obj.place), obj.name, problem, "correct it, or take it out", False))
    known = {each.id for each in alive}
    gone = {each.id for each in spec.objects} - known
    for locked in lock.objects.values():
        if locked.id not in known and locked.name.casefold() not in moved:
            found.append(_left(locked, declared=locked.id in gone, version=spec.version))
    return sorted(found, key=lambda each: (each.stale, each.name.casefold()))


def updated_lock(spec: CatalogSpec, lock: Lock | None) -> str:
    """The content of the new lock file.

    :raises DeclarationError: an entry is missing in the declaration; a new lock would only hide that
    """
    blocking = [each for each in lock_problems(spec, lock) if not each.stale] if lock is not None else []
    if blocking:
        problem = [(each, "\n".join(part for part in (each.remedy, each.entry) if part)) for each in blocking]
        raise DeclarationError(
            [DeclarationProblem(each.place, each.name, each.problem, text) for each, text in problem]
        )
    return _write_lock(_lock_of(spec))


def _new(obj: BuiltinObject, lock: Lock) -> Iterator[_LockProblem]:
    before = next((each for each in lock.objects.values() if each.name.casefold() == obj.key), None)
    if before is None:
        yield _LockProblem(str(obj.place), obj.name, "it is new")
    else:
        problem = f"its id was {before.id} and is {obj.id}: that would be another object, without rows"
        yield _LockProblem(str(obj.place), obj.name, problem, "keep the id", False, f'id: "{before.id}"')


def _changed(obj: BuiltinObject, locked: _LockedObject, spec: CatalogSpec) -> Iterator[_LockProblem]:
    place, prints = str(obj.place), fingerprints(obj, spec)
    if obj.name != locked.name:
        yield _LockProblem(place, obj.name, f"it was called {locked.name}")
    if obj.kind is not locked.kind:
        yield _LockProblem(place, obj.name, f"it was a {locked.kind.value} and is a {obj.kind.value}")
    elif prints.contract.text != locked.fingerprints.contract.text:
        yield from _contract(obj, locked, prints)
    for name in ("constraints", "meta"):
        if getattr(prints, name).text != getattr(locked.fingerprints, name).text:
            yield _LockProblem(place, obj.name, f"its {name} changed")
    same = prints.logic.text == locked.fingerprints.logic.text or (obj.query is not None and same_logic(obj, locked))
    if not same:
        yield _LockProblem(place, obj.name, "its query changed" if obj.query is not None else "its definition changed")


def _contract(obj: BuiltinObject, locked: _LockedObject, prints: Fingerprints) -> Iterator[_LockProblem]:
    before, after = locked.fingerprints.contract.digest, prints.contract.digest
    changes = diff_columns(locked.columns, obj.columns, pending_renames(locked.columns, obj.columns))
    shown = ", ".join(str(each) for each in changes if each.what is not Change.COMMENT) or "its columns changed"
    # What has a query is computed again; what Iceberg changes in place without loss needs no instruction.
    derivable = obj.contents is Contents.DERIVABLE
    needed = obj.kind in _WITH_CONTRACT and any(
        each.what in NEEDS_VALUES or (each.what is Change.DROP and not derivable) for each in changes
    )
    if instructions.path(obj.migrations, before, after) is not None or not needed:
        yield _LockProblem(str(obj.place), obj.name, shown)
        return
    problem = "; ".join(
        [f"{shown}: no instruction leads from {short(before)} to {short(after)}", *rename_hints(changes)]
    )
    entry = f"migrations:\n  {instruction(before, after, changes)}"
    yield _LockProblem(str(obj.place), obj.name, problem, "add this, if it is what you mean", False, entry)


def _left(locked: _LockedObject, *, declared: bool, version: str) -> _LockProblem:
    if declared or locked.stability is Stability.UNSTABLE:
        return _LockProblem(LOCK_FILE, locked.name, "it is removed")
    entry = (
        f"kind: {locked.kind.value}\nname: {locked.name}\nid: {locked.id}\n"
        f'removed: {{deprecated_since: "{version}", removed_in: "{version}"}}'
    )
    problem = "it was deleted, and it is stable: its removal must be declared (deprecated_since, removed_in)"
    return _LockProblem(LOCK_FILE, locked.name, problem, "leave this document in its place", False, entry)
