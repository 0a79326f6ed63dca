"""Release after release at random: each ends as a fresh creation of its declaration over the same rows would.

``RFR_RELEASES_SEED`` is the seed; a failure shows it, with the number of its sequence."""

from __future__ import annotations

import itertools
import json
import os
import random
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.builtins.desired import same_query
from airflow_provider_rfr.builtins.maintenance import gc
from airflow_provider_rfr.builtins.model import BROKEN, MARKER, CatalogSpec, Column
from airflow_provider_rfr.builtins.plan import Plan
from airflow_provider_rfr.builtins.refresh import refresh
from airflow_provider_rfr.lake.tables import LiveColumn
from airflow_provider_rfr.sinks.run import run_sink
from tests.profile import share
from tests.releases import Author, Release, Row, Table, registered, write
from tests.unit.builtins.catalogs import PROJECT
from tests.unit.builtins.execution.crashing import before_each_effect
from tests.unit.builtins.execution.places import DuckEngine, Place
from tests.webhook_receiver import FakeClock

SEED = os.environ.get("RFR_RELEASES_SEED", "1")
SEQUENCES, IN_TEST, RELEASES = 20, 1, share(10, least=5)
EIGHT_DAYS = 8 * 86400
Shape = list[tuple[str, str]]
"""Names and types of a view's columns."""


_SPARK = {"INTEGER": "int", "VARCHAR": "string"}


class ReadAsSpark(DuckEngine):
    """Reads views as Spark reads Iceberg's: by position, and only while each column can be made what it was when the
    view was registered without losing anything."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.catalog, place.folder / "views")
        self._shapes_at = place.folder / "shapes.json"
        self._lake = place.folder / "lake.db"
        self._tables: dict[tuple[str, str], Any] = {}

    def shapes(self) -> dict[str, Shape]:
        found = json.loads(self._shapes_at.read_text()) if self._shapes_at.exists() else {}
        return {name: [(item[0], item[1]) for item in shape] for name, shape in found.items()}

    def create_view(self, name: str, sql: str, properties: Mapping[str, str], columns: Sequence[Column] = ()) -> None:
        shape = self._shape(sql, [column.name for column in columns])
        super().create_view(name, sql, properties, columns)
        self._shapes_at.write_text(json.dumps({**self.shapes(), name: shape}))

    def _shape(self, sql: str, columns: Sequence[str]) -> Shape:
        with self._connected() as connection:
            found = _outputs(connection, sql)
        names = columns or [item for item, _ in found]
        return [(called, kind) for called, (_, kind) in zip(names, found, strict=True)]

    def shown(self, sql: str, columns: Sequence[str]) -> tuple[LiveColumn, ...]:
        return tuple(LiveColumn(name, _SPARK.get(kind, kind.lower())) for name, kind in self._shape(sql, columns))

    def rename_view(self, old: str, new: str) -> None:
        shapes = self.shapes()
        super().rename_view(old, new)
        self._shapes_at.write_text(json.dumps({**shapes, new: shapes[old]}))

    def _views_in(self, query: str) -> dict[str, str]:
        """Each before those that it names itself, also where two of them name the same one."""
        found: dict[str, str] = {}
        for name, item in self._known().items():
            if name in query:
                below = self._views_in(item.query)
                found = {name: item.query, **{key: text for key, text in found.items() if key not in below}, **below}
        return found

    def unreadable(self) -> dict[str, str]:
        """Each view that a reader would get an error from, but those that a user was told of, with the error."""
        found, shapes = {}, self.shapes()
        with self._connected() as connection:
            for view in self.views(self._catalog):
                try:
                    self._read(connection, view.query, shapes[view.name])
                except (duckdb.Error, ValueError) as error:
                    if BROKEN not in view.properties:
                        found[view.name] = f"{error} in {view.query}"
        return found

    def contents(self) -> dict[str, tuple[Shape, list[dict[str, Any]]]]:
        """Columns and rows of each view that can be read."""
        found, shapes = dict[str, tuple[Shape, list[dict[str, Any]]]](), self.shapes()
        with self._connected(rows=True) as connection:
            left = {view.name: view for view in self.views(self._catalog)}
            while ready := [name for name, item in left.items() if not any(one in item.query for one in left)]:
                for name in ready:
                    view = left.pop(name)
                    if BROKEN in view.properties:
                        continue
                    text = self._read(connection, view.query, shapes[name])
                    connection.execute(f"DROP TABLE {name}; CREATE TABLE {name} AS {text}")
                    names = [shape for shape, _ in shapes[name]]
                    rows = [dict(zip(names, row, strict=True)) for row in connection.execute(text).fetchall()]
                    found[name] = (shapes[name], rows)
            assert not [name for name, item in left.items() if BROKEN not in item.properties], "views in a circle"
        return found

    def _connected(self, *, rows: bool = False) -> duckdb.DuckDBPyConnection:
        """With every table, and a table with its shape for each view."""
        connection = duckdb.connect()
        connection.execute("CREATE SCHEMA ops; CREATE SCHEMA bob")
        for name, location, kind in self.state():
            key = (name, location)
            if kind == "VIEW":
                continue
            if key not in self._tables or rows:
                scan = self._catalog.load_table(name).scan()
                self._tables[key] = scan.to_arrow() if rows else scan.projection().as_arrow().empty_table()
            connection.register("rows_in", self._tables[key])
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows_in")
        known = self._known()
        for name, shape in self.shapes().items():
            if name in known:
                connection.execute(f"CREATE TABLE {name} ({', '.join(f'{item} {kind}' for item, kind in shape)})")
        return connection

    def state(self) -> list[tuple[str, str, str]]:
        """Each table and view: its name, its metadata's location, which is another one after each change, its type."""
        columns = "table_namespace || '.' || table_name, metadata_location, iceberg_type"
        with sqlite3.connect(self._lake) as database:
            return database.execute(f"SELECT {columns} FROM iceberg_tables ORDER BY 1").fetchall()

    def _read(self, connection: duckdb.DuckDBPyConnection, sql: str, shape: Shape) -> str:
        found = _outputs(connection, sql)
        if len(found) < len(shape):
            raise ValueError(f"{len(shape)} columns were registered, and it gives {len(found)}")
        for (name, before), (_, now) in zip(shape, found, strict=False):
            if not _casts_up(now, before):
                raise ValueError(f"can't up cast {name} from {now} to {before}")
        inside = ", ".join(f"p{place}" for place in range(len(found)))
        picks = [f"CAST(p{place} AS {kind}) AS {name}" for place, (name, kind) in enumerate(shape)]
        return f"SELECT {', '.join(picks)} FROM ({_duck(sql)}) AS q({inside})"


