"""A lake and a control store in a folder, deploys between them, and an engine that runs SQL by DuckDB."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import sqlglot
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables

from airflow_provider_rfr.builtins.deploy import Applied, apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.model import MARKER, CatalogSpec, Column, Kind, RecordedObject, namespace_of
from airflow_provider_rfr.builtins.plan import Plan, Policies
from airflow_provider_rfr.builtins.planner import plan as make_plan
from airflow_provider_rfr.builtins.spark_sql import Outputs
from airflow_provider_rfr.exceptions import SparkJobError
from airflow_provider_rfr.lake.catalog import LakeSettings, ensure_namespace, open_catalog
from airflow_provider_rfr.lake.commits import append_files
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget, StoredFile
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.tables import LiveColumn, ViewEntry, list_views
from airflow_provider_rfr.lake.types import ColumnType
from airflow_provider_rfr.store.engine import Clock, ControlStore, open_store
from tests.unit.builtins.catalogs import PROJECT


def _duck_type(text: str) -> str:
    """A type of Spark in DuckDB's words."""
    return sqlglot.exp.DataType.build(text, dialect="spark").sql("duckdb")


def _metadata(view: ViewEntry) -> dict[str, Any]:
    version = {
        "version-id": 1,
        "schema-id": 0,
        "default-namespace": namespace_of(view.name).split("."),
        "representations": [{"type": "sql", "sql": view.query, "dialect": "spark"}],
    }
    fields = [
        {"id": number, "name": item.name, "type": item.type.replace("bigint", "long"), "required": False}
        for number, item in enumerate(view.columns, 1)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    return {"properties": dict(view.properties), "schemas": [schema], "versions": [version], "current-version-id": 1}


class DuckEngine:
    """Views in the catalog, where Spark puts them; queries by DuckDB over tables without a dot.

    :param folder: of the views' metadata
    :ivar during: called after rows were read and before they are written, once
    """

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self._catalog: Any = catalog
        self._folder = folder
        self.calls: list[str] = []
        self.during: Callable[[], None] | None = None

    def views(self, catalog: Catalog) -> tuple[ViewEntry, ...]:
        return list_views(catalog)

    def _write(self, old: str | None, new: ViewEntry | None) -> None:
        """Put a view in the place of another one, in one transaction."""
        rows = IcebergTables.__table__
        if new is not None:
            ensure_namespace(self._catalog, new.name)
        with self._catalog.engine.begin() as connection:
            if old is not None:
                is_old = (rows.c.table_namespace == namespace_of(old)) & (rows.c.table_name == old.rpartition(".")[2])
                connection.execute(rows.delete().where(is_old, rows.c.iceberg_type == "VIEW"))
            if new is not None:
                self._folder.mkdir(exist_ok=True)
                path = self._folder / f"{uuid4().hex}.json"
                path.write_text(json.dumps(_metadata(new)))
                row = {
                    "catalog_name": self._catalog.name,
                    "metadata_location": f"file://{path}",
                    "iceberg_type": "VIEW",
                }
                names = {"table_namespace": namespace_of(new.name), "table_name": new.name.rpartition(".")[2]}
                connection.execute(rows.insert().values(**row, **names))

    def _known(self) -> dict[str, ViewEntry]:
        return {view.name: view for view in list_views(self._catalog)}

    def create_view(self, name: str, sql: str, properties: Mapping[str, str], columns: Sequence[Column] = ()) -> None:
        self.calls.append(f"create_view {name}")
        # As in Iceberg, a view that is replaced keeps the properties that are not named.
        known = self._known()
        kept = known[name].properties if name in known else {}
        columns_shown = self.shown(sql, [column.name for column in columns])
        self._write(name, ViewEntry(name, sql, {**kept, **properties}, columns_shown))

    def shown(self, sql: str, columns: Sequence[str]) -> tuple[LiveColumn, ...]:
        """What the catalog says of the columns of a view with this text; nothing here."""
        return ()

    def analyse(
        self, tables: Mapping[str, Sequence[Column]], queries: Sequence[RecordedObject], texts: Mapping[str, str]
    ) -> dict[str, Outputs]:
        with duckdb.connect() as connection:
            for name, columns in tables.items():
                nulls = ", ".join(f'CAST(NULL AS {_duck_type(column.type)}) AS "{column.name}"' for column in columns)
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name.partition('.')[0]}")
                connection.execute(f"CREATE TABLE {name} AS SELECT {nulls} LIMIT 0")
            self._show_others(connection, [*tables, *(query.name for query in queries)])
            for query in queries:
                self._check(connection, query)
            found = {}
            for name, text in texts.items():
                with suppress(SparkJobError):
                    found[name] = self._outputs(connection, name, text)[1]
            return found

    def _show_others(self, connection: duckdb.DuckDBPyConnection, known: Iterable[str]) -> None:
        """The catalog's own tables and users' views, as far as they can be read."""
        others = self.tables() - {*known}
        for name, rows in self._inputs(" ".join(others), {}):
            if name not in others:
                continue  # the beginning of a retired table's name
            connection.register("rows_of", rows)
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name.partition('.')[0]}")
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM rows_of LIMIT 0")
        for name, view in self._known().items():
            if MARKER not in view.properties:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name.partition('.')[0]}")
                with suppress(duckdb.Error):
                    connection.execute(f"CREATE VIEW {name} AS {view.query}")

    def tables(self) -> set[str]:
        there = self._catalog.namespace_exists("ops")
        return {".".join(table) for table in self._catalog.list_tables("ops")} if there else set()

    def _check(self, connection: duckdb.DuckDBPyConnection, query: RecordedObject) -> None:
        text, _ = self._outputs(connection, query.name, str(query.sql))
        if query.kind is Kind.VIEW:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {query.name.partition('.')[0]}")
            connection.execute(f"CREATE VIEW {query.name} AS {text}")

    def _outputs(self, connection: duckdb.DuckDBPyConnection, name: str, query: str) -> tuple[str, Outputs]:
        [text] = sqlglot.transpile(query, read="spark", write="duckdb")
        try:
            rows = connection.execute(f"DESCRIBE {text}").fetchall()
        except duckdb.Error as error:
            raise SparkJobError(f"{name}: {error}") from None
        return text, [(row[0], ColumnType(row[1].lower())) for row in rows]

    def drop_view(self, name: str) -> None:
        self.calls.append(f"drop_view {name}")
        self._write(name, None)

    def rename_view(self, old: str, new: str) -> None:
        known = self._known()
        self.calls.append(f"rename_view {old}")
        self._write(old, replace(known[old], name=new))

    def set_view_properties(self, name: str, properties: Mapping[str, str | None]) -> None:
        known = self._known()
        said = {**known[name].properties, **properties}
        kept = {key: value for key, value in said.items() if value is not None}
        self.calls.append(f"set_view_properties {name}")
        self._write(name, replace(known[name], properties=kept))

    def compute(
        self, *, query: str, table: str, target: FileTarget, snapshot: int | None = None
    ) -> tuple[StoredFile, ...]:
        self.calls.append(f"compute {table}")
        views = self._views_in(query)
        with duckdb.connect() as connection:
            for name, rows in self._inputs(" ".join((query, *views.values())), {table: snapshot}):
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name.partition('.')[0]}")
                connection.register("rows_in", rows)
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows_in")
            for name, text in reversed(views.items()):
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name.partition('.')[0]}")
                connection.execute(f"CREATE VIEW {name} AS {text}")
            found = connection.execute(query).to_arrow_table()
        if self.during is not None:
            during, self.during = self.during, None
            during()
        return tuple(file for file, _ in target.write(found))

    def _views_in(self, query: str) -> dict[str, str]:
        """Texts of the views that the query names, each before those that it names itself."""
        found = {name: item.query for name, item in self._known().items() if name in query}
        for text in list(found.values()):
            found |= self._views_in(text)
        return found

    def _inputs(self, query: str, read: Mapping[str, int | None]) -> Iterator[tuple[str, pa.Table]]:
        for name in sorted(self.tables()):
            if name in query:
                table = self._catalog.load_table(name)
                # A snapshot shows the columns of then; those of now may have other names.
                pinned = None if table.metadata.current_snapshot_id == read.get(name) else read.get(name)
                yield name, table.scan(snapshot_id=pinned).to_arrow()


