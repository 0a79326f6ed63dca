"""Two tables, and many queries over them."""

from __future__ import annotations

from pathlib import Path

TABLES = {
    "ops.t": (
        ("id", "bigint"),
        ("name", "string"),
        ("at", "timestamp"),
        ("day", "date"),
        ("tags", "array<string>"),
        ("attrs", "map<string,string>"),
        ("s", "struct<f:int,g:struct<h:string>>"),
        ("items", "array<struct<sku:string,qty:int>>"),
        ("amount", "decimal(10,2)"),
        ("ok", "boolean"),
        ("score", "double"),
    ),
    "ops.u": (("id", "bigint"), ("t_id", "bigint"), ("kind", "string"), ("value", "double")),
}
COLUMNS = {name: tuple(column for column, _ in columns) for name, columns in TABLES.items()}
_TEXT = Path(__file__).with_suffix(".sql").read_text("utf-8")
QUERIES = tuple(line for line in _TEXT.splitlines() if not line.startswith("--"))
