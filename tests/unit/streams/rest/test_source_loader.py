"""Sources by class, file and definition."""

from __future__ import annotations

import json
import pickle

import pytest
from rest_api import ids

from airflow_provider_rfr.exceptions import ConfigurationError, SourceDefinitionError
from airflow_provider_rfr.streams import RestStream, loader
from airflow_provider_rfr.streams.core import Stream
from airflow_provider_rfr.streams.loader import inline_source, load_stream, load_streams
from airflow_provider_rfr.streams.rest.stream import build_stream
from tests.unit.messages import raises


class Plain(Stream):
    def read_records(self, stream_slice=None, stream_state=None):
        yield {"id": 1}


class Configured(Plain):
    name = "configured"

    def __init__(self, config):
        self.config = config


def several(**settings):
    return [Plain(), Configured(settings.get("config"))]


def twins():
    return [Plain(), Plain()]


class Halfway(Stream):
    pass


ready = Plain()
number = 7


def loaded(name, **source):
    return load_streams({"class": f"{__name__}:{name}", **source})


def test_a_class_is_instantiated_with_the_configuration_if_it_takes_one():
    assert list(loaded("Plain")) == ["plain"]
    stream = loaded("Configured", config={"a": 1, "b": 2}, secrets={"b": 3, "k": "s3cr3t"})["configured"]
    assert stream.config == {"a": 1, "b": 3, "k": "s3cr3t"}
    assert stream.fingerprint()["config"] == {"a": 1}


def test_a_function_may_give_several_streams():
    assert list(loaded("several", config={"x": 1})) == ["plain", "configured"]


def test_a_stream_that_is_there_already_is_taken_as_it_is():
    assert loaded("ready")["plain"] is ready


@pytest.mark.parametrize(
    "source",
    [
        {"class": f"{__name__}:Plan"},
        {"class": f"{__name__}:number"},
        {"class": f"{__name__}:twins"},
        {"class": f"{__name__}:Halfway"},
        {"class": f"{__name__}:pytest.MonkeyPatch"},
        {},
        {"class": "a:b", "file": "x"},
        {"definitions": {}},
        {"file": 5},
        {"definition": {}, "config": []},
        "x.yaml",
    ],
    ids=str,
)
def test_what_is_no_source_is_told(source):
    with raises(ConfigurationError):
        load_streams(source)


@pytest.mark.parametrize("path", ["nomodule.at.all:X", "noseparator", 5, "a:b:c", ":X"])
def test_an_import_path_that_leads_nowhere_is_told(path):
    with raises(ConfigurationError):
        load_streams({"class": path})


def test_one_stream_is_loaded_by_name_and_an_unknown_one_is_told():
    assert load_stream({"class": f"{__name__}:several"}, "plain").name == "plain"
    with raises(ConfigurationError):
        load_stream({"class": f"{__name__}:several"}, "plan")


DOCUMENT = """
base_url: {url}
streams:
  orders:
    primary_key: id
    json_schema_file: schemas/order.json
    request: {{path: /orders}}
    records: {{path: data}}
"""


@pytest.fixture
def file(tmp_path, api):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "order.json").write_text(json.dumps({"type": "object", "properties": {}}))
    path = tmp_path / "shop.yaml"
    path.write_text(DOCUMENT.format(url=api.url))
    return path


def test_a_file_is_read_with_the_schemas_beside_it(file, api):
    api.answers({"data": [{"id": 1}]})
    stream = load_stream({"file": str(file)}, "orders")
    assert isinstance(stream, RestStream)
    assert stream.json_schema == {"type": "object", "properties": {}}
    assert ids(stream.read_records()) == [1]


def test_an_inlined_source_needs_no_file(file):
    source = inline_source({"file": str(file), "config": {"a": 1}, "secrets": {"k": "x"}})
    before = load_stream({"file": str(file), "config": {"a": 1}}, "orders")
    (file.parent / "schemas" / "order.json").unlink()
    file.unlink()
    assert list(source) == ["definition", "config", "secrets"]
    shipped = json.loads(json.dumps(source))
    after = load_stream(shipped, "orders")
    assert after.json_schema == before.json_schema
    assert after.fingerprint() == before.fingerprint()


def test_inlining_checks_the_document_but_needs_no_configuration(file):
    file.write_text("base_url: 'https://{{ config.host }}'\nstreams: {a: {}}\n")
    inline_source({"file": str(file)})
    file.write_text("base_url: x\nstreams: {a: {b: 1}}\n")
    with raises(SourceDefinitionError):
        inline_source({"file": str(file)})


def test_a_file_is_read_once_until_it_or_its_schema_changes(file, monkeypatch):
    reads = []
    read = loader.read_document

    def counted(path):
        reads.append(path)
        return read(path)

    monkeypatch.setattr(loader, "read_document", counted)
    sources = [inline_source({"file": str(file)}) for _ in range(100)]
    assert reads == [str(file)]
    sources[0]["definition"]["streams"].clear()
    assert inline_source({"file": str(file)}) == sources[1], "what a caller changes is its own"
    schema = file.parent / "schemas" / "order.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}))
    changed = inline_source({"file": str(file)})["definition"]["streams"]["orders"]["json_schema"]
    assert changed["properties"] == {"id": {"type": "integer"}}
    file.unlink()
    with raises(SourceDefinitionError):
        inline_source({"file": str(file)})


def test_a_class_is_inlined_as_it_is():
    source = {"class": "a.b:C", "config": {"x": 1}}
    assert inline_source(source) == source


def test_a_schema_file_that_is_missing_or_wrong_is_told(file):
    schema = file.parent / "schemas" / "order.json"
    schema.write_text("[]")
    with raises(SourceDefinitionError):
        load_streams({"file": str(file)})
    schema.unlink()
    with raises(SourceDefinitionError):
        load_streams({"file": str(file)})


def test_a_stream_can_be_sent_to_another_process(file, api):
    api.answers({"data": [{"id": 1}]})
    stream = load_stream({"file": str(file)}, "orders")
    list(stream.read_records())
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.fingerprint() == stream.fingerprint()
    assert ids(copy.read_records()) == [1]


def test_a_stream_can_be_made_in_python_too(api):
    api.answers({"data": [{"id": 1}]})
    definition = {"base_url": api.url, "streams": {"a": {"records": {"path": "data"}}}}
    assert ids(build_stream(definition, "a").read_records()) == [1]
    with raises(ConfigurationError):
        build_stream(definition, "b")


@pytest.mark.parametrize("as_list", [False, True])
def test_executors_get_a_stream_and_its_parents_alone(as_list):
    partitions = {"type": "substream", "parent": "b", "parent_key": "id", "field": "b_id"}
    child = {"request": {"path": "/c"}, "partitions": partitions}
    streams = {name: {"request": {"path": f"/{name}"}} for name in "ab"} | {"c": child}
    listed = [{"name": name, **stream} for name, stream in streams.items()]
    definition = {"base_url": "http://127.0.0.1:1", "streams": listed if as_list else streams}
    source = load_stream({"definition": definition}, "c").source_for_executors({})
    assert list(load_streams(source)) == ["b", "c"]
    assert load_stream(source, "c").fingerprint() == load_stream({"definition": definition}, "c").fingerprint()
