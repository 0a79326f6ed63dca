"""How an object differs from what is recorded of it: which of its fingerprints, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_rfr.builtins.state import RecordedObject
from airflow_provider_rfr.builtins.wanted import Tools, Want

CONTRACT = "contract changed"
CONSTRAINTS = "constraints changed"
LOGIC = "query changed"
METADATA = "metadata changed"
STAR = "star written out anew"
DEFINITION = "definition changed"


def own_reasons(want: Want, known: RecordedObject, tools: Tools) -> Iterator[str]:
    """The differences. Full texts are compared, not hashes; texts of two canonicalizers never are."""
    ours, theirs = want.fingerprints, known.fingerprints
    if want.kind is not known.kind:
        yield f"kind: {known.kind.value} -> {want.kind.value}"
    if want.key != known.key:
        yield f"renamed from {known.name}"
    if ours.contract.text != theirs.contract.text:
        yield CONTRACT
    if ours.constraints.text != theirs.constraints.text:
        yield CONSTRAINTS
    if not same_logic(want, known, tools):
        yield LOGIC if want.obj.query is not None else DEFINITION
    elif want.sql is not None and known.sql is not None and want.sql != known.sql and want.obj.query == known.raw_sql:
        yield STAR
    if ours.meta.text != theirs.meta.text:
        yield METADATA


def same_logic(want: Want, known: RecordedObject, tools: Tools) -> bool:
    """Whether the query, or the definition of a source or a sink, is the recorded one."""
    if want.fingerprints.logic.text == known.fingerprints.logic.text:
        return True
    if known.canonicalizer == tools.canonicalizer or want.obj.query is None:
        return False
    return want.obj.query == known.raw_sql or tools.same_logic(want.obj, known)


def metadata_words(want: Want, known: RecordedObject) -> Iterator[str]:
    """What is said about the object and changed, but its columns' comments."""
    for name in ("comment", "owner"):
        before, after = getattr(known, name), getattr(want.obj, name)
        if before != after:
            yield f"~ {name}: {_text(before)} -> {_text(after)}"
    for name in sorted({*known.properties, *want.obj.properties}):
        before, after = known.properties.get(name), want.obj.properties.get(name)
        if before != after:
            yield f"~ property {name}: {_text(before)} -> {_text(after)}"


def metadata_details(want: Want, known: RecordedObject | None) -> dict[str, Any]:
    """What a step has to write and to take away."""
    gone = sorted(set(known.properties) - set(want.obj.properties)) if known is not None else []
    return {"unset": gone} if gone else {}


def _text(value: str | None) -> str:
    return "nothing" if value is None else repr(value)