class Place:
    """Everything that a deploy works on."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder = folder
        self.settings = LakeSettings(
            "lake", {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/lake"}
        )
        self.store_url = f"sqlite:///{folder}/control.db"
        self.catalog = open_catalog(self.settings)
        self.store: ControlStore = open_store(self.store_url, clock=clock)
        self.engine = DuckEngine(self.catalog, folder / "views")

    def close(self) -> None:
        self.store.close()
        self.catalog.close()  # type: ignore[attr-defined]

    def plan(self, wanted: CatalogSpec, **policies: Any) -> Plan:
        recorded, live = observe(self.catalog, self.store, project=PROJECT, spec=wanted)
        return make_plan(wanted, recorded, live, policies=Policies(**policies))

    def apply(self, plan: Plan, wanted: CatalogSpec, **more: Any) -> Applied:
        given = {"sql": self.engine, "patience": 20.0, **more}
        return apply(plan, catalog=self.catalog, store=self.store, spec=wanted, **given)

    def deploy(self, wanted: CatalogSpec, **policies: Any) -> Applied:
        found = self.plan(wanted, **policies)
        assert found.applicable, [*found.blocked, *found.drift]
        return self.apply(found, wanted)

    def settle(self, wanted: CatalogSpec, **policies: Any) -> Applied:
        """Deploy it, and see that the next deploy has nothing to do and writes nothing to any table."""
        done = self.deploy(wanted, **policies)
        before, again = self.snapshots(), self.plan(wanted)
        assert (again.steps, again.drift, again.records, again.blocked) == ((), (), (), ())
        assert self.apply(again, wanted).state == "nothing"
        assert self.snapshots() == before
        return done

    def append(self, name: str, *rows: Mapping[str, Any]) -> None:
        table = self.catalog.load_table(name)
        layout = FileLayout.of(table)
        target = FileTarget(layout, FileStore(dict(table.io.properties)), f"{table.location()}/data", layout.arrow)
        found = pa.Table.from_pylist(list(rows), schema=pa.schema(item.remove_metadata() for item in layout.arrow))
        append_files(table, [file.describe(layout) for file, _ in target.write(found)], {})

    def rows(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.catalog.load_table(name).scan().to_arrow().to_pylist()
        return sorted(found, key=str)

    def recorded(self, name: str) -> RecordedObject:
        objects = observe(self.catalog, self.store, project=PROJECT)[0].objects
        return next(obj for obj in objects if obj.name == name)

    def tables(self) -> list[str]:
        return sorted(".".join(table) for table in self.catalog.list_tables("ops"))

    def markers(self) -> dict[str, str | None]:
        """Every table's and view's marker."""
        found = {name: self.catalog.load_table(name).properties.get(MARKER) for name in self.tables()}
        return {**found, **{view.name: view.properties.get(MARKER) for view in self.engine.views(self.catalog)}}

    def snapshots(self) -> dict[str, list[int]]:
        """Of every table, with the version of its metadata."""
        tables = {name: self.catalog.load_table(name) for name in self.tables()}
        return {
            name: [len(table.metadata.metadata_log), *(one.snapshot_id for one in table.metadata.snapshots)]
            for name, table in tables.items()
        }


def told(done: Applied) -> list[tuple[str, str]]:
    """What a deploy did, with the names of that moment."""
    return [(step.how, step.name) for step in done.steps]
