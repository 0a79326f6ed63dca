"""Names and texts as Spark SQL reads them."""

from __future__ import annotations

from collections.abc import Mapping


def identifier(name: str) -> str:
    """One part of a name, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def table_name(name: str, catalog: str | None = None) -> str:
    """``namespace.name``, each part in backticks, with the catalog before it if there is one."""
    parts = name.split(".")
    return ".".join(map(identifier, parts if catalog is None else [catalog, *parts]))


def text(value: str) -> str:
    """A string, whatever is in it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def properties(values: Mapping[str, str]) -> str:
    """Keys and values between parentheses."""
    return "(" + ", ".join(f"{text(key)} = {text(values[key])}" for key in sorted(values)) + ")"


def query(sql: str) -> str:
    """The query so that it can be nothing else: a statement that changes something would be run at once."""
    return f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)"
