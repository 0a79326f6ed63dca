"""Wrong documents fail with file, path, value and what is allowed."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.documents import read_yaml
from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.loader import inline_source, load_streams
from tests.unit.messages import raises
from tests.webhook_receiver import write_certificates


def document(stream=None, **source):
    return {"base_url": "https://api.example.com", "streams": {"orders": stream or {}}, **source}


def of_stream(fields, path):
    """A mistake in a stream, whose fields are written as in the document."""
    return pytest.param(document(read_yaml(f"{{{fields}}}".encode())), f"streams.orders.{path}".rstrip("."), id=fields)


def of_source(fields, path):
    return pytest.param(document(**read_yaml(f"{{{fields}}}".encode())), path, id=fields)


def refused(definition, **source):
    with pytest.raises(SourceDefinitionError) as error:
        load_streams({"definition": definition, **source})
    return error.value


def test_a_bundle_of_certificates_that_is_none_is_refused_at_once(tmp_path):
    (tmp_path / "empty.pem").write_text("no certificate\n")
    for name, problem in (("missing.pem", "can't be read: No such file"), ("empty.pem", "has no certificates in PEM")):
        error = refused(document(verify=str(tmp_path / name)))
        assert (error.field, error.exit_code) == ("verify", 2)
        assert problem in error.problem and name in error.problem
        assert error.remedy == "name a file or folder of certificates in PEM"
    write_certificates(tmp_path)
    for path in ("ca.pem", "."):
        load_streams({"definition": document(verify=str(tmp_path / path))})


@pytest.mark.parametrize(
    ("definition", "path"),
    [
        of_source("base_ulr: x", "base_ulr"),
        pytest.param({"streams": {"a": {}}}, "base_url", id="no base_url"),
        of_stream("requests: {}", "requests"),
        of_stream("paginator: {type: page_number, pagesize: 5}", "paginator.pagesize"),
        of_stream("paginator: {type: page_numbers}", "paginator.type"),
        of_stream("columns: {created_at: datetime}", "columns.created_at"),
        of_stream("columns: {amount: 'decimal(10'}", "columns.amount"),
        of_stream("columns: {a: 'decimal(40, 2)'}", "columns.a"),
        of_stream("columns: {}", "columns"),
        of_stream("additional_fields: keep", ""),
        of_stream("paginator: {}", "paginator.type"),
        of_stream("request: {method: DELETE}", "request.method"),
        of_stream("request: {path: 5}", "request.path"),
        of_stream("paginator: {type: offset, page_size: true}", "paginator.page_size"),
        of_stream("request: {query: {a: {b: 1}}}", "request.query"),
        of_stream("request: {json: {}, form: {}}", "request"),
        of_stream(
            "partitions: {type: product, of: [{type: list, feld: x, field: x, values: []}]}", "partitions.of.0.feld"
        ),
        of_stream("error_handler: {rules: [{status: 404, action: SKIP}]}", "error_handler.rules.0.action"),
        of_stream("error_handler: {rules: [{action: FAIL}]}", "error_handler.rules.0"),
        of_stream("error_handler: {rules: [{status: 40, action: FAIL}]}", "error_handler.rules.0.status"),
        of_stream("error_handler: {max_time: -1}", "error_handler.max_time"),
        of_stream("paginator: {type: page_number, stop: total}", "paginator"),
        of_stream("paginator: {type: page_number, stop: short}", "paginator"),
        of_stream("paginator: {type: cursor, cursor: {path: a, header: b}}", "paginator.cursor"),
        of_stream("paginator: {type: offset, send_as: {query: a, json: b}}", "paginator.send_as"),
        of_stream("paginator: {type: cursor, cursor: next_cursor}", "paginator.cursor"),
        of_stream("paginator: {type: offset, send_as: skip}", "paginator.send_as"),
        of_stream("paginator: {type: offset, send_as: null}", "paginator.send_as"),
        of_stream("paginator: {type: offset, send_as: {query: ''}}", "paginator.send_as.query"),
        of_stream("paginator: {type: offset, send_as: {json: ''}}", "paginator.send_as.json"),
        of_stream("paginator: {type: offset, send_as: {form: ''}}", "paginator.send_as.form"),
        of_stream("paginator: {type: offset, send_as: {header: ''}}", "paginator.send_as.header"),
        of_stream('paginator: {type: offset, send_as: {header: "a\\nb"}}', "paginator.send_as.header"),
        of_stream("paginator: {type: offset, page_size: 5, size_as: {header: a b}}", "paginator.size_as.header"),
        of_stream("request: {form: {a: b}}, paginator: {type: offset, send_as: {json: at}}", "request"),
        of_stream("request: {json: [1]}, paginator: {type: offset, send_as: {json: at}}", "request"),
        of_stream("paginator: {type: offset, send_as: {json: at}, page_size: 5, size_as: {form: n}}", "request"),
        of_stream("request: {headers: {a b: x}}", "request.headers"),
        of_stream("request: {path: null}", "request.path"),
        of_stream("incremental: []", "incremental"),
        of_stream("incremental: 5", "incremental"),
        of_stream("incremental: updated_at", "incremental"),
        of_stream("paginator: cursor", "paginator"),
        of_stream("records: data", "records"),
        of_stream("transformations: [{type: add, field: x}]", "transformations.0.fields"),
        of_source("authenticator: {type: bearer}", "authenticator.token"),
        of_source("authenticator: {type: barer}", "authenticator.type"),
        of_source("authenticator: {type: api_key, value: k, send_as: {header: a b}}", "authenticator.send_as.header"),
        of_source("base_url: api.example.com", "base_url"),
        of_source("base_url: 'https://u:p@api.example.com'", "base_url"),
        of_source("base_url: 'https://{{ config.host }}'", "base_url"),
        of_source("streams: {}", "streams"),
        of_source("streams: {a b: {}}", "streams"),
        of_source("streams: [{name: a}, {name: a}]", "streams"),
        of_source("streams: [{}]", "streams"),
        of_source("secrets: [key]", "secrets"),
        of_stream("json_schema: {}, json_schema_file: x", ""),
        of_stream("records: {filter: 'record.x >'}", "records.filter"),
        of_stream("request: {path: '/{{ record.id }}'}", "request.path"),
        of_source("version: 2", "version"),
        pytest.param("text", "document", id="text"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(definition, path):
    with raises(SourceDefinitionError) as error:
        load_streams({"definition": definition})
    assert error.value.field == path


@pytest.mark.parametrize("mistaken", [{"base_url": "{{ config.a.b }}"}, {"proxy": "{{ config.a.b }}"}])
def test_a_value_that_is_missing_in_the_configuration_is_an_error_of_the_kind_that_no_retry_helps(mistaken):
    error = refused(document(**mistaken), config={"a": {}})
    # A driver's last line names the class, and the operator knows those in ``exceptions`` alone.
    assert type(error) is SourceDefinitionError
    assert (error.field, error.problem) == (*mistaken, "'dict object' has no attribute 'b'")


def test_all_mistakes_are_told_at_once():
    error = refused(document({"paginater": {}, "request": {"pth": "/x"}}, autenticator={}))
    for path in ("streams.orders.paginater", "streams.orders.request.pth", "autenticator"):
        assert path in str(error)


def test_the_file_is_named(tmp_path):
    file = tmp_path / "shop.yaml"
    file.write_text("base_url: https://api.example.com\nstreams:\n  orders:\n    paginator: {type: page}\n")
    with pytest.raises(SourceDefinitionError) as error:
        load_streams({"file": str(file)})
    assert str(error.value).startswith(f"{file}: streams.orders.paginator.type: 'page' is unknown")
    file.write_text("base_url: https://api.example.com\nstreams: {orders: {request: {path: '/{{ config.x }}'}}}\n")
    with pytest.raises(SourceDefinitionError) as error:
        load_streams({"file": str(file)})
    assert (error.value.place, error.value.field) == (str(file), "streams.orders.request.path")


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a: [1", "line 1, column 6", "expected ',' or ']'"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1", "duplicate key 'a'"),
        ("- 1\n", "document", "must be a mapping, is list"),
        ("", "document", "is NoneType"),
        ("a: !!python/object/apply:os.system [true]", "line 1", "tags are not read"),
    ],
)
def test_yaml_that_can_t_be_read_is_told_with_line_and_column(tmp_path, text, place, problem):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(SourceDefinitionError) as error:
        load_streams({"file": str(file)})
    assert error.value.field.startswith(place)
    assert problem in str(error.value)


def test_a_file_that_is_not_there_is_told():
    with raises(SourceDefinitionError):
        load_streams({"file": "/nowhere/x.yaml"})


@pytest.mark.parametrize(
    ("definition", "path"),
    [
        of_source("base_url: 'https://{{ stream_slice.host }}'", "base_url"),
        of_source("proxy: '{{ wrong.x }}'", "proxy"),
        of_source("authenticator: {type: bearer, token: '{{ token }}'}", "authenticator.token"),
        of_source("defaults: {request: {query: {a: '{{ wrong.x }}'}}}", "defaults.request.query.a"),
        of_source("defaults: {request: {headers: {A: '{{ wrong.x }}'}}}", "defaults.request.headers.A"),
        of_source("defaults: {records: {filter: response.x}}", "defaults.records.filter"),
        of_stream("base_url: '{{ wrong.x }}'", "base_url"),
        of_stream("authenticator: {type: basic, username: '{{ wrong.x }}'}", "authenticator.username"),
        of_stream(
            "authenticator: {type: session_token, token: {path: t}, send_as: {header: T},"
            " login: {url: /login, json: {user: ['{{ token }}']}}}",
            "authenticator.login.json.user.0",
        ),
        of_stream("request: {path: '/{{ record.id }}'}", "request.path"),
        of_stream("request: {query: {parent: '{{ partition.parent }}'}}", "request.query.parent"),
        of_stream("request: {headers: {A: '{{ wrong.x }}'}}", "request.headers.A"),
        of_stream("request: {json: {a: {b: '{{ wrong.x }}'}}}", "request.json.a.b"),
        of_stream("request: {form: {a: ['{{ wrong.x }}']}}", "request.form.a.0"),
        of_stream("records: {filter: response.x}", "records.filter"),
        of_stream("paginator: {type: offset, page_size: '{{ wrong.x }}'}", "paginator.page_size"),
        of_stream("paginator: {type: next_url, url: {path: n}, stop_when: record.x}", "paginator.stop_when"),
        of_stream("paginator: {type: cursor, cursor: {expression: lastrecord.id}}", "paginator.cursor.expression"),
        of_stream(
            "error_handler: {rules: [{predicate: last_record.x, action: FAIL}]}", "error_handler.rules.0.predicate"
        ),
        of_stream(
            "partitions: {type: product, of: [{type: list, field: a, values: '{{ wrong.x }}'}]}",
            "partitions.of.0.values",
        ),
        of_stream("transformations: [{type: add, fields: {a.b: '{{ wrong.x }}'}}]", "transformations.0.fields.a.b"),
    ],
)
def test_a_wrong_name_in_a_template_is_found_without_the_configuration(definition, path):
    with raises(SourceDefinitionError) as error:
        inline_source({"definition": definition})
    assert error.value.field == path


def test_all_wrong_templates_are_named_at_once():
    definition = document({"request": {"path": "/{{ a }}", "query": {"b": "{{ b", "c": "{{ config.c }}"}}})
    with raises(SourceDefinitionError):
        inline_source({"definition": definition})


def test_yaml_has_no_surprises(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(
        "x-shared: &q {since: 2026-01-01, country: no, on: yes}\n"
        "base_url: https://api.example.com\n"
        "streams: {a: {request: {query: {<<: *q, really: true}}}}\n"
    )
    source = inline_source({"file": str(file)})
    query = source["definition"]["streams"]["a"]["request"]["query"]
    assert query == {"since": "2026-01-01", "country": "no", "on": "yes", "really": True}
    assert load_streams(source)["a"].fingerprint()["definition"]["request"]["query"] == query


def test_streams_may_be_a_list():
    streams = load_streams({"definition": document(streams=[{"name": "a"}, {"name": "b", "primary_key": "id"}])})
    assert {name: stream.primary_key for name, stream in streams.items()} == {"a": None, "b": "id"}


def test_defaults_hold_for_streams_that_say_nothing_else(api):
    definition = {
        "base_url": api.url,
        "defaults": {
            "request": {"query": {"a": 1, "b": 2}, "headers": {"X-A": "1"}},
            "records": {"path": "data"},
            "paginator": {"type": "page_number", "start": 5},
        },
        "streams": {"x": {"request": {"path": "/x", "query": {"b": 3}}}, "y": {"paginator": {"type": "none"}}},
    }
    streams = load_streams({"definition": definition})
    streams["x"].read_page({}, None)
    streams["y"].read_page({}, None)
    assert api.paths == ["/x?a=1&b=3&page=5", "/?a=1&b=2"]
    assert api.asked[1].headers["X-A"] == "1"


class TestFingerprints:
    BASE = {
        "request": {"path": "/x"},
        "paginator": {"type": "page_number", "page_size": 5},
        "records": {"path": "data"},
    }

    def of(self, stream=None, config=None, secrets=None, secret_names=()):
        definition = document({**self.BASE, **(stream or {})}, secrets=list(secret_names))
        source = {"definition": definition, "config": config or {}, "secrets": secrets or {}}
        return load_streams(source)["orders"].fingerprint()

    @pytest.mark.parametrize(
        ("stream", "is_same"),
        [
            ({"primary_key": "id"}, True),
            ({"json_schema": {"type": "object"}}, True),
            ({"error_handler": {"max_retries": 9}}, True),
            ({"timeouts": {"read": 5}}, True),
            ({"authenticator": {"type": "bearer", "token": "x"}}, True),
            ({"request": {"path": "/y"}}, False),
            ({"paginator": {"type": "page_number", "page_size": 6}}, False),
            ({"records": {"path": "items"}}, False),
            ({"transformations": [{"type": "remove", "fields": ["x"]}]}, False),
            ({"partitions": {"type": "list", "field": "a", "values": [1]}}, False),
        ],
    )
    def test_what_changes_requests_or_records_alone_changes_the_fingerprint(self, stream, is_same):
        assert (self.of(stream) == self.of()) is is_same

    def test_configuration_counts_and_secrets_don_t(self):
        assert self.of(config={"a": 1}) != self.of(config={"a": 2})
        assert self.of(secrets={"k": "1"}) == self.of(secrets={"k": "2"})
        assert self.of(config={"k": "1"}, secret_names=["k"]) == self.of(config={"k": "2"}, secret_names=["k"])


def test_types_by_name_reach_the_stream_and_are_no_part_of_what_is_read():
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    types = {"columns": {"created_at": "timestamp"}, "additional_fields": "keep"}
    plain, typed = (
        load_streams({"definition": document({"json_schema": schema, **more})})["orders"] for more in ({}, types)
    )
    assert (typed.columns, typed.additional_fields) == ({"created_at": "timestamp"}, "keep")
    assert (plain.columns, plain.additional_fields) == (None, "drop")
    assert typed.fingerprint() == plain.fingerprint()
