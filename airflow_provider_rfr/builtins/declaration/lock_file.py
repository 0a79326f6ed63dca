"""``builtins.lock.json``: what is declared, written down beside the code, so that a change shows where it is reviewed.

A text with one line for each thing that can change, sorted by name: a difference of two locks reads like one of two
declarations.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_provider_rfr.builtins.fingerprint import Fingerprint, Fingerprints, fingerprints
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Column, Kind, Stability
from airflow_provider_rfr.builtins.sql.text import CANONICALIZER
from airflow_provider_rfr.builtins.wanted import is_gone
from airflow_provider_rfr.exceptions import ConfigurationError

LOCK_FILE: Final = "builtins.lock.json"
FORMAT: Final = 1
_COMPONENTS = ("contract", "constraints", "logic", "meta")


@dataclass(frozen=True, slots=True)
class LockedObject:
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
    objects: Mapping[uuid.UUID, LockedObject]


def lock_of(spec: CatalogSpec) -> Lock:
    """The lock of what is declared now; what is gone is not in it."""
    alive = (each for each in spec.objects if not is_gone(each, spec.version))
    return Lock(spec.project, {each.id: _locked(each, spec) for each in alive})


def _locked(obj: BuiltinObject, spec: CatalogSpec) -> LockedObject:
    prints = fingerprints(obj, spec)
    columns = tuple(replace(each, comment=None) for each in obj.columns)
    return LockedObject(obj.id, obj.name, obj.kind, obj.stability, prints, columns, CANONICALIZER, obj.query)


def write_lock(lock: Lock) -> str:
    """The content of a lock file: the same text for equal declarations."""
    objects = sorted(lock.objects.values(), key=lambda each: each.name.casefold())
    document = {"format": FORMAT, "project": lock.project, "objects": [_document(each) for each in objects]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _document(each: LockedObject) -> dict[str, Any]:
    prints = {name: getattr(each.fingerprints, name) for name in _COMPONENTS}
    return {
        "name": each.name,
        "id": str(each.id),
        "kind": each.kind.value,
        "stability": each.stability.value,
        "columns": [_column(column) for column in each.columns],
        **({} if each.raw_sql is None else {"query": each.raw_sql, "canonicalizer": each.canonicalizer}),
        "fingerprints": {
            name: {"digest": found.digest, "text": found.text.split("\n")} for name, found in prints.items()
        },
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        **({"required": True} if column.required else {}),
        **({"renamed_from": column.renamed_from} if column.renamed_from is not None else {}),
    }


def read_lock(text: str) -> Lock:
    """The lock that a file holds.

    :raises ConfigurationError: it holds none, or one of another format
    """
    problem = ""
    try:
        document = json.loads(text)
        if document["format"] == FORMAT:
            found = [_read(each) for each in document["objects"]]
            return Lock(str(document["project"]), {each.id: each for each in found})
        problem = f"its format is {document['format']!r}, this version reads {FORMAT}"
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        problem = f"it can't be read: {type(error).__name__}: {error}"
    raise ConfigurationError(LOCK_FILE, problem, "restore it from the repository, or write it anew")


def _read(each: Mapping[str, Any]) -> LockedObject:
    prints = {
        name: Fingerprint("\n".join(each["fingerprints"][name]["text"]), each["fingerprints"][name]["digest"])
        for name in _COMPONENTS
    }
    columns = [
        Column(column["name"], column["type"], column.get("required", False), None, column.get("renamed_from"))
        for column in each["columns"]
    ]
    return LockedObject(
        uuid.UUID(each["id"]),
        each["name"],
        Kind(each["kind"]),
        Stability(each["stability"]),
        Fingerprints(**prints),
        tuple(columns),
        each.get("canonicalizer", CANONICALIZER),
        each.get("query"),
    )
