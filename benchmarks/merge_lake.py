"""The table of the merge benchmark, its changes, and the API that serves them.

Each case starts on the same table: the catalog's database, all metadata and the ledger are copied back. Data files of
the table never change.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import numpy as np
import orjson
import pyarrow as pa

NAMESPACE: Final = "bench"
TABLE: Final = f"{NAMESPACE}.orders"
_NEWEST: Final = 0.05
"""Share of the newest keys, among which the changes of a case ``newest`` are."""
_EPOCH: Final = int(datetime(2025, 1, 1, tzinfo=timezone.utc).timestamp())
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_STATUSES, _CURRENCIES = ("new", "paid", "sent", "done", "void"), ("EUR", "USD", "CHF")
_PAGE: Final = 1_000
COLUMNS: Final = {
    "id": "integer",
    "customer": "integer",
    "status": "string",
    "amount": "number",
    "currency": "string",
    "version": "integer",
}
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def rows_of(ids: Numbers, keys: str, version: int) -> pa.Table:
    """Return rows of orders, which are deterministic for each version.

    :param keys: ``int``, or ``text`` for keys without order
    """
    random = np.random.default_rng(version)
    created = (ids + _EPOCH) * 1_000_000
    changed = created if version == 0 else np.full(len(ids), (_EPOCH + 30_000_000 + version) * 1_000_000)
    return pa.table(
        {
            "id": pa.array(ids) if keys == "int" else _texts(ids),
            "customer": pa.array(random.integers(0, 500_000, len(ids))),
            "status": pa.array(_STATUSES).take(pa.array(random.integers(0, len(_STATUSES), len(ids)))),
            "amount": pa.array(np.round(random.random(len(ids)) * 1000, 2)),
            "currency": pa.array(_CURRENCIES).take(pa.array(random.integers(0, len(_CURRENCIES), len(ids)))),
            "version": pa.array(np.full(len(ids), version, dtype=np.int64)),
            "created_at": pa.array(created, _INSTANT),
            "updated_at": pa.array(changed, _INSTANT),
        }
    )


def _texts(ids: Numbers) -> pa.Array:
    """Return texts of 32 characters in random order, the same for the same number."""
    with np.errstate(over="ignore"):
        mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        digits = np.stack([mixed, mixed * np.uint64(0xBF58476D1CE4E5B9)], axis=1).tobytes().hex()
    offsets = pa.py_buffer(np.arange(len(ids) + 1, dtype=np.int32) * 32)
    return pa.StringArray.from_buffers(len(ids), offsets, pa.py_buffer(digits.encode()))


@dataclass(frozen=True, slots=True)
class Case:
    """A number of changes: 88 % updates, 10 % inserts and 2 % deletions.

    :ivar place: ``newest``: among the newest 5 % of the keys; ``random``: anywhere
    :ivar count: number of changes
    """

    place: str
    count: int

    @property
    def name(self) -> str:
        """Return the name by which the case is chosen."""
        return f"{self.place}:{self.count}"

    @classmethod
    def of(cls, text: str) -> Case:
        """Parse a text such as ``newest:1000``.

        :raises ValueError: it has another form
        """
        place, _, count = text.partition(":")
        if place not in ("newest", "random") or not count.isdecimal():
            raise ValueError(f"{text}: write newest:1000 or random:1000")
        return cls(place, int(count))

    @property
    def inserts(self) -> int:
        """Return the number of new rows."""
        return self.count // 10

    @property
    def deletions(self) -> int:
        """Return the number of rows that are removed."""
        return self.count // 50

    def expected(self, rows: int) -> tuple[int, int]:
        """Return the rows of the table after the merge, and those of them that are changed."""
        return rows + self.inserts - self.deletions, self.count - self.deletions

    def changes(self, rows: int, keys: str) -> pa.Table:
        """Return the changes in random order, with the column ``is_deleted``."""
        random, updates = np.random.default_rng(self.count), self.count - self.inserts
        first = 0 if self.place == "random" else rows - max(int(rows * _NEWEST), updates)
        ids = np.append(
            first + random.choice(rows - first, updates, replace=False), np.arange(rows, rows + self.inserts)
        )
        gone = np.arange(self.count) < self.deletions
        table = rows_of(ids, keys, 1).append_column("is_deleted", pa.array(gone))
        return table.take(pa.array(random.permutation(self.count)))


@dataclass(frozen=True, slots=True)
class MergeLake:
    """A folder with the catalog, the warehouse and a table of orders.

    :ivar keys: type of the table's keys: ``int`` or ``text``
    :ivar rows: rows of the table before each case
    """

    folder: Path
    keys: str
    rows: int
    files: int

    @property
    def properties(self) -> dict[str, str]:
        """Return the catalog's properties."""
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        return {"type": "sql", "uri": uri, "warehouse": warehouse}

    @property
    def table(self) -> Any:
        """Return the table as it is now."""
        from pyiceberg.catalog import load_catalog

        return load_catalog(NAMESPACE, **self.properties).load_table(TABLE)

    def fill(self) -> None:
        """Append the rows, in files by key, to the table that a first sync created with one row; keep a copy."""
        table = self.table
        shape = table.schema().as_arrow()
        for numbers in np.array_split(np.arange(1, self.rows, dtype=np.int64), self.files):
            table.append(in_shape(rows_of(numbers, self.keys, 0), shape))
        self._copy(self.folder, self.folder / "filled")

    def reset(self) -> None:
        """Restore the table as :meth:`fill` left it."""
        self._copy(self.folder / "filled", self.folder)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        tables = Path("warehouse", NAMESPACE)
        ledger = next((source / tables).glob("orders__rfr_ledger*")).name
        for place in (tables / "orders" / "metadata", tables / ledger):
            shutil.copytree(source / place, target / place, dirs_exist_ok=True)
        shutil.copy(source / "catalog.db", target / "catalog.db")

    def counts(self) -> tuple[int, int]:
        """Return the rows of the table, and how many of them are changed, read by PyIceberg."""
        versions = self.table.scan(selected_fields=("version",)).to_arrow()["version"].to_numpy()
        return len(versions), int((versions == 1).sum())

    def document(self, base_url: str, **changes: Any) -> dict[str, Any]:
        """Return the document of the incremental sync, with some of its parts changed."""
        columns = {name: {"type": kind} for name, kind in COLUMNS.items()}
        if self.keys == "text":
            columns["id"] = {"type": "string"}
        instants = {name: {"type": "string", "format": "date-time"} for name in ("created_at", "updated_at")}
        stream = {
            "primary_key": "id",
            "request": {"path": "/orders"},
            "records": {"path": "data"},
            "incremental": {
                "cursor_field": "updated_at",
                "start": "2024-01-01",
                "send_as": {"query": "updated_since"},
                "deleted": "record.is_deleted",
            },
            "paginator": {"type": "page_number", "page_size": _PAGE, "total": {"path": "pages", "of": "pages"}},
            "json_schema": {"type": "object", "properties": {**columns, **instants, "is_deleted": {"type": "boolean"}}},
        }
        return {
            "source": {"definition": {"version": 1, "base_url": base_url, "streams": {"orders": stream}}},
            "streams": ["orders"],
            "target": f"{NAMESPACE}.{{stream}}",
            "lake": {"name": NAMESPACE, "properties": self.properties},
            "sync": "incremental",
            "options": {"mode": "merge", "spark": "always"},
            **changes,
        }


