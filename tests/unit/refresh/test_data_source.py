"""The options and the types of PySpark's data source ``rfr``: no request is sent, and no Spark is started."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from airflow_provider_rfr.exceptions import ConfigurationError, SourceDefinitionError, SparkJobError, TypeMismatchError
from airflow_provider_rfr.lake.inference import arrow_schema
from airflow_provider_rfr.lake.schemas import iceberg_type, is_json_text, type_text
from airflow_provider_rfr.refresh import data_source
from airflow_provider_rfr.refresh.data_source import RowLayout, StreamScan, schema_of, spark_schema
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.streams import Stream
from airflow_provider_rfr.streams.paged import as_paged
from tests.unit.messages import check_messages, raises

ROOT = Path(__file__).resolve().parents[3]
CANARY = "canary-33e0b1"
CONFIG = {"base_url": "http://127.0.0.1:9"}
DECLARED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "price": {"type": "number", "format": "decimal(10,2)"},
        "paid": {"type": "boolean"},
        "name": {"type": "string"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "local": {"type": "string", "format": "date-time", "airbyte_type": "timestamp_without_timezone"},
        "anything": {},
        "lists": {"type": "array", "items": {"type": "array", "items": {}}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"a b": {"type": "integer"}, "raw": {}}},
    },
}


def options(**given: str) -> dict[str, str]:
    return {"source": str(SHOP), "stream": "orders", "config": json.dumps(CONFIG), **given}


def spark_type(text: str) -> Any:
    """A schema, as Spark gives it to a data source."""
    from pyspark.sql.types import _parse_datatype_json_string

    return _parse_datatype_json_string(text)


def struct(*fields: tuple[str, Any, bool]) -> Any:
    parts = [{"name": name, "type": kind, "nullable": nullable, "metadata": {}} for name, kind, nullable in fields]
    return spark_type(json.dumps({"type": "struct", "fields": parts}))


def test_types_are_those_of_a_published_table() -> None:
    columns = arrow_schema(DECLARED)
    published = [type_text(iceberg_type(column.type)).replace("`", "") for column in columns]
    assert [field.dataType.simpleString() for field in spark_schema(columns)] == published


def test_a_schema_that_comes_back_from_spark_is_read_as_it_was_declared() -> None:
    columns = arrow_schema(DECLARED)
    layout = RowLayout.of(spark_type(spark_schema(columns).json()))
    assert layout.read.equals(columns, check_metadata=True)
    assert layout.given.equals(columns)
    copied = pickle.loads(pickle.dumps(layout))
    assert is_json_text(copied.read.field("lists").type.value_field)


def test_a_time_of_day_is_a_string() -> None:
    assert spark_schema(pa.schema([("opens", pa.time64("us"))])).simpleString() == "struct<opens:string>"


def test_narrow_types_are_read_wide_and_checked() -> None:
    size = {"type": "struct", "fields": [{"name": "w", "type": "short", "nullable": True, "metadata": {}}]}
    layout = RowLayout.of(struct(("id", "byte", False), ("size", size, True), ("f", "float", True)))
    rows = pa.Table.from_pylist([{"id": 1, "size": {"w": 7}, "f": 0.5}, {"id": 2}], schema=layout.read)
    assert layout.fitted(rows, "orders").to_pydict() == rows.to_pydict()
    assert layout.fitted(rows, "orders").schema == pa.schema(
        [
            pa.field("id", pa.int8(), nullable=False),
            pa.field("size", pa.struct([("w", pa.int16())])),
            pa.field("f", pa.float32()),
        ]
    )
    for row in ({"id": 300}, {"id": None}, {"id": 3, "size": {"w": 70000}}):
        with raises(TypeMismatchError):
            layout.fitted(pa.Table.from_pylist([row], schema=layout.read.remove_metadata()), "orders, page 1")


@pytest.mark.parametrize(
    "field",
    [
        ("raw", "binary", True),
        ("tags", {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}, True),
        ("tags", {"type": "array", "elementType": "string", "containsNull": False}, True),
        (
            "at",
            {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}]},
            True,
        ),
        ("_rfr_meta", "string", True),
    ],
    ids=lambda field: str(field[0]),
)
def test_a_schema_that_records_can_not_be_read_into_is_refused(field: tuple[str, Any, bool]) -> None:
    with raises(ConfigurationError):
        StreamScan.of(options(), struct(field))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("unknown", {"confg": "{}"}),
        ("path", {"path": "shop.yaml"}),
        ("stream", {"stream": ""}),
        ("no_such_stream", {"stream": "ordrs"}),
        ("config_list", {"config": "[1]"}),
        ("config_broken", {"config": "{a: 1, a: 2}"}),
        ("config_file", {"config": "/no/such/file.json"}),
        ("components", {"components": "components.py"}),
        ("variable", {"secrets": "{api_key: {env: NO_SUCH_VARIABLE}}"}),
    ],
)
def test_a_mistake_in_the_options_is_named(name: str, given: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(ConfigurationError):
        schema_of(options(**given))


def test_a_broken_definition_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("base_url: http://127.0.0.1\nstreams: [\n")
    with raises(SourceDefinitionError):
        schema_of(options(source=str(tmp_path / "shop.yaml")))


def definition_with_secrets(folder: Path) -> str:
    document = {**yaml.safe_load(SHOP.read_text()), "secrets": ["pin"]}
    (folder / "marked.yaml").write_text(yaml.safe_dump(document))
    return str(folder / "marked.yaml")


def manifest(folder: Path) -> str:
    fields = {"tenant": {"type": "string", "airbyte_secret": True}}
    spec = {"type": "Spec", "connection_specification": {"type": "object", "properties": fields}}
    document = {"type": "DeclarativeSource", "check": {}, "streams": [], "spec": spec}
    (folder / "manifest.yaml").write_text(yaml.safe_dump(document))
    return str(folder / "manifest.yaml")


def test_a_secret_that_is_written_into_an_option_is_refused_and_not_repeated(tmp_path: Path) -> None:
    marked = definition_with_secrets(tmp_path)
    messages = {}
    for name, given in {
        "by its name": {"config": json.dumps({**CONFIG, "api_key": CANARY})},
        "inside": {"config": json.dumps({**CONFIG, "login": {"password": CANARY}})},
        "a reference": {"config": json.dumps({**CONFIG, "api_key": {"env": "SHOP_KEY"}})},
        "by the definition": {"source": marked, "config": json.dumps({**CONFIG, "pin": CANARY})},
        "by the manifest": {"source": manifest(tmp_path), "config": json.dumps({"tenant": CANARY})},
        "in secrets": {"secrets": json.dumps({"api_key": CANARY})},
        "deep in secrets": {"secrets": json.dumps({"credentials": {"api_key": CANARY}})},
    }.items():
        with pytest.raises(ConfigurationError) as caught:
            schema_of(options(**given))
        messages[name] = str(caught.value)
    assert CANARY not in str(messages)
    check_messages(messages)


def test_what_is_no_secret_by_name_or_mark_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN", CANARY)
    (tmp_path / "config.yaml").write_text("base_url: http://127.0.0.1:9\nenv: prod\ntoken_url: http://127.0.0.1:9\n")
    given = options(source=definition_with_secrets(tmp_path), config=str(tmp_path / "config.yaml"))
    assert "id" in schema_of({**given, "secrets": "{pin: {env: PIN}}"}).names


def test_a_scan_travels_without_files_and_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{CANARY}\n")
    source = definition_with_secrets(tmp_path)
    given = options(source=source, secrets=json.dumps({"pin": {"file": str(tmp_path / "key")}}))
    scan = StreamScan.of(given, schema_of(given))
    Path(source).unlink()
    copied = pickle.loads(pickle.dumps(scan))
    assert copied.source["secrets"] == {"pin": CANARY}
    assert copied.slices() == [{}]
    assert CANARY not in repr(copied)


class Deleting(Stream):
    primary_key = "id"

    def stream_slices(self) -> list[dict[str, Any]]:
        return [{"of": "gone"}, {"of": "all"}]

    def read_records(self, stream_slice: Any = None, stream_state: Any = None) -> Iterator[dict[str, Any]]:
        yield {"id": 2, "_rfr_deleted": True}
        if stream_slice["of"] == "all":
            yield from ({"id": 1}, {"id": 3, "_rfr_deleted": False})


def test_records_that_are_marked_as_deleted_are_no_rows() -> None:
    layout = RowLayout.of(struct(("id", "long", True)))
    scan = StreamScan({"class": f"{__name__}:Deleting"}, "deleting", layout)
    gone, everything = scan.slices()
    assert pa.Table.from_batches(scan.batches(everything)).to_pylist() == [{"id": 1}, {"id": 3}]
    assert not sum(batch.num_rows for batch in scan.batches(gone))
    assert "id" in data_source._first_columns(as_paged(Deleting())).schema.fields


def test_an_error_is_shown_without_secrets_and_without_the_errors_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", CANARY)

    def fail(*arguments: Any) -> None:
        try:
            raise ValueError(f"key={CANARY}")
        except ValueError as error:
            raise OSError(f"GET /orders?key={CANARY} failed") from error

    monkeypatch.setattr(data_source, "load_stream", fail)
    with pytest.raises(SparkJobError) as caught:
        schema_of(options(secrets="{api_key: {env: SHOP_KEY}}"))
    assert str(caught.value) == "OSError: GET /orders?key=*** failed"
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_session_that_looks_for_data_sources_imports_one_module() -> None:
    """Spark imports all modules named ``pyspark_*`` in each session."""
    program = (
        "import sys, pyspark.sql.datasource\nbefore = set(sys.modules)\nimport pyspark_rfr\n"
        "print(sorted(set(sys.modules) - before), pyspark_rfr.DefaultSource.name())"
    )
    assert run(program) == "['pyspark_rfr'] rfr"


def test_spark_without_data_sources_in_python_is_one_sentence() -> None:
    program = (
        "import sys\n"
        "class Spark35:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pyspark.sql.datasource':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Spark35())\n"
        "try:\n    import pyspark_rfr\nexcept ImportError as error:\n    print(error, error.__suppress_context__)"
    )
    message = 'format("rfr") needs Spark 4.0 or newer: Spark 3.5 has no data sources in Python'
    assert run(program) == f"{message} True"
