"""A real table, a real control store and a sink: rows come in, and what went out is looked at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.types import LongType, NestedField, StringType
from sqlalchemy import Connection

from airflow_provider_rfr.sinks import SinkSpec, SinkState
from airflow_provider_rfr.sinks.run import HttpTarget, SinkRun, decide_sink, register_sink, run_sink, sink_states
from airflow_provider_rfr.store.deploys import SinkRow, delete_sink, load_sink
from airflow_provider_rfr.store.engine import ControlStore, open_store

SOURCE = "ops.t"
SOURCE_ID = UUID(int=1)
SINK = "ops.k"
LOOPBACK = ("127.0.0.1",)
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", StringType()))
COLUMNS = ("id", "v")
DEPLOY = "d1"


def tag(step: int = 1, deploy: str = DEPLOY) -> dict[str, str]:
    """The summary of a migration's snapshot."""
    return {"rfr.migration": f"{deploy}/{step}"}


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    ids, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())})


@dataclass(frozen=True)
class Sink:
    """A declared sink."""

    id: UUID
    name: str
    spec: SinkSpec


def declared(path: str, **more: Any) -> Sink:
    """A sink to files; ``more`` are settings."""
    return Sink(UUID(int=2), SINK, SinkSpec(SOURCE, "files", {"path": path, **more}))


def decide(
    connection: Connection,
    how: str,
    sink: Sink,
    now: int,
    *,
    about: str = DEPLOY,
    columns: Sequence[str] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
    source: UUID = SOURCE_ID,
) -> None:
    """What a step of a deploy does to a sink."""
    if how == "remove":
        delete_sink(connection, sink.id)
    elif how in ("create", "metadata"):
        register_sink(connection, sink.id, sink.name, sink.spec, source, columns, renamed, now)
    else:
        decide_sink(connection, sink.id, how, "ops.t is emptied", now, about=about)


def open_lake(folder: Path) -> SqlCatalog:
    return SqlCatalog("rfr", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/warehouse")


@dataclass
class Scene:
    """One source and one sink.

    :ivar target: of an HTTP sink
    """

    folder: Path
    catalog: SqlCatalog
    store: ControlStore
    sink: Sink
    target: HttpTarget | None = None

    @classmethod
    def of(cls, folder: Path, **more: Any) -> Scene:
        catalog = open_lake(folder)
        catalog.create_namespace("ops")
        catalog.create_table(SOURCE, SCHEMA)
        store = open_store(f"sqlite:///{folder}/control.db")
        return cls(folder, catalog, store, declared(str(folder / "out"), **more))

    def to_http(self, url: str, **more: Any) -> None:
        self.redeclare(to="http", settings={"connection": "c", "path": "in", **more})
        self.target = HttpTarget(url, timeout=10, patience=0, allowed_hosts=LOOPBACK)

    def redeclare(self, **fields: Any) -> None:
        """Change fields of the declaration; ``settings`` come besides the folder."""
        if "settings" in fields:
            fields["settings"] = {"path": str(self.out), **fields["settings"]}
        self.sink = replace(self.sink, spec=replace(self.sink.spec, **fields))

    @property
    def table(self) -> Table:
        return self.catalog.load_table(SOURCE)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def deploy(self, how: str, *, deploy_id: str = DEPLOY, **more: Any) -> None:
        self.store.run(lambda value: decide(value, how, self.sink, self.store.now(value), about=deploy_id, **more))

    def create(self, *columns: str) -> Scene:
        self.deploy("create", columns=columns or self.sink.spec.columns or COLUMNS)
        return self

    def begin(self, *pairs: tuple[int, str | None], **fields: Any) -> Scene:
        """Declare these fields, register the sink, add the rows, and send them."""
        self.redeclare(**fields)
        self.create().add(*pairs)
        self.run()
        return self

    def add(self, *pairs: tuple[int, str | None], **summary: str) -> int:
        """Append rows; returns the snapshot's id."""
        table = self.table
        table.append(rows(*pairs), snapshot_properties=summary)
        return table.current_snapshot().snapshot_id

    def rewrite(self, *pairs: tuple[int, str | None], deploy: str = DEPLOY) -> None:
        """What a migration does that replaces rows by rows: two snapshots, both tagged."""
        self.table.overwrite(rows(*pairs), snapshot_properties=tag(deploy=deploy))

    def retype(self, old: str, new: str, *pairs: tuple[int, int | None]) -> None:
        """A rewrite gives a column another type: another field, maybe of another name, in a tagged snapshot."""
        with self.table.transaction() as transaction:
            transaction.delete("true", snapshot_properties=tag())
            with transaction.update_schema(allow_incompatible_changes=True) as update:
                update.delete_column(old)
            with transaction.update_schema() as update:
                update.add_column(new, LongType())
            ids, values = zip(*pairs, strict=True)
            transaction.append(pa.table({"id": ids, new: values}), snapshot_properties=tag())

    def run(self, batches: int | None = None) -> SinkRun:
        """Send, at most so many batches."""
        before = 0 if batches is None else self.row().batches
        return run_sink(
            self.sink.id,
            self.sink.name,
            self.sink.spec,
            catalog=self.catalog,
            store=self.store,
            target=self.target,
            stop=lambda: batches is not None and self.row().batches - before == batches,
        )

    def files(self) -> list[Path]:
        return sorted(self.out.iterdir()) if self.out.exists() else []

    def sent(self) -> list[dict[str, Any]]:
        """All rows in all files, in the order of the files."""
        return [json.loads(line) for file in self.files() for line in file.read_text().splitlines()]

    def ids(self) -> list[int]:
        return [row["id"] for row in self.sent()]

    def row(self) -> SinkRow:
        with self.store.read() as connection:
            row = load_sink(connection, self.sink.id)
        assert row is not None
        return row

    def state(self) -> SinkState:
        with self.store.read() as connection:
            return sink_states(connection)[0]

    def operations(self) -> list[str]:
        return [snapshot.summary.operation.value for snapshot in self.table.metadata.snapshots]


def numbers(values: Iterable[int]) -> list[tuple[int, str]]:
    return [(value, f"v{value}") for value in values]


class Replacing(_OverwriteFiles):
    """Other files in the place of all that are there, in one snapshot, as an engine's compaction or overwrite makes."""

    operation = Operation.REPLACE

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        found = super()._summary(snapshot_properties or {})
        return Summary(self.operation, **found.additional_properties)


class Overwriting(Replacing):
    operation = Operation.OVERWRITE


def replace_files(table: Table, data: pa.Table | None, kind: type[Replacing] = Replacing, **summary: str) -> int:
    """Replace all files by one of these rows (None: of those that are there); returns the snapshot's id."""
    old = [task.file for task in table.scan().plan_files()]
    data = table.scan().to_arrow() if data is None else data
    with table.transaction() as transaction:
        files = list(_dataframe_to_data_files(transaction.table_metadata, data, table.io)) if data.num_rows else []
        with kind(Operation.OVERWRITE, transaction, table.io, snapshot_properties=dict(summary)) as change:
            for file in old:
                change.delete_data_file(file)
            for file in files:
                change.append_data_file(file)
    return table.current_snapshot().snapshot_id
