"""Declarations become one immutable value, wherever they come from."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr import __version__, builtins
from airflow_provider_rfr.builtins import BuiltinObject, Column, Kind, Removed, SinkSpec, Was, load_objects, stable_id
from airflow_provider_rfr.exceptions import DeclarationError
from tests.soon import soon
from tests.unit.builtins.declaring import PATIENT, load, loaded, write

EVERYTHING = """
kind: table
name: ops.Runs
id: 5b0b7c9e-0000-4000-8000-000000000001
keep: billing is computed from it
exportable: true
comment: One row a run
owner: data
columns:
  - {name: run_id, type: STRING, required: true, comment: "what, and why"}
  - name: rows
    type: long
    was:
      - n
      - {name: row_count, type: STRING, using: try_cast(row_count AS bigint)}
  - {name: ended_at, type: timestamp, was: finished_at}
  - {name: tries, type: int, was: {using: "1"}}
keys: [run_id]
partitioning: [day(ended_at), "bucket(run_id, 16)"]
properties: {write.format.default: parquet, format-version: 2, write.metadata.delete-after-commit.enabled: true}
---
kind: view
name: ops.recent
comment: What ran
depends_on: [raw.x]
query: |
  SELECT run_id, rows -- the newest
  FROM ops.Runs
---
kind: materialized_view
name: ops.daily
keep: false
columns: [{name: rows, type: bigint}]
query: SELECT sum(r.rows) AS rows FROM ops.runs r
---
kind: log
name: ops.log
per_instance: lake
columns: [{name: a, type: int}]
---
kind: source
name: raw.orders
source: {definition: {streams: {orders: {path: /orders}}}, connection: api, pages: [1, 2.5, true, null]}
---
kind: sink
name: ops.export
sink:
  source: ops.runs
  to: files
  settings: {path: "s3://bucket/x", format: parquet}
  columns: [run_id]
  follow_schema: true
  on_replace: resend