def in_shape(rows: pa.Table, shape: pa.Schema) -> pa.Table:
    """Return the rows in the columns of a table; system columns get plausible values."""
    columns = []
    for column in shape:
        is_row = column.name in rows.column_names
        values = rows[column.name] if is_row else _constant(column, rows.num_rows)
        columns.append(values.cast(column.type))
    return pa.table(columns, schema=shape)


def _constant(column: pa.Field, count: int) -> pa.Array:
    """Return a plausible value of a system column for each row."""
    if pa.types.is_timestamp(column.type):
        return pa.repeat(pa.scalar(_EPOCH * 1_000_000, column.type), count)
    if pa.types.is_integer(column.type):
        return pa.array(np.arange(count)).cast(column.type)
    if pa.types.is_string(column.type):
        return pa.repeat(pa.scalar("0" * 32, column.type), count)
    return pa.nulls(count, column.type)


@contextmanager
def served(changes: pa.Table) -> Iterator[str]:
    """Serve the changes by pages; yield the address."""
    starts = range(0, changes.num_rows, _PAGE)
    pages = [_page(changes.slice(start, _PAGE), len(starts)) for start in starts]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = int(parse_qs(urlsplit(self.path).query).get("page", ["1"])[0])
            body = pages[number - 1]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print nothing for a request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _page(rows: pa.Table, pages: int) -> bytes:
    texts = {name: rows[name].cast(pa.string()).to_pylist() for name in ("created_at", "updated_at")}
    records: list[Mapping[str, Any]] = rows.drop_columns(list(texts)).to_pylist()
    data = [
        {**record, "created_at": created.replace(" ", "T"), "updated_at": updated.replace(" ", "T")}
        for record, created, updated in zip(records, texts["created_at"], texts["updated_at"], strict=True)
    ]
    return orjson.dumps({"data": data, "pages": pages})
