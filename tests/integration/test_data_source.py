"""PySpark's data source ``rfr`` in a notebook: a Python with a Spark session of its own, which runs cell after cell.

The key of the API is a canary, which no plan, setting, event log or error may show.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import pyspark_rfr
from airflow_provider_rfr.exceptions import AuthenticationError
from airflow_provider_rfr.sample_api import SHOP, SampleApi, Sizes
from airflow_provider_rfr.streams.loader import load_stream
from tests.integration.conftest import PYTHON_PATH, ROOT, kill_group

CANARY = "canary-5b1f0c72d9"
SIZES = Sizes(records=600, customers=12, partitions=4, pages=5, page_records=20)
PAGE = 20
SESSION = """
import contextlib, io, json, sys, traceback
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
names = {"spark": spark, "__name__": "__main__"}
for line in sys.stdin:
    printed, error = io.StringIO(), None
    names["result"] = None
    with contextlib.redirect_stdout(printed):
        try:
            exec(json.loads(line), names)
        except Exception:
            error = traceback.format_exc()
    answer = {"result": names["result"], "printed": printed.getvalue(), "error": error}
    print("answer", json.dumps(answer, default=str), flush=True)
"""
READ = """
def read(stream, secrets='{api_key: {env: SHOP_KEY}}', **options):
    options = {"source": SOURCE, "stream": stream, "config": json.dumps(CONFIG), "secrets": secrets, **options}
    return spark.read.format("rfr").options(**options)
"""


class CellError(Exception):
    """The traceback of a cell."""


class Notebook:
    """A Spark session in a process of its own.

    :ivar events: folder of its event log
    """

    def __init__(self, folder: Path) -> None:
        self.events = folder / "events"
        self.events.mkdir()
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.events.as_uri(),
        }
        environment = {"PYSPARK_PYTHON": sys.executable, "TZ": "UTC", "SHOP_KEY": CANARY, "WRONG_KEY": CANARY[::-1]}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SESSION, json.dumps(settings)],
            cwd=folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **PYTHON_PATH, **environment},
        )

    def run(self, cell: str) -> tuple[Any, str]:
        """Run a cell; return its ``result``, and what it printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("answer "):
                answer = json.loads(line.removeprefix("answer "))
                if answer["error"]:
                    raise CellError(answer["error"])
                return answer["result"], answer["printed"]
        raise AssertionError("the notebook ended")

    def result(self, expression: str) -> Any:
        return self.run(f"result = {expression}")[0]

    def error(self, expression: str) -> str:
        with pytest.raises(CellError) as raised:
            self.run(expression)
        text = str(raised.value)
        assert CANARY not in text
        assert CANARY[::-1] not in text
        return text


@pytest.fixture(scope="module")
def api() -> Iterator[SampleApi]:
    with SampleApi(SIZES, api_key=CANARY) as running:
        yield running