---
kind: removed
name: ops.Gone
---
kind: removed
name: ops.runs.note
"""


def test_everything_that_can_be_said_is_read(tmp_path: Path) -> None:
    found = loaded(tmp_path, EVERYTHING)
    assert found["ops.runs"] == BuiltinObject(
        kind=Kind.TABLE,
        name="ops.Runs",
        id=uuid.UUID("5b0b7c9e-0000-4000-8000-000000000001"),
        columns=(
            Column("run_id", "string", required=True, comment="what, and why"),
            Column("rows", "bigint", was=(Was("n"), Was("row_count", "string", "try_cast(row_count AS bigint)"))),
            Column("ended_at", "timestamp", was=(Was("finished_at"),)),
            Column("tries", "int", was=(Was(using="1"),)),
        ),
        keep="billing is computed from it",
        partitioning=("days(ended_at)", "bucket(16, run_id)"),
        keys=("run_id",),
        properties={
            "write.format.default": "parquet",
            "format-version": "2",
            "write.metadata.delete-after-commit.enabled": "true",
        },
        comment="One row a run",
        owner="data",
        exportable=True,
    )
    assert found["ops.recent"].query == "SELECT run_id, rows -- the newest\nFROM ops.Runs\n"
    assert found["ops.recent"].depends_on == ("raw.x",)
    assert (found["ops.recent"].keep, found["ops.daily"].keep) == (True, False)
    assert found["ops.log"].per_instance == "lake"
    assert found["raw.orders"].source == {
        "definition": {"streams": {"orders": {"path": "/orders"}}},
        "connection": "api",
        "pages": (1, 2.5, True, None),
    }
    settings = {"path": "s3://bucket/x", "format": "parquet"}
    assert found["ops.export"].sink == SinkSpec("ops.runs", "files", settings, ("run_id",), True, "resend")
    assert load(tmp_path).removed == (Removed("ops.Gone"), Removed("ops.runs.note"))


def test_every_object_knows_its_file_and_line_and_is_equal_wherever_it_stands(tmp_path: Path) -> None:
    one = load(write(tmp_path / "a", objects=EVERYTHING))
    other = load(write(tmp_path / "b", objects=f"# moved\n\n{EVERYTHING}"))
    assert str(one.by_key()["ops.recent"].place) == f"{tmp_path / 'a' / 'objects.yaml'}:21"
    assert [str(item.place).rpartition("/")[2] for item in one.removed] == ["objects.yaml:54", "objects.yaml:57"]
    assert one == other


def test_objects_come_sorted_by_name_and_can_t_be_changed(tmp_path: Path) -> None:
    spec = load(write(tmp_path, objects=EVERYTHING))
    assert [obj.key for obj in spec.objects] == sorted(obj.key for obj in spec.objects)
    assert (spec.project, spec.version) == ("acme", "1.0")
    with pytest.raises(FrozenInstanceError):
        setattr(spec.objects[0], "name", "x")  # noqa: B010
    for obj in spec.objects:
        for mapping in (obj.properties, obj.source):
            with pytest.raises(TypeError):
                mapping["x"] = "y"


def test_an_object_without_an_id_has_one_for_ever_and_a_renamed_one_writes_it(tmp_path: Path) -> None:
    first = loaded(tmp_path, A_TABLE.format("Runs"))["ops.runs"]
    assert first.id == stable_id("acme", "ops.runs") == loaded(tmp_path, A_TABLE.format("RUNS"))["ops.runs"].id
    assert loaded(tmp_path, A_TABLE.format("runs"), project="other")["ops.runs"].id != first.id
    assert loaded(tmp_path, f"id: {first.id}\n{A_TABLE.format('all_runs')}")["ops.all_runs"].id == first.id


A_TABLE = "kind: table\nname: ops.{}\ncolumns: [{{name: a, type: int}}]\n"


def test_a_folder_is_read_with_those_inside_and_without_hidden_ones_and_each_file_once(tmp_path: Path) -> None:
    write(tmp_path, a=A_TABLE.format("a"), deep__er__b=A_TABLE.format("b"))
    (tmp_path / "c.yml").write_text(A_TABLE.format("c"))
    (tmp_path / "same.yaml").symlink_to(tmp_path / "a.yaml")
    (tmp_path / ".d.yaml").write_text("nonsense: [")
    write(tmp_path / "deep" / ".git", e="nonsense: [")
    (tmp_path / "notes.json").write_text("{}")
    assert [obj.name for obj in load(tmp_path, str(tmp_path), tmp_path / "a.yaml").objects] == [
        "ops.a",
        "ops.b",
        "ops.c",
    ]


def test_a_hidden_folder_that_is_named_is_read(tmp_path: Path) -> None:
    assert load(write(tmp_path / ".objects", a=A_TABLE.format("a"))).objects


def test_objects_of_python_are_as_good_as_those_of_files(tmp_path: Path) -> None:
    columns = Column("id", "Long", required=True), Column("at", "timestamp")
    identity = stable_id("acme", "ops.runs")
    declared = BuiltinObject(Kind.TABLE, "ops.runs", identity, columns, partitioning=("month( at )",))
    text = """
        kind: table
        name: ops.runs
        columns: [{name: id, type: bigint, required: true}, {name: at, type: timestamp}]
        partitioning: [months(at)]
    """
    assert load(declared) == load([[declared]]) == load(iter([declared])) == load(write(tmp_path, a=text))
    gone = write(tmp_path / "gone", a="kind: removed\nname: ops.old\n")
    assert load(Removed("ops.old")) == load([Removed("ops.old")]) == load(gone)


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path: Path) -> None:
    text = "kind: view\r\nname: ops.v\r\nquery: |\r\n  SELECT 1 AS a\r\n"
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load(tmp_path).objects[0].query == "SELECT 1 AS a\n"


def test_empty_documents_are_no_objects(tmp_path: Path) -> None:
    text = "---\n# nothing\n---\nkind: view\nname: ops.v\nquery: SELECT 1 AS a\n---\n"
    assert len(loaded(tmp_path, text)) == 1
    assert loaded(tmp_path, "# nothing at all\n") == {}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another package that declares objects; takes the text of its entry points and of its module."""

    def install(points: str, module: str = "") -> Path:
        package = tmp_path / "site" / "acme_objects"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(module)
        write(package, a="kind: table\nname: acme.a\ncolumns: [{name: a, type: int}]\n")
        info = tmp_path / "site" / "acme_objects-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-objects\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[airflow_provider_rfr.builtins]\n{points}\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        monkeypatch.delitem(sys.modules, "acme_objects", raising=False)
        return package

    return install


PYTHON = """
from airflow_provider_rfr.builtins import BuiltinObject, Column, Kind, stable_id

OBJECT = BuiltinObject(Kind.TABLE, "acme.b", stable_id("acme", "acme.b"), (Column("a", "int"),))

def objects():
    return [OBJECT]

def broken():
    raise LookupError("no such thing")
"""


@pytest.mark.parametrize(
    ("point", "name"),
    [("acme_objects", "acme.a"), ("acme_objects:OBJECT", "acme.b"), ("acme_objects:objects", "acme.b")],
)
def test_an_installed_package_declares_by_an_entry_point(installed, point: str, name: str) -> None:
    installed(f"mine = {point}", PYTHON)
    assert name in load(entry_points=True).by_key()
    assert name not in load(entry_points=False).by_key()