def _duck(sql: str) -> str:
    return sqlglot.transpile(sql, read="spark", write="duckdb")[0]


def _outputs(connection: duckdb.DuckDBPyConnection, sql: str) -> Shape:
    return [(row[0], row[1]) for row in connection.execute(f"DESCRIBE {_duck(sql)}").fetchall()]


def _casts_up(now: str, before: str) -> bool:
    """Spark's rule."""
    up = {("INTEGER", "BIGINT"), ("INTEGER", "DOUBLE"), ("BIGINT", "DOUBLE"), ("DECIMAL(10,2)", "DECIMAL(12,2)")}
    return now == before or before == "VARCHAR" or (now, before) in up


class Death(BaseException):
    """No handler may keep a dead process alive."""


@dataclass
class Theirs:
    """A user's view.

    :ivar reads: objects by number, their names, and the columns that are used; None for a star
    """

    text: str
    reads: list[tuple[int, str, frozenset[str] | None]] = field(default_factory=list)
    over: str | None = None


class Releases:
    """Releases of one platform, one after the other."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice, self.clock = folder, dice, FakeClock()
        self.author = Author(dice)
        self.ids = itertools.count(1)
        self.tables: dict[int, Table] = {}
        self.release = Release({})
        self.users: dict[str, Theirs] = {}
        self.number = 0
        self.story: list[str] = []
        self.place = self.open("lake")

    def open(self, name: str) -> Place:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        place = Place(folder, self.clock)
        place.engine = ReadAsSpark(place)
        return place

    def load(self, documents: Sequence[Mapping[str, Any]]) -> CatalogSpec:
        path = self.folder / f"release_{self.number}.yaml"
        write(documents, path)
        return load_objects(path, project=PROJECT, version=f"1.{self.number}", entry_points=False)

    # One release

    def go_on(self) -> None:
        self.number += 1
        before = self.release
        new = self.author.next(before) if before.objects else self.author.first()
        self.story.append(f"{self.number}: {', '.join(new.did)}{' (safe)' * new.safe}")
        bases, crashed = [before], False
        if tried := self.dice.random() < 0.4 and bool(before.objects):
            documents, spec = self.declared(new, bases)
            if crashed := self.dies(new, spec):
                self.survey(before, new)
                if self.dice.random() < 0.5:
                    self.story[-1] += ", corrected"
                    bases = [new, before]
                    new = self.author.correct(new, before)
        documents, self.spec = self.declared(new, bases)
        spec = self.spec
        plan = self.plan(new, spec, tried)
        self.apply(plan, spec, new.safe)
        again = self.place.plan(spec)
        assert (again.steps, again.drift, again.records, again.blocked) == ((), (), (), ()), "the second plan"
        self.settle(new, before, documents, crashed)
        self.send()
        if self.dice.random() < 0.2:
            self.clock.time += EIGHT_DAYS
            collected = gc(project=PROJECT, catalog=self.place.catalog, store=self.place.store)
            assert not collected.failed
        self.compare(spec)
        self.live_on()

    def declared(self, new: Release, bases: Sequence[Release]) -> tuple[list[dict[str, Any]], CatalogSpec]:
        self.accepted = {loss for loss in sorted(new.losses) if self.dice.random() < 0.5}
        documents = new.documents(bases, str(self.folder / "out"), removed=new.losses - self.accepted)
        return documents, self.load(documents)

    def plan(self, new: Release, spec: CatalogSpec, tried: bool) -> Plan:
        """What is lost has to be accepted, and nothing else."""
        allowed = {"break_views": frozenset(self.users)}
        if self.accepted and not tried:
            assert not self.place.plan(spec, **allowed).applicable, f"{self.accepted} was not accepted"
        plan = self.place.plan(spec, accept_data_loss=frozenset(self.accepted), **allowed)
        assert plan.applicable, [*plan.blocked, *plan.drift]
        return plan

    def apply(self, plan: Plan, spec: CatalogSpec, watched: bool) -> None:
        last = None

        def look(effect: str) -> None:
            nonlocal last
            if watched and (state := self.engine.state()) != last:
                last = state
                assert not (bad := self.engine.unreadable()), f"before {effect}: {bad}"

        with before_each_effect(self.place, look):
            self.place.apply(plan, spec)
        look("the end")
        assert not (bad := self.engine.unreadable()), bad

    @property
    def engine(self) -> ReadAsSpark:
        assert isinstance(self.place.engine, ReadAsSpark)
        return self.place.engine

    def dies(self, new: Release, spec: CatalogSpec) -> bool:
        """Whether a deploy died at one of its writes, and all that it would have written after that."""
        plan = self.plan(new, spec, False)
        left = self.dice.randrange(1, 6 + 3 * len(plan.steps))

        def die(effect: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.story[-1] += f", dies before {effect}"
            if left <= 0:
                raise Death

        try:
            with before_each_effect(self.place, die):
                self.place.apply(plan, spec)
        except Death:
            if new.safe:
                assert not (bad := self.engine.unreadable()), f"after it died: {bad}"
        self.place.close()
        self.clock.time += 3600
        self.place = self.open("lake")
        return left <= 0

    def survey(self, before: Release, new: Release) -> None:
        """Each table is as it was, or as it was to become; what its rows are from now on."""
        live = defaultdict[str, list[str]](list)
        for name, marker in self.place.markers().items():
            if name in self.place.tables():
                live[str(marker)].append(name)
        for number in sorted({**before.objects, **new.objects}):
            obj = new.objects.get(number) or before.objects[number]
            old, wanted = self.tables.get(number), new.objects.get(number)
            candidates = [] if old is None else [old]
            if wanted is not None and wanted.kind == "table":
                candidates.append((old or Table(wanted.cols)).becomes(wanted))
            names = [item for item in live[str(obj.id)] if "__g" not in item]
            if not names and old is not None:
                # Put aside, and to be found again.
                names = live[str(obj.id)]
            if not names or not candidates:
                assert old is None, f"{before.objects[number].name} is gone"
                continue
            found = [(name, candidate) for name in names for candidate in candidates if self.is_at(candidate, name)]
            assert found, f"{names} is neither as it was nor as it is to be"
            name, self.tables[number] = found[-1]
            if "__g" not in name and self.dice.random() < 0.2:
                self.append(self.place, name, number, self.author.rows(self.tables[number], self.ids))

    def is_at(self, table: Table, name: str) -> bool:
        live = self.place.catalog.load_table(name)
        return [field.name for field in live.schema().fields] == [col.name for col in table.cols] and self.place.rows(
            name
        ) == sorted(table.typed(), key=str)

    def settle(self, new: Release, before: Release, documents: Sequence[Mapping[str, Any]], crashed: bool) -> None:
        """The tables' rows as they have to be, and users' views that may be broken now."""
        known = self.tables
        self.tables = {
            item.number: known[item.number].becomes(item) if item.number in known else Table(item.cols)
            for item in new.of("table")
        }
        self.release = registered(new, before, documents)
        broken = {view.name for view in self.engine.views(self.place.catalog) if BROKEN in view.properties}
        for name, view in list(self.users.items()):
            said = self.breaks(view, before, broken)
            if said is not None and not (crashed and name in broken):
                assert (name in broken) is said, f"{name} ({view.text}) is broken: {name in broken}"

    def breaks(self, view: Theirs, before: Release, broken: set[str]) -> bool | None:
        """Whether it has to be marked as broken; None where both will do."""
        if view.over is not None:
            return view.over in broken
        sure: bool | None = False
        for number, name, columns in view.reads:
            obj = self.release.objects.get(number)
            if obj is None or obj.name != name:
                return True
            now = {called: key for key, called, _ in self.release.outputs(number)}
            old = {called: key for key, called, _ in before.outputs(number)}
            if columns is not None and not columns <= now.keys():
                return True
            if any(now.get(item) != old.get(item) for item in (old if columns is None else columns)):
                sure = None
        return sure

    # What comes between releases

    def live_on(self) -> None:
        """Applications write rows, users make views and mend them."""
        for number, table in self.tables.items():
            self.append(self.place, self.release.objects[number].name, number, self.author.rows(table, self.ids))
        broken = {view.name for view in self.engine.views(self.place.catalog) if BROKEN in view.properties}
        for name in sorted(broken & self.users.keys()):
            self.drop(name)
        if len(self.users) < 4 and self.dice.random() < 0.7:
            self.make_view()

    def make_view(self) -> None:
        name = f"bob.{self.dice.choice([item for item in 'uvwxyz' if f'bob.{item}' not in self.users])}"
        query = self.author.query(self.release, 1000)
        assert query is not None
        reads = []
        for item in query.inputs:
            used = {key for one, key, _ in query.picks if one == item} | ({"id"} if query.form == "join" else set())
            used |= {"id"} if query.even else set()
            names = frozenset(called for key, called, _ in self.release.outputs(item) if key in used)
            reads.append((item, self.release.objects[item].name, None if query.form == "star" else names))
        view = Theirs(self.release.sql(query), reads)
        if self.users and self.dice.random() < 0.3:
            over = self.dice.choice(sorted(self.users))
            columns = [shape for shape, _ in self.engine.shapes()[over]]
            view = Theirs(f"SELECT {self.dice.choice(columns)} AS w FROM {over}", [], over)
        self.users[name] = view
        self.theirs(self.place, name)

    def drop(self, name: str) -> None:
        """With what is over it."""
        for other in [user for user, view in self.users.items() if view.over == name]:
            self.drop(other)
        if self.users.pop(name, None) is not None:
            self.engine.drop_view(name)

    def theirs(self, place: Place, name: str) -> None:
        place.engine.create_view(name, self.users[name].text, {})

    def append(self, place: Place, name: str, number: int, rows: Sequence[Row]) -> None:
        if rows:
            table = self.tables[number]
            place.append(name, *table.typed(rows))
            if place is self.place:
                self.tables[number] = Table(table.cols, (*table.rows, *rows))

    def send(self, always: bool = False) -> None:
        """Sinks run now and then; their files have every row once."""
        for obj in self.release.of("sink"):
            if not always and self.dice.random() < 0.3:
                continue
            declared = self.spec.by_key()[obj.name]
            run_sink(declared.id, declared.name, declared.sink, catalog=self.place.catalog, store=self.place.store)
            files = (self.folder / "out" / str(obj.number)).glob("*.jsonl")
            sent = sorted(json.loads(line)["id"] for file in files for line in file.open())
            assert sent == sorted(row["id"] for row in self.tables[obj.source].rows), f"rows of sink {obj.name}"

    # The judgement

    def compare(self, spec: CatalogSpec) -> None:
        """With a fresh creation over the same rows."""
        fresh = self.open(f"fresh{self.number}")
        fresh.deploy(spec)
        for number, table in self.tables.items():
            self.append(fresh, self.release.objects[number].name, number, table.rows)
        known = {view.name: view for view in self.engine.views(self.place.catalog)}
        left = [name for name in self.users if BROKEN not in known[name].properties]
        for name in sorted(left, key=lambda value: self.users[value].over is not None):
            self.theirs_in_order(fresh, name)
        for place in (self.place, fresh):
            where: dict[str, Any] = {"catalog": place.catalog, "store": place.store}
            refresh((), project=PROJECT, sql=place.engine, **where)
        assert isinstance(fresh.engine, ReadAsSpark)
        for obj in self.release.of("table", "mview"):
            assert _described(self.place, obj.name) == _described(fresh, obj.name)
            ours_rows, wanted = self.place.rows(obj.name), fresh.rows(obj.name)
            assert ours_rows == wanted, f"rows of {obj.name}: {ours_rows}, and fresh {wanted}"
        tables = {item.name for item in self.release.of("table", "mview")}
        assert {table for table in self.place.tables() if "__g" not in table} == tables
        views = {item.name for item in self.release.of("view")}
        assert known.keys() == views | self.users.keys()
        made = {view.name: view for view in fresh.engine.views(fresh.catalog)}
        ours, theirs = self.engine.contents(), fresh.engine.contents()
        for obj in self.release.of("view"):
            assert _said(known[obj.name].properties) == _said(made[obj.name].properties), obj.name
            if obj.query is not None and obj.query.form == "star":
                wanted_names = {name for _, name, _ in self.release.outputs(obj.number)}
                assert {name for name, _ in ours[obj.name][0]} == wanted_names, f"columns of {obj.name}"
            else:
                assert ours[obj.name][0] == theirs[obj.name][0], f"columns of {obj.name}"
                assert same_query(known[obj.name].query, made[obj.name].query), obj.name
        for name in (*views, *left):
            names = [our for our, _ in ours[name][0]]
            assert set(ours[name][0]) <= set(theirs[name][0]), f"types of {name}"
            assert _rows(ours[name][1], names) == _rows(theirs[name][1], names), f"rows of {name}"
        fresh.close()

    def theirs_in_order(self, place: Place, name: str) -> None:
        over = self.users[name].over
        if over is not None and over not in {view.name for view in place.engine.views(place.catalog)}:
            self.theirs_in_order(place, over)
        self.theirs(place, name)


def _described(place: Place, name: str) -> Any:
    table = place.catalog.load_table(name)
    fields = [(field.name, str(field.field_type), field.required, field.doc) for field in table.schema().fields]
    return fields, _said(table.properties), [str(field.transform) for field in table.spec().fields]


def _said(properties: Mapping[str, str]) -> dict[str, str]:
    assert MARKER in properties
    return {name: value for name, value in properties.items() if not name.startswith("rfr.")}


def _rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    return sorted(str([row[name] for name in names]) for row in rows)


def _sequence(number: int) -> Any:
    return pytest.param(number, marks=pytest.mark.test if number < IN_TEST else pytest.mark.full)


@pytest.mark.parametrize("number", list(map(_sequence, range(SEQUENCES))))
def test_every_release_ends_as_a_fresh_creation_of_it_would(number: int, tmp_path: Path) -> None:
    sequence = Releases(tmp_path, random.Random(f"{SEED}/{number}"))
    try:
        for _ in range(RELEASES):
            sequence.go_on()
        sequence.send(always=True)
    except BaseException as error:
        error.add_note("\n".join((f"RFR_RELEASES_SEED={SEED}, sequence {number}", *sequence.story, str(tmp_path))))
        raise
    finally:
        sequence.place.close()
