"""Digests and canonical forms by which declarations are compared: the columns' contract, the query, and the definition.

The layout of names and queries and the order of keys make no difference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_rfr.builtins.spec import BuiltinObject, Column
from airflow_provider_rfr.builtins.sql.parse import canonical_sql
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.lake.types import parse_type, quoted


def contract_of(columns: Sequence[Column]) -> str:
    """Return the digest of number, name and type of the columns; its prefix names the format."""
    text = "\n".join(
        f"{number} {quoted(column.name.casefold())} {parse_type(column.type).folded()}"
        for number, column in enumerate(columns, 1)
    )
    return f"c1:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def same_query(one: str | None, other: str | None) -> bool:
    """Tell whether two queries differ at most in whitespace, comments and case."""
    if one is None or other is None or one == other:
        return one == other
    return canonical_sql(one) == canonical_sql(other)


def definition_of(obj: BuiltinObject) -> str | None:
    """Return the definition of a source or a sink as JSON, without secrets; None for another kind.

    A sink's source is not part of it: the sink's dependency holds the source's id, which survives a rename.
    """
    said: Any = obj.source
    if (sink := obj.sink) is not None:
        columns = [name.casefold() for name in sink.columns]
        rest = {"columns": columns, "follow_schema": sink.follow_schema, "on_replace": sink.on_replace}
        said = {"to": sink.to, "settings": sink.settings, **rest}
    if said is None:
        return None
    return json.dumps(_masked(said), ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def _masked(value: Any, name: str = "") -> Any:
    """Return the value without secrets: texts are stored, and a new password is not another definition.

    Any header may hold a secret, whatever its name.
    """
    if isinstance(value, Mapping):
        is_of_headers = name.casefold() == "headers"
        return {str(key): _masked(inner, "secret" if is_of_headers else str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(inner, name) for inner in value]
    return "***" if isinstance(value, str) and is_secret(name) and "{{" not in value else value