@pytest.mark.parametrize("point", ["acme_objects:broken", "acme_objects:nothing", "no_such_package"])
def test_an_entry_point_that_fails_is_one_of_the_problems(installed, tmp_path: Path, point: str) -> None:
    installed(f"mine = {point}", PYTHON)
    broken = write(tmp_path / "own", a="kind: tabel\nname: x.y\n")
    with pytest.raises(DeclarationError) as refused:
        load(broken, entry_points=True)
    told = str(refused.value)
    assert f"entry point mine ({point}): it can't be loaded: " in told
    assert "kind: must be 'table'" in told


def test_the_version_is_that_of_this_package_where_none_is_given() -> None:
    assert load_objects(entry_points=False).version == __version__


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True)
WORDS = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
WAS = st.builds(Was, st.none(), st.just("string"), st.sampled_from([None, "1", "CAST(b AS int)"]))
COLUMNS = st.builds(
    Column,
    NAMES,
    st.sampled_from(["int", "string", "decimal(10,2)", "array<struct<a:int,b:string>>"]),
    st.booleans(),
    WORDS,
    st.lists(WAS, max_size=2).map(tuple),
)
TABLES = st.builds(
    lambda name, columns, comment, owner, keep: BuiltinObject(
        *(Kind.TABLE, f"ops.{name}", stable_id("acme", f"ops.{name}"), tuple(columns), keep),
        keys=(columns[0].name,), comment=comment, owner=owner,
    ),
    NAMES,
    st.lists(COLUMNS, min_size=1, max_size=3, unique_by=lambda column: column.name),
    WORDS,
    WORDS,
    st.one_of(st.booleans(), WORDS.filter(lambda text: text is not None and text.strip())),
)  # fmt: skip


def document(obj: BuiltinObject) -> dict[str, object]:
    columns = [{**asdict(column), "was": [asdict(was) for was in column.was]} for column in obj.columns]
    fields = {name: getattr(obj, name) for name in ("name", "comment", "owner", "keep")}
    return {"kind": obj.kind.value, "columns": columns, "keys": list(obj.keys), **fields}


class Quoting(yaml.SafeDumper):
    """Quotes texts that YAML 1.2 reads as numbers, too: 0E0 is one."""


NUMBERS = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
Quoting.add_implicit_resolver("tag:yaml.org,2002:float", NUMBERS, list("-+.0123456789"))


@PATIENT
@given(st.lists(TABLES, min_size=1, max_size=3, unique_by=lambda table: table.key))
def test_what_is_written_to_yaml_is_read_back_equal(tmp_path: Path, tables: list[BuiltinObject]) -> None:
    text = yaml.dump_all([document(table) for table in tables], Dumper=Quoting, allow_unicode=True)
    spec = load(write(tmp_path, objects=text))
    assert spec.objects == tuple(sorted(tables, key=lambda table: table.key)) == load(tables).objects


@pytest.mark.full
def test_ten_thousand_objects_in_one_folder_load_in_a_few_seconds(tmp_path: Path) -> None:
    for number in range(9_000):
        columns = "[{name: id, type: bigint, required: true}, {name: at, type: timestamp}]"
        text = f"kind: table\nname: ops.t{number}\ncomment: number {number}\nkeys: [id]\ncolumns: {columns}\n"
        (tmp_path / f"t{number}.yaml").write_text(text)
    for number in range(1_000):
        join = f"ops.t{number} a JOIN ops.t{number + 1} b ON a.id = b.id"
        text = f"kind: view\nname: ops.v{number}\nquery: SELECT a.id, count(*) AS n FROM {join} GROUP BY a.id\n"
        (tmp_path / f"v{number}.yaml").write_text(text)
    with soon(time.thread_time):
        assert len(load(tmp_path).objects) == 10_000


def test_a_thousand_views_on_top_of_each_other_load(tmp_path: Path) -> None:
    base = BuiltinObject(Kind.TABLE, "ops.v0", stable_id("p", "v0"), (Column("a", "int"),))
    views = [
        BuiltinObject(Kind.VIEW, f"ops.v{n}", stable_id("p", f"v{n}"), query=f"SELECT * FROM ops.v{n - 1}")
        for n in range(1, 1_000)
    ]
    assert len(load(base, reversed(views)).objects) == 1_000


def test_importing_the_package_imports_no_parser_and_reading_dags_none() -> None:
    program = (
        "import sys, airflow_provider_rfr.builtins as b\n"
        "assert b.Kind.TABLE.value == 'table'\n"
        "print([n for n in ('sqlglot', 'yaml', 'airflow', 'pyspark', 'pyiceberg') if n in sys.modules])\n"
        "b.load_objects\n"
        "print([n for n in ('airflow', 'pyspark', 'pyiceberg', 'pyarrow', 'pydantic') if n in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "['pydantic']"]


def test_the_public_names_are_there_and_no_others() -> None:
    for name in builtins.__all__:
        assert getattr(builtins, name) is not None
    with pytest.raises(AttributeError):
        _ = builtins.nothing