@pytest.fixture(scope="module")
def notebook(api: SampleApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("notebook")
    shutil.copy(SHOP, folder / "shop.yaml")
    started = Notebook(folder)
    config = {"base_url": api.base_url, "page_size": PAGE, "partitions": SIZES.partitions}
    started.run(f"import json\nSOURCE, CONFIG = {str(SHOP)!r}, {config!r}\n{READ}")
    yield started
    kill_group(started.process)


def options_of(api: SampleApi, stream: str, **config: Any) -> dict[str, str]:
    config = {"base_url": api.base_url, "page_size": PAGE, **config}
    secrets = '{"api_key": {"env": "SHOP_KEY"}}'
    return {"source": str(SHOP), "stream": stream, "config": json.dumps(config), "secrets": secrets}


def records_of(api: SampleApi, name: str) -> list[dict[str, Any]]:
    """The records of a stream as the product reads them, by id."""
    config = {"base_url": api.base_url, "page_size": PAGE, "partitions": SIZES.partitions}
    stream = load_stream({"file": SHOP, "config": config, "secrets": {"api_key": CANARY}}, name)
    read = [dict(record) for part in stream.stream_slices() for record in stream.read_records(part)]
    return sorted(read, key=lambda record: record["id"])


def as_json(notebook: Notebook, frame: str) -> list[dict[str, Any]]:
    """The rows of a DataFrame, by id, with instants as the API writes them."""
    return notebook.result(
        f"[row.asDict(recursive=True) | {{name: value.strftime('%Y-%m-%dT%H:%M:%SZ')"
        " for name, value in row.asDict().items() if hasattr(value, 'strftime')}"
        f" for row in {frame}.orderBy('id').collect()]"
    )


@pytest.mark.gate
@pytest.mark.parametrize(
    ("stream", "partitions"),
    [("customers", 1), ("customer_orders", SIZES.customers), ("orders", 1), ("items", SIZES.partitions)],
)
def test_a_dataframe_has_the_records_of_the_api_and_the_partitions_of_the_stream(
    notebook: Notebook, api: SampleApi, stream: str, partitions: int
) -> None:
    records = records_of(api, stream)
    assert len(records) >= SIZES.customers
    notebook.run(f"frame = read({stream!r}).load()")
    assert as_json(notebook, "frame") == records
    assert notebook.result("frame.rdd.getNumPartitions()") == partitions


def test_each_page_is_requested_once_by_an_action_and_none_by_a_load_with_declared_columns(
    notebook: Notebook, api: SampleApi
) -> None:
    since = api.counts()["last_sequence"]
    notebook.run("frame = read('items').load()")
    assert api.counts(since=since)["requests"] == 0
    assert notebook.result("frame.count()") == SIZES.partitions * SIZES.pages * PAGE
    counts = api.counts(since=since)
    assert (counts["requests"], counts["refetched"]) == (SIZES.partitions * SIZES.pages, 0)


def test_columns_without_a_declaration_are_inferred_from_the_first_page(notebook: Notebook, api: SampleApi) -> None:
    since = api.counts()["last_sequence"]
    notebook.run("frame = read('invoices').load()")
    assert api.counts(since=since)["requests"] == 1
    kinds = dict(notebook.result("frame.dtypes"))
    assert (kinds["id"], kinds["amount"], kinds["placed_at"]) == ("bigint", "double", "string")
    assert kinds["ship_to"] == "struct<city:string,zip:string,express:boolean>"
    rows = as_json(notebook, "frame")
    seen = {
        name for record in records_of(api, "invoices")[:PAGE] for name, value in record.items() if value is not None
    }
    assert rows == [
        {name: value for name, value in record.items() if name in seen} for record in records_of(api, "invoices")
    ]


def test_types_that_the_source_gives_hold_and_json_texts_survive_a_schema_that_is_given_back(
    notebook: Notebook, api: SampleApi, tmp_path: Path
) -> None:
    document = yaml.safe_load(SHOP.read_text())
    document["streams"] = {"invoices": document["streams"]["invoices"]}
    kinds = {"amount": "decimal(12, 2)", "placed_at": "timestamp", "ship_to": "json", "due_on": "date", "later": "date"}
    document["streams"]["invoices"]["columns"] = kinds
    (tmp_path / "typed.yaml").write_text(yaml.safe_dump(document))
    notebook.run(f"typed = read('invoices', source={str(tmp_path / 'typed.yaml')!r}).load()")
    types = dict(notebook.result("typed.dtypes"))
    expected = {"amount": "decimal(12,2)", "placed_at": "timestamp", "ship_to": "string", "due_on": "date"}
    assert {name: types[name] for name in kinds} == {**expected, "later": "date"}
    again = notebook.result("[row.ship_to for row in read('invoices').schema(typed.schema).load().collect()]")
    assert [json.loads(text) for text in again] == [record["ship_to"] for record in records_of(api, "invoices")]


def test_a_given_schema_wins_and_values_that_do_not_fit_it_are_named(notebook: Notebook) -> None:
    narrow = (
        "id INT NOT NULL, amount DECIMAL(12,2), ship_to STRUCT<city: STRING>, placed_at TIMESTAMP_NTZ, quantity FLOAT"
    )
    notebook.run(f"frame = read('orders').schema({narrow!r}).load()")
    assert dict(notebook.result("frame.dtypes"))["id"] == "int"
    assert notebook.result("frame.where('amount > 0 AND ship_to.city IS NOT NULL').count()") == SIZES.records
    for schema, sentence in [
        ("id BIGINT, reference BIGINT", r'orders, page 1: record 1: reference is the string "ORD-'),
        ("id TINYINT", r"orders, page 7: id: Integer value 128 not in range"),
        ("id INT, coupon STRING NOT NULL", "coupon is null in a record, and NOT NULL in the schema"),
        ("id INT, tags MAP<STRING, STRING>", "schema.tags: records can't be read into map<string,string>"),
    ]:
        assert re.search(sentence, notebook.error(f"read('orders').schema({schema!r}).load().collect()"))


def test_a_manifest_of_airbyte_is_read_like_a_definition(notebook: Notebook, tmp_path: Path) -> None:
    pytest.importorskip("airbyte_cdk")
    retriever = {
        "type": "SimpleRetriever",
        "requester": {
            "type": "HttpRequester",
            "url_base": "{{ config['base_url'] }}",
            "path": "/orders",
            "authenticator": {
                "type": "ApiKeyAuthenticator",
                "api_token": "{{ config['api_key'] }}",
                "inject_into": {"type": "RequestOption", "inject_into": "header", "field_name": "X-Api-Key"},
            },
        },
        "record_selector": {"type": "RecordSelector", "extractor": {"type": "DpathExtractor", "field_path": ["data"]}},
        "paginator": {
            "type": "DefaultPaginator",
            "page_token_option": {"type": "RequestOption", "inject_into": "request_parameter", "field_name": "offset"},
            "page_size_option": {"type": "RequestOption", "inject_into": "request_parameter", "field_name": "limit"},
            "pagination_strategy": {"type": "OffsetIncrement", "page_size": 100},
        },
    }
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}}}
    stream = {
        "type": "DeclarativeStream",
        "name": "orders",
        "primary_key": ["id"],
        "schema_loader": {"type": "InlineSchemaLoader", "schema": schema},
        "retriever": retriever,
    }
    fields = {"base_url": {"type": "string"}, "api_key": {"type": "string", "airbyte_secret": True}}
    spec = {"type": "Spec", "connection_specification": {"type": "object", "properties": fields}}
    head = {
        "version": "7.0.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["orders"]},
    }
    (tmp_path / "manifest.yaml").write_text(
        yaml.safe_dump({**head, "streams": [stream], "spec": spec}, sort_keys=False)
    )
    path = str(tmp_path / "manifest.yaml")
    config = "config=json.dumps({'base_url': CONFIG['base_url']})"
    notebook.run(f"frame = read('orders', source={path!r}, {config}).load()")
    assert notebook.result("frame.dtypes") == [["id", "bigint"], ["amount", "double"]]
    assert notebook.result("[frame.count(), frame.agg({'id': 'max'}).first()[0]]") == [SIZES.records, SIZES.records]


