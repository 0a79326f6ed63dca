"""The instruction to paste: what a plan prints for an object that it can't migrate by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from airflow_provider_rfr.builtins.names import is_plain, quoted
from airflow_provider_rfr.builtins.planning.diff import NEEDS_VALUES, Change, ColumnChange
from airflow_provider_rfr.builtins.spec import How

DIGITS: Final = 12
_DEFAULTS: Final = {
    "string": "''",
    "boolean": "false",
    "date": "current_date()",
    "timestamp": "current_timestamp()",
    "timestamp_ntz": "localtimestamp()",
    "binary": "X''",
}
_NUMBERS: Final = ("int", "bigint", "smallint", "tinyint", "float", "double", "decimal")


def short(digest: str, digits: int = DIGITS) -> str:
    """A fingerprint for people, long enough for an instruction."""
    prefix, colon, rest = digest.rpartition(":")
    return f"{prefix}{colon}{rest[:digits]}"


def instruction(before: str, after: str, changes: Sequence[ColumnChange]) -> str:
    """An entry for ``migrations``, with an expression for each column whose values are not simply there."""
    called = {each.column: each.before for each in changes if each.what is Change.RENAME}
    needed = {each.column: expression(each, called) for each in changes if each.what in NEEDS_VALUES}
    how = How.REWRITE if needed else How.EVOLVE
    if needed:
        # Who skips a version learns from the instructions alone what a column was called in between.
        needed = {**{name: quoted(before) for name, before in called.items()}, **needed}
    entry = f"from: {json.dumps(short(before))}, to: {json.dumps(short(after))}, how: {how.value}"
    if needed:
        pairs = ", ".join(f"{_key(name)}: {json.dumps(text, ensure_ascii=False)}" for name, text in needed.items())
        entry += f", expressions: {{{pairs}}}"
    return f"- {{{entry}}}"


def _key(name: str) -> str:
    return name if is_plain(name) else json.dumps(name, ensure_ascii=False)


def expression(change: ColumnChange, called: Mapping[str, str]) -> str:
    """A first idea: whoever pastes it has to look whether it is meant so.

    :param called: old names of renamed columns
    """
    if change.what is Change.RETYPE:
        return f"CAST({quoted(called.get(change.column, change.column))} AS {change.after})"
    kind = change.after.casefold()
    if kind.startswith(_NUMBERS):
        return f"CAST(0 AS {change.after})"
    return _DEFAULTS.get(kind, f"CAST(NULL AS {change.after})")
