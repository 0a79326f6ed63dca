"""Fingerprints of an object: four canonical texts with their hashes, by which a change shows what it asks for.

* ``contract``: number, name and type of the columns. Another contract asks for a migration of the stored rows.
* ``constraints``: required columns, keys, partitioning, format. They change metadata, or need a checked rewrite.
* ``logic``: the query; the definition of a source or a sink.
* ``meta``: comments, owner, properties and promises. Applied in place, never by a rebuild.

Texts are compared, not hashes, so that a difference can be shown. Where something is declared, in which order keys are
written and whether a default is written out makes no difference.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Column
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER, canonical_sql
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.lake.types import parse_type, quoted

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.state import RecordedObject

_FORMAT = "format-version"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A canonical text and its hash.

    :ivar digest: prefix of the component, a colon, 64 hex digits
    """

    text: str
    digest: str

    @classmethod
    def of(cls, prefix: str, text: str) -> Fingerprint:
        """The fingerprint of a text; ``prefix`` names the component and the version of its text's format."""
        digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(text, f"{prefix}:{digits}")


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """The four fingerprints of one object."""

    contract: Fingerprint
    constraints: Fingerprint
    logic: Fingerprint
    meta: Fingerprint


def fingerprints(obj: BuiltinObject, spec: CatalogSpec) -> Fingerprints:
    """The fingerprints of a declared object; types are canonical texts."""
    return Fingerprints(
        contract_of(obj.columns),
        Fingerprint.of("k1", "\n".join(_constraints(obj))),
        Fingerprint.of("l1", _logic(obj, spec)),
        Fingerprint.of("m1", "\n".join(_meta(obj))),
    )


def contract_of(columns: Sequence[Column]) -> Fingerprint:
    """The contract of the columns; empty for a view that declares none."""
    lines = (
        f"{number} {quoted(each.name.casefold())} {parse_type(each.type).folded()}"
        for number, each in enumerate(columns, 1)
    )
    return Fingerprint.of("c1", "\n".join(lines))


def same_logic(obj: BuiltinObject, recorded: RecordedObject) -> bool:
    """Whether an object's query is the recorded one.

    A text of another canonicalizer is not comparable: the recorded query is then made canonical again.
    """
    if obj.query is None or recorded.raw_sql is None or obj.query == recorded.raw_sql:
        return obj.query == recorded.raw_sql
    if recorded.canonicalizer == CANONICALIZER:
        return canonical_sql(obj.query) == recorded.fingerprints.logic.text
    return canonical_sql(obj.query) == canonical_sql(recorded.raw_sql)


def definition_of(source: Mapping[str, Any]) -> str:
    """The text of a source's ``logic``: its definition without secrets."""
    return _json(_masked(source))


def _constraints(obj: BuiltinObject) -> Iterator[str]:
    required = sorted(quoted(each.name.casefold()) for each in obj.columns if each.required)
    if required:
        yield f"required: {', '.join(required)}"
    if obj.keys:
        yield f"key: {', '.join(quoted(name.casefold()) for name in obj.keys)}"
    if obj.partitioning:
        yield f"partitioning: {', '.join(each.casefold() for each in obj.partitioning)}"
    if _FORMAT in obj.properties:
        yield f"{_FORMAT}: {_json(obj.properties[_FORMAT])}"


def _logic(obj: BuiltinObject, spec: CatalogSpec) -> str:
    if obj.query is not None:
        return canonical_sql(obj.query)
    if obj.source is not None:
        return definition_of(obj.source)
    if obj.sink is None:
        return ""
    # The id of the source, which survives a rename; the name, if no object has it. Objects are sorted by key, unless
    # the spec was made by hand.
    key = obj.sink.source.casefold()
    at = bisect_left(spec.objects, key, key=lambda each: each.key)
    near = spec.objects[at : at + 1]
    found = near[0] if near and near[0].key == key else next((o for o in spec.objects if o.key == key), None)
    return _json(
        {
            "source": str(found.id) if found is not None else key,
            "to": obj.sink.to,
            "settings": _masked(obj.sink.settings),
            "columns": [name.casefold() for name in obj.sink.columns],
            "follow_schema": obj.sink.follow_schema,
        }
    )


def _meta(obj: BuiltinObject) -> Iterator[str]:
    yield f"keep: {_json(obj.keep)}"
    for name in ("comment", "owner"):
        if getattr(obj, name) is not None:
            yield f"{name}: {_json(getattr(obj, name))}"
    if obj.exportable:
        yield "exportable: true"
    if obj.sink is not None:
        yield f"on_replace: {obj.sink.on_replace}"
    comments = ((each.name.casefold(), each.comment) for each in obj.columns if each.comment)
    for name, comment in sorted(comments):
        yield f"column {_json(name)}: {_json(comment)}"
    for name, value in sorted(obj.properties.items()):
        if name != _FORMAT:
            yield f"property {_json(name)}: {_json(value)}"


def _masked(value: Any, name: str = "") -> Any:
    """The value without secrets: texts are stored, and a new password is not another definition."""
    if isinstance(value, Mapping):
        return {str(key): _masked(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(each, name) for each in value]
    return "***" if isinstance(value, str) and is_secret(name) and "{{" not in value else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
