"""Compares what is declared with the lock file, so that a missing instruction stops a pull request and not a deploy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_rfr.builtins.declaration.lock_file import (
    LOCK_FILE,
    Lock,
    LockedObject,
    lock_of,
    read_lock,
    write_lock,
)
from airflow_provider_rfr.builtins.fingerprint import Fingerprints, fingerprints, same_logic
from airflow_provider_rfr.builtins.planning import chain
from airflow_provider_rfr.builtins.planning.diff import (
    NEEDS_VALUES,
    Change,
    ColumnChange,
    diff_columns,
    pending_renames,
    rename_hints,
)
from airflow_provider_rfr.builtins.planning.instruction import instruction, short
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Contents, Kind, Stability
from airflow_provider_rfr.builtins.wanted import is_gone
from airflow_provider_rfr.exceptions import DeclarationError, DeclarationProblem

__all__ = [
    "LOCK_FILE",
    "Lock",
    "LockProblem",
    "lock_of",
    "lock_problems",
    "read_lock",
    "updated_lock",
    "write_lock",
]

_WITH_CONTRACT = frozenset({Kind.TABLE, Kind.LOG, Kind.SOURCE})
_WRITE = "write the lock anew"


@dataclass(frozen=True, slots=True)
class LockProblem:
    """One difference between the declaration and the lock.

    :ivar place: of the declaration, or the lock file where there is none any more
    :ivar stale: the change is fine, and writing the lock anew is all there is to do
    :ivar entry: YAML to paste into the declaration
    """

    place: str
    name: str
    problem: str
    remedy: str = _WRITE
    stale: bool = True
    entry: str = ""

    def __str__(self) -> str:
        told = f"{self.place}: {self.name}: {self.problem}; {self.remedy}"
        return told + "".join(f"\n    {line}" for line in self.entry.splitlines())


def lock_problems(spec: CatalogSpec, lock: Lock) -> list[LockProblem]:
    """Every difference, by name: first what needs an entry, then what only needs a new lock."""
    found: list[LockProblem] = []
    alive = [each for each in spec.objects if not is_gone(each, spec.version)]
    moved = {each.key: each for each in alive if each.id not in lock.objects}
    for obj in alive:
        locked = lock.objects.get(obj.id)
        found += _new(obj, lock) if locked is None else _changed(obj, locked, spec)
        found += _unused(obj, spec)
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
        told = [(each, "\n".join(part for part in (each.remedy, each.entry) if part)) for each in blocking]
        raise DeclarationError([DeclarationProblem(each.place, each.name, each.problem, text) for each, text in told])
    return write_lock(lock_of(spec))


def _new(obj: BuiltinObject, lock: Lock) -> Iterator[LockProblem]:
    before = next((each for each in lock.objects.values() if each.name.casefold() == obj.key), None)
    if before is None:
        yield LockProblem(str(obj.place), obj.name, "it is new")
    else:
        told = f"its id was {before.id} and is {obj.id}: that would be another object, without rows"
        yield LockProblem(str(obj.place), obj.name, told, "keep the id", False, f'id: "{before.id}"')


def _changed(obj: BuiltinObject, locked: LockedObject, spec: CatalogSpec) -> Iterator[LockProblem]:
    place, prints = str(obj.place), fingerprints(obj, spec)
    if obj.name != locked.name:
        yield LockProblem(place, obj.name, f"it was called {locked.name}")
    if obj.kind is not locked.kind:
        yield LockProblem(place, obj.name, f"it was a {locked.kind.value} and is a {obj.kind.value}")
    elif prints.contract.text != locked.fingerprints.contract.text:
        yield from _contract(obj, locked, prints)
    for name in ("constraints", "meta"):
        if getattr(prints, name).text != getattr(locked.fingerprints, name).text:
            yield LockProblem(place, obj.name, f"its {name} changed")
    if not _same_logic(obj, locked, prints):
        yield LockProblem(place, obj.name, "its query changed" if obj.query is not None else "its definition changed")


def _same_logic(obj: BuiltinObject, locked: LockedObject, prints: Fingerprints) -> bool:
    if prints.logic.text == locked.fingerprints.logic.text:
        return True
    return obj.query is not None and same_logic(obj, locked)


def _contract(obj: BuiltinObject, locked: LockedObject, prints: Fingerprints) -> Iterator[LockProblem]:
    before, after = locked.fingerprints.contract.digest, prints.contract.digest
    changes = diff_columns(locked.columns, obj.columns, pending_renames(locked.columns, obj.columns))
    shown = ", ".join(str(each) for each in changes if each.what is not Change.COMMENT) or "its columns changed"
    if chain.path(obj.migrations, before, after) is not None or not _needs_instruction(obj, changes):
        yield LockProblem(str(obj.place), obj.name, shown)
        return
    told = "; ".join([f"{shown}: no instruction leads from {short(before)} to {short(after)}", *rename_hints(changes)])
    entry = f"migrations:\n  {instruction(before, after, changes)}"
    yield LockProblem(str(obj.place), obj.name, told, "add this, if it is what you mean", False, entry)


def _needs_instruction(obj: BuiltinObject, changes: tuple[ColumnChange, ...]) -> bool:
    """What has a query is derived anew; what Iceberg takes in place without loss needs no word."""
    if obj.kind not in _WITH_CONTRACT:
        return False
    derivable = obj.contents is Contents.DERIVABLE
    return any(each.what in NEEDS_VALUES or (each.what is Change.DROP and not derivable) for each in changes)


def _unused(obj: BuiltinObject, spec: CatalogSpec) -> Iterator[LockProblem]:
    if not obj.migrations:
        return
    wanted = fingerprints(obj, spec).contract.digest
    for each in chain.unused(obj.migrations, wanted):
        told = f"the instruction from {each.before} to {each.after} leads nowhere: the columns are {short(wanted)}"
        yield LockProblem(str(obj.place), obj.name, told, "correct it, or take it out", False)


def _left(locked: LockedObject, *, declared: bool, version: str) -> LockProblem:
    if declared or locked.stability is Stability.UNSTABLE:
        return LockProblem(LOCK_FILE, locked.name, "it is removed")
    entry = (
        f"kind: {locked.kind.value}\nname: {locked.name}\nid: {locked.id}\n"
        f'removed: {{deprecated_since: "{version}", removed_in: "{version}"}}'
    )
    told = "it is gone, and it is stable: its removal must be declared (deprecated_since, removed_in)"
    return LockProblem(LOCK_FILE, locked.name, told, "leave this document in its place", False, entry)