def test_mistakes_are_named_with_the_nearest_name(notebook: Notebook, tmp_path: Path) -> None:
    assert "no stream 'ordrs'; did you mean orders?" in notebook.error("read('ordrs').load()")
    assert "option confg: unknown; did you mean config?" in notebook.error("read('orders', confg='{}').load()")
    (tmp_path / "broken.yaml").write_text("streams:\n  orders: [\n")
    assert "broken.yaml: line 3" in notebook.error(f"read('orders', source={str(tmp_path / 'broken.yaml')!r}).load()")


def test_a_wrong_key_is_an_error_without_the_key(notebook: Notebook) -> None:
    for cell in (
        "read('invoices', secrets='{api_key: {env: WRONG_KEY}}').load()",
        "read('orders', secrets='{api_key: {env: WRONG_KEY}}').load().collect()",
        "read('customer_orders', secrets='{api_key: {env: WRONG_KEY}}').load().collect()",
    ):
        text = notebook.error(cell)
        assert AuthenticationError.__name__ in text
        assert "401" in text


def test_the_key_is_in_no_plan_setting_or_event(notebook: Notebook) -> None:
    notebook.run("frame = read('items').load().where('price > 1').limit(5)\nframe.collect()")
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        _, plan = notebook.run(f"frame.explain(mode={mode!r})")
        assert "rfr" in plan
        assert CANARY not in plan
    settings = notebook.result("[str(spark.sparkContext.getConf().getAll()), spark.sql('SET -v').collect()]")
    assert "spark.eventLog.dir" in str(settings)
    assert CANARY not in str(settings)
    events = "".join(path.read_text() for path in notebook.events.rglob("*") if path.is_file())
    assert "BatchScan rfr" in events
    assert CANARY not in events


def test_a_limit_stops_the_reading_early(notebook: Notebook) -> None:
    """Not at once: Spark takes rows in blocks of 64 KB, which here are dozens of pages."""
    with SampleApi(Sizes(records=1000 * PAGE), latency_ms=20, api_key=CANARY) as long:
        notebook.run(f"frame = read('orders', config=json.dumps({{**CONFIG, 'base_url': {long.base_url!r}}})).load()")
        assert len(notebook.result("frame.limit(3).collect()")) == 3
        assert 1 <= long.counts()["pages"] < 500


def test_a_closed_reader_requests_no_further_page(api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", CANARY)
    source = pyspark_rfr.DefaultSource(options_of(api, "invoices"))
    reader = source.reader(source.schema())
    [partition] = reader.partitions()
    since = api.counts()["last_sequence"]
    batches = reader.read(partition)
    assert api.counts(since=since)["requests"] == 0
    assert next(batches).num_rows == PAGE
    batches.close()
    assert api.counts(since=since)["requests"] == 1
    assert list(batches) == []


def test_a_stream_without_partitions_has_no_rows(notebook: Notebook) -> None:
    assert notebook.result("read('items', config=json.dumps({**CONFIG, 'partitions': 0})).load().count()") == 0


def test_it_can_be_registered_by_hand_too(notebook: Notebook) -> None:
    # By another name, because Spark 4.0 registers none that it found by itself.
    notebook.run(
        "from pyspark_rfr import DefaultSource\nclass ByHand(DefaultSource):\n    @classmethod\n"
        "    def name(cls):\n        return 'by_hand'\nspark.dataSource.register(ByHand)"
    )
    assert notebook.result("read('customers').format('by_hand').load().count()") == SIZES.customers


def test_the_cells_of_the_documentation_run(notebook: Notebook, api: SampleApi) -> None:
    cells = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "notebooks.md").read_text(), re.DOTALL)
    assert len(cells) >= 2
    for cell in cells:
        # Spark 4.0 registers nothing that it found by itself.
        if "dataSource.register" not in cell or notebook.result("spark.version") >= "4.1":
            notebook.run(cell.replace("http://127.0.0.1:8091", api.base_url))
