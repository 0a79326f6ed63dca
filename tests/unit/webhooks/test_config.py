"""The triggers block: what is accepted, what is refused and in which words, and the way back to the document."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from airflow_provider_rfr.exceptions import TriggerConfigError
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
from airflow_provider_rfr.webhooks.block import (
    Endpoint,
    OnFailure,
    Ordering,
    Schedule,
    TriggerBlock,
    load_document,
    parse_triggers,
)
from tests.unit.messages import check_messages, raises

URL = "https://hooks.example/t0ken-in-path?key=s3cr3t"
MINIMAL = {"url": URL, "payloadTemplate": "{}"}
KEY = "whsec_" + base64.b64encode(b"k" * 24).decode()
SEALED = "ENC[AES256_GCM,data:aaaa,iv:bbbb,tag:cccc,type:str]"
SECRETS = ("s3cr3t", "t0ken", "hunter2", KEY, KEY.removeprefix("whsec_"))


def endpoint(**fields: Any) -> Endpoint:
    return parse_triggers({"config": {"X": {**MINIMAL, **fields}}}).endpoints[0]


def load_triggers(path: Path) -> TriggerBlock:
    return parse_triggers(load_document(path), where=str(path))


def refused(document: Any) -> list[str]:
    with pytest.raises(TriggerConfigError) as caught:
        parse_triggers(document)
    text = str(caught.value)
    assert not [secret for secret in SECRETS if secret in text]
    assert not caught.value.__suppress_context__ or caught.value.__cause__ is None
    return text.splitlines()


def refused_field(**fields: Any) -> list[str]:
    return refused({"config": {"X": {**MINIMAL, **fields}}})


def event(*bindings: Binding) -> CommitEvent:
    names = tuple(item.collection for item in bindings if item.documents)
    fields = {"commit_id": "c", "target": "t", "lake": "l", "target_name": "m", "run_id": "r"}
    return CommitEvent(**fields, bindings=bindings, collection_names=names)


def test_the_least_that_is_needed_has_the_documented_defaults() -> None:
    trigger = endpoint()
    assert (trigger.method, trigger.timeout, trigger.attempts, trigger.headers) == ("POST", 30.0, 3, {})
    assert (trigger.retry.schedule, trigger.interval, trigger.when.min_documents) == (Schedule.QUICK, 0.0, 1)
    assert (trigger.on_failure, trigger.ordering, trigger.enabled) == (OnFailure.DEAD_LETTER, Ordering.NONE, True)
    assert trigger.accepts(204, b"") and not trigger.accepts(500, b"")


def test_a_document_comes_back_as_it_was_written_with_its_method() -> None:
    written = {**MINIMAL, "timeout": "45s", "maxAttempts": 5}
    document = {"interval": "30m", "config": {"onCommit": {**written, "headers": {"Authorization": "Bearer secret"}}}}
    expected = copy.deepcopy(document)
    expected["config"]["onCommit"]["method"] = "POST"
    assert parse_triggers(document).dump() == expected
    assert endpoint(headers={}).dump() == {**MINIMAL, "method": "POST"}


def test_everything_that_can_be_written_comes_back() -> None:
    written = {
        "connection": "http_default",
        "method": "PUT",
        "headers": {"X-A": "b"},
        "exposeHeaders": ["X-A"],
        "payload": {"a": ["{{x}}", None, 1, True, 1.5]},
        "timeoutSecs": 12,
        "maxRetries": 4,
        "retry": {"schedule": "standard", "maxElapsed": "90m"},
        "interval": "60s",
        "when": {"collections": ["acme/*"], "minDocuments": 0},
        "onFailure": "block",
        "success": {"status": ["2xx", 409], "pointer": "/a", "equals": None},
        "signing": {"secrets": [KEY]},
        "ordering": "strict",
        "enabled": False,
        "allowedHosts": ["10.0.0.0/8", "localhost", "::1", "airflow.internal:8080", "10.1.2.3:80", "[::1]:80"],
    }
    block = parse_triggers({"config": {"a": written}})
    assert block.dump() == {"config": {"a": written}}
    assert json.loads(json.dumps(block.dump())) == block.dump()
    assert parse_triggers(block.dump()) == block


def test_a_list_stays_a_list_and_is_named_by_its_order() -> None:
    block = parse_triggers({"config": [{**MINIMAL, "method": "POST"}, {**MINIMAL, "method": "PUT"}]})
    assert [item.name for item in block.endpoints] == ["trigger0", "trigger1"] == list(block.config)
    assert block.dump() == {"config": [{**MINIMAL, "method": "POST"}, {**MINIMAL, "method": "PUT"}]}
    assert parse_triggers([MINIMAL]).config["trigger0"].name == "trigger0"


def test_snake_case_is_read_and_camel_case_is_written() -> None:
    trigger = endpoint(max_attempts=7, on_failure="ignore", retry={"max_elapsed": "1h"}, expose_headers=[])
    assert (trigger.max_attempts, trigger.on_failure, trigger.retry.max_elapsed) == (7, OnFailure.IGNORE, 3600.0)
    assert {"maxAttempts", "onFailure", "retry", "exposeHeaders"} < set(trigger.dump())
    check_messages(refused_field(maxAttempts=1, max_attempts=2))


def test_the_names_of_the_design_document_are_read() -> None:
    trigger = endpoint(timeoutSecs=5, maxRetries=4)
    assert (trigger.timeout, trigger.max_attempts, trigger.attempts) == (5.0, 5, 5)
    check_messages(refused_field(timeout_secs=6))
    check_messages(refused_field(timeoutSecs=5, timeout="5s", maxRetries=1, maxAttempts=1))


def test_attempts_follow_from_the_schedule_and_are_never_none() -> None:
    trigger = endpoint(maxAttempts=0)
    assert (trigger.max_attempts, trigger.attempts) == (0, 1)
    assert endpoint(retry={"schedule": "standard"}).attempts == 10
    assert endpoint(retry={"schedule": "standard"}, maxAttempts=4).attempts == 4


def test_an_endpoint_without_an_interval_has_the_block_s() -> None:
    block = parse_triggers({"interval": "30m", "config": {"a": MINIMAL, "b": {**MINIMAL, "interval": "0s"}}})
    assert [item.interval for item in block.endpoints] == [1800.0, 0.0]
    assert "interval" not in block.dump()["config"]["a"]


@pytest.mark.parametrize(
    ("field", "near"), [("payload_templat", "payloadTemplate"), ("URL", "url"), ("retries", "maxRetries")]
)
def test_an_unknown_field_is_refused_with_the_nearest_name(field: str, near: str) -> None:
    (line,) = refused_field(**{field: "x"})
    assert line.startswith(f"trigger X: {field}: unknown field; did you mean {near}")


def test_an_unknown_field_of_the_block_or_of_a_part_is_refused_too() -> None:
    lines = refused({"config": {"X": {**MINIMAL, "when": {"minDocument": 1}}}, "intervall": "1s"})
    assert sorted(lines) == [
        "trigger X: when.minDocument: unknown field; did you mean minDocuments? allowed: collections, minDocuments",
        "triggers: intervall: unknown field; did you mean interval? allowed: config, interval, name, sops",
    ]


@pytest.mark.parametrize("value", [5, None, ["x"], b"x"])
def test_a_header_value_is_text(value: Any) -> None:
    (line,) = refused_field(headers={"X-A": value})
    assert line.startswith("trigger X: headers.X-A: ")


@pytest.mark.parametrize("text", ["45", "1.5h", "-3s", "10 parsecs", "", "1 s", "1S", "٣s", "1s\n", 45])
@pytest.mark.parametrize("field", ["timeout", "interval"])
def test_a_duration_is_a_whole_number_and_a_unit(field: str, text: Any) -> None:
    (line,) = refused_field(**{field: text})
    assert line.startswith(f"trigger X: {field}: ")


def test_no_interval_is_none_and_a_timeout_there_always_is() -> None:
    assert endpoint(interval=None).interval == 0
    assert len(refused_field(timeout=None)) == 1


def test_a_number_without_its_unit_is_told_what_to_write() -> None:
    check_messages(refused_field(timeout=45))


@pytest.mark.parametrize("value", [1.5, "5", True, -1, 301])
def test_seconds_as_a_number_are_whole_and_within_bounds(value: Any) -> None:
    assert len(refused_field(timeoutSecs=value)) == 1


def test_no_time_at_all_is_refused() -> None:
    message = "trigger X: timeout must be greater than 0; write 1s to 300s"
    assert refused_field(timeout="0s") == refused_field(timeout="0h") == refused_field(timeoutSecs=0) == [message]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("timeout", "301s", "timeout must be at most 300s"),
        ("maxAttempts", 101, "maxAttempts: must be at most 100"),
        ("maxAttempts", -1, "maxAttempts: must be at least 0"),
        ("maxAttempts", "3", "maxAttempts: must be a whole number"),
        ("interval", "31d", "interval: must be from 0s to 30d"),
        ("retry", {"maxElapsed": "0s"}, "retry.maxElapsed: must be from 1s to 30d"),
        ("retry", {"schedule": "fast"}, "retry.schedule: must be 'quick' or 'standard'"),
        ("retry", "quick", "retry: must be a mapping"),
        ("when", {"minDocuments": -1}, "when.minDocuments: must be at least 0"),
        ("when", {"collections": []}, "when.collections: must not be empty"),
        ("when", {"collections": "acme/*"}, "when.collections: must be a list"),
        ("onFailure", "retry", "onFailure: must be 'block', 'dead_letter' or 'ignore'"),
        ("ordering", "Strict", "ordering: must be 'none' or 'strict'"),
        ("enabled", "yes", "enabled: must be true or false"),
        ("method", "GET", "method: must be POST, PUT or PATCH"),
        ("headers", [], "headers: must be a mapping"),
        ("allowedHosts", ["https://a/"], "allowedHosts[0]: is not a host name, address or network"),
        ("allowedHosts", ["a:0"], "allowedHosts[0]: is not a host name, address or network"),
        ("allowedHosts", ["[a]:80"], "allowedHosts[0]: is not a host name, address or network"),
        ("success", {"status": [302]}, "success.status[0]: a redirect is never delivery"),
        ("success", {"status": [True]}, "success.status[0]: is not a status"),
        ("success", {"status": ["200-299"]}, "success.status[0]: is not a status"),
        ("success", {"pointer": "a/b"}, "success.pointer: is not a JSON pointer"),
        ("success", {"equals": 1}, "success.equals: needs a pointer"),
        ("with", {"a": 1}, "with: goes with preset"),
        ("exposeHeaders", ["X-B"], "exposeHeaders[0]: is not a header of this endpoint"),
        ("exposeHeaders", "X-B", "trigger X: exposeHeaders: must be a list"),
        ("exposeHeaders", ["a b"], "exposeHeaders[0]: is not a header name"),
    ],
)
def test_values_out_of_bounds_are_told(field: str, value: Any, told: str) -> None:
    assert told in "\n".join(refused_field(**{field: value}))


@pytest.mark.parametrize("value", ["http://me:hunter2@host", "hunter2@host", "", "a b", "x" * 251, 5])
def test_a_connection_is_named_by_its_id(value: Any) -> None:
    document = {"config": {"X": {"connection": value, "payload": {}}}}
    (line,) = refused(document)
    assert line.startswith("trigger X: connection: ")


@pytest.mark.parametrize("name", ["parameters", "writtenInterval", "name", "_name"])
def test_names_of_the_inside_are_no_fields(name: str) -> None:
    (line,) = refused_field(**{name: "5s", "preset": "slack"})
    assert line.startswith(f"trigger X: {name}: unknown field")


def test_text_of_half_a_character_is_refused() -> None:
    message = "trigger X: payloadTemplate: is not text: it holds half a character"
    assert refused_field(payloadTemplate='"\ud800"') == [message]


@pytest.mark.parametrize("name", ["start now", "a/b", "a\nb", "", "x" * 129, "a:b", "é\u0301", "😀"])
def test_a_name_shows_its_wrong_part(name: str) -> None:
    (line,) = refused({"config": {name: MINIMAL}})
    assert line.startswith("triggers: config: ")
    assert "cannot be used as name for trigger" in line
    wrong = {"start now": '(" " is invalid)', "a/b": '("/" is invalid)', "a\nb": '("\\n" is invalid)'}
    assert wrong.get(name, "") in line


@pytest.mark.parametrize("name", ["startDownstream", "a-b_c.d", "9", "注文", "Größe", "½"])
def test_letters_and_numbers_of_any_alphabet_are_names(name: str) -> None:
    assert parse_triggers({"config": {name: MINIMAL}}).endpoints[0].name == name


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("not a url", "invalid URL: it has a space"),
        ("ftp://host/x", "invalid URL: unsupported scheme 'ftp', must be http or https"),
        ("hunter2:foo", "invalid URL: it has no scheme"),
        ("https://", "invalid URL: it names no host"),
        ("https://:443/x", "invalid URL: its host or port can't be read"),
        ("https://host:99999/", "invalid URL: its host or port can't be read"),
        ("https://host:0/", "invalid URL: its host or port can't be read"),
        ("https://[::g]/", "invalid URL: its host or port can't be read"),
        ("https://a..b/", "invalid URL: its host or port can't be read"),
        ("https://\u2100.com/", "invalid URL: its host or port can't be read"),
        ("https://me:hunter2@host/x", "invalid URL: it holds a user name; put login and password in an Airflow conn"),
        ("https://host/x#s3cr3t", "invalid URL: it has a fragment"),
        ("https://host\\@evil/", "invalid URL: it has a space, a backslash"),
        ("https://host/\r\nX: y", "invalid URL: it has a space"),
        ("https://host/\u202e", "invalid URL: it has a space, a backslash or another character"),
        ("https://host/{{materialization_name}}", "invalid URL: it is not a template"),
        ("", "url: is empty"),
        ("https://h/" + "x" * 5000, "invalid URL: it has more than 4096 characters"),
        (5, "url: must be text"),
    ],
)
def test_an_address_that_is_none_is_refused_and_not_shown(url: Any, told: str) -> None:
    (line,) = refused_field(url=url)
    assert line.startswith(f"trigger X: {told}")


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080",
        "https://host.example./a?b=c&d=%20",
        "https://[::1]:8443/x",
        "HTTPS://HOST/",
        "https://bücher.example/ü",
        "https://my_service/x",
    ],
)
def test_addresses_of_all_kinds_are_read(url: str) -> None:
    trigger = endpoint(url=url)
    assert trigger.url is not None
    assert trigger.url.get_secret_value() == url


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"X Y": "a"}, "is not a header name"),
        ({"Ünï": "a"}, "is not a header name"),
        ({"Authorization: Bearer s3cr3t": "a"}, "is not a header name"),
        ({"X": "s3cr3t\r\nEvil: 1"}, "headers.X: has a line break"),
        ({"X": " s3cr3t"}, "headers.X: begins or ends with a space"),
        ({"X": "s3cr3t€"}, "headers.X: has a character outside Latin-1"),
        ({"X": "s3cr3t" * 2000}, "headers.X: must have at most 8192 characters"),
        ({"Content-Length": "5"}, "headers.Content-Length: is set by the delivery itself"),
        ({"webhook-ID": "5"}, "headers.webhook-ID: is set by the delivery itself"),
        ({"A": "1", "a": "2"}, "headers.a: duplicate header"),
        ({f"X{n}": "1" for n in range(101)}, "headers: must have at most 100 entries"),
    ],
)
def test_headers_that_could_not_be_sent_are_refused(headers: Mapping[str, str], told: str) -> None:
    (line,) = refused_field(headers=headers)
    assert told in line


def test_latin_letters_tabs_and_empty_values_are_header_values() -> None:
    assert endpoint(headers={"X": "grün\tweiß", "Y": ""}).headers["X"] == SecretStr("grün\tweiß")


@pytest.mark.parametrize(
    "secret",
    [
        "hunter2",
        "whsec_",
        "whsec_" + base64.b64encode(b"k" * 23).decode(),
        "whsec_" + base64.b64encode(b"k" * 65).decode(),
        base64.b64encode(b"k" * 24).decode(),
        KEY + "\n",
        5,
    ],
)
def test_signing_secrets_have_one_form(secret: Any) -> None:
    (line,) = refused_field(signing={"secrets": [KEY, secret]})
    assert line.startswith("trigger X: signing.secrets[1]: ")


def test_signing_keys_are_the_bytes_of_the_secrets() -> None:
    long = "whsec_" + base64.b64encode(bytes(range(64))).decode()
    signing = endpoint(signing={"secrets": [KEY, long]}).signing
    assert signing is not None
    assert signing.keys == (b"k" * 24, bytes(range(64)))
    check_messages(refused_field(signing={"secrets": []}))


def test_an_endpoint_has_one_address_and_one_body() -> None:
    both = {"url": URL, "connection": "c", "payload": {}, "payloadTemplate": "{}"}
    lines = refused({"config": {"none": {}, "both": both, "null": {"url": None, "payload": None}}})
    assert lines == [
        "trigger none: has no body; write payload, payloadTemplate or preset",
        "trigger none: has no address; write url, or connection with an HTTP connection of Airflow",
        "trigger both: url and connection are both given; keep one of them",
        "trigger both: payload and payloadTemplate are both given; keep one of them",
        "trigger null: has no body; write payload, payloadTemplate or preset",
        "trigger null: has no address; write url, or connection with an HTTP connection of Airflow",
    ]


def test_all_problems_are_told_at_once_in_the_block_s_order() -> None:
    one = {**MINIMAL, "url": "ftp://h", "timeout": "0s", "headers": {"X": "a\nb"}, "maxAttempts": 500}
    lines = refused({"config": {"one": one, "two": {"payload": {"a": float("inf")}, "nonsense": 1}, "fine": MINIMAL}})
    assert lines == ["trigger two: payload.a: JSON has no infinite numbers; put it in quotes"]
    lines = refused({"config": {"one": one, "two": {"payload": {}, "nonsense": 1}, "fine": MINIMAL}})
    assert [line.partition(": ")[0] for line in lines] == ["trigger one"] * 4 + ["trigger two"] * 2


def test_there_are_at_most_a_hundred_endpoints() -> None:
    assert len(parse_triggers({"config": {f"t{n}": MINIMAL for n in range(100)}}).endpoints) == 100
    wrong = {**MINIMAL, "timeout": "0s"}
    for endpoints in ({f"t{n}": wrong for n in range(101)}, [wrong] * 101):
        # None of them is looked at, which would take long.
        check_messages(refused({"config": endpoints}))


@pytest.mark.parametrize("document", [None, "x", {}, {"config": None}, {"config": {"a": None}}, [5]])
def test_what_is_no_block_is_refused(document: Any) -> None:
    assert refused(document)


def test_a_block_without_endpoints_is_read() -> None:
    assert parse_triggers({"config": {}}).endpoints == ()


def test_secrets_are_in_no_repr_and_no_error_of_pydantic_s() -> None:
    block = parse_triggers(
        {"config": {"X": {**MINIMAL, "headers": {"Authorization": "Bearer hunter2"}, "signing": {"secrets": [KEY]}}}}
    )
    for text in (repr(block), str(block), repr(block.endpoints), f"{block.endpoints[0]}"):
        assert not [secret for secret in SECRETS if secret in text]
    assert set(block.endpoints[0].secret_texts()) == {URL, "Bearer hunter2", KEY}
    with pytest.raises(ValidationError) as caught:
        Endpoint.model_validate({"url": "hunter2 x", "headers": {"A": "hunter2\n"}, "payload": {}, "hunter2\n": 1})
    assert "hunter2 x" not in f"{caught.value} {caught.value.errors()}"
    assert not [item for item in caught.value.errors() if "hunter2\\n'" in str(item["input"])]


def test_blocks_are_made_in_python_too() -> None:
    block = TriggerBlock(config={"a": Endpoint(url=SecretStr(URL), payload={"x": 1}, max_attempts=2)})
    assert block.endpoints[0].name == "a"
    assert block == parse_triggers({"config": {"a": {"url": URL, "payload": {"x": 1}, "maxAttempts": 2}}})
    assert parse_triggers(block) is block
    assert parse_triggers({"config": {"b": block.endpoints[0]}}).endpoints[0].name == "b"
    assert block.endpoints[0].name == "a"


def test_a_block_is_frozen_and_travels_by_pickle() -> None:
    block = parse_triggers({"interval": "5m", "config": {"a": {**MINIMAL, "timeout": "2m"}}})
    with pytest.raises(ValidationError):
        block.endpoints[0].enabled = False
    back = pickle.loads(pickle.dumps(block))
    assert back == block and back.dump() == block.dump() and back.endpoints[0].name == "a"
    assert copy.deepcopy(block).dump() == block.dump()


def test_a_commit_is_heard_by_its_collections_and_documents() -> None:
    orders, items = Binding("t", "acme/orders", 5, 1), Binding("t", "acme/eu/items", 2, 1)
    empty = Binding("t", "z", 0, 0)
    assert endpoint().when.accepts(event(orders))
    assert not endpoint().when.accepts(event())
    assert not endpoint().when.accepts(event(empty))
    assert endpoint(when={"minDocuments": 0}).when.accepts(event())
    assert endpoint(when={"minDocuments": 7}).when.accepts(event(orders, items))
    assert not endpoint(when={"minDocuments": 8}).when.accepts(event(orders, items))
    assert endpoint(when={"collections": ["acme/*"]}).when.accepts(event(orders, empty))
    assert not endpoint(when={"collections": ["other/*"]}).when.accepts(event(orders, items))
    assert not endpoint(when={"collections": ["acme/eu/*"], "minDocuments": 3}).when.accepts(event(orders, items))
    assert not endpoint(when={"collections": ["Acme/*"]}).when.accepts(event(orders))
    assert not endpoint(when={"collections": ["z"]}).when.accepts(event(orders, empty))
    assert endpoint(when={"collections": ["z"], "minDocuments": 0}).when.accepts(event(orders, empty))
    deletes = replace(event(empty), changes={"inserted": 0, "deleted": 3})
    assert endpoint().when.accepts(deletes)
    assert endpoint(when={"collections": ["z"], "minDocuments": 3}).when.accepts(deletes)
    assert not endpoint(when={"minDocuments": 4}).when.accepts(deletes)
    assert not endpoint(when={"collections": ["acme/*"]}).when.accepts(deletes)


def test_answers_are_judged_by_status_and_by_what_a_pointer_finds() -> None:
    plain = endpoint(success={"status": ["2XX", "409"]}).success
    assert [plain.accepts(status, b"") for status in (200, 299, 409, 302, 400, 500)] == [True, True, True] + [False] * 3
    pointed = endpoint(success={"pointer": "/a~1b/0/~0", "equals": 1}).success
    assert pointed.pointer is not None
    assert pointed.accepts(200, b'{"a/b": [{"~": 1.0}]}')
    for body in (b"", b"\xff", b"{}", b"[]", b'{"a/b": {"0": {"~": 1}}}', b'{"a/b": [{"~": true}]}', b"[" * 50_000):
        assert pointed.accepts(200, body) is (body == b'{"a/b": {"0": {"~": 1}}}')
    assert not pointed.accepts(500, b'{"a/b": [{"~": 1}]}')
    present = endpoint(success={"pointer": "/ok"}).success
    assert present.accepts(200, b'{"ok": null}') and not present.accepts(200, b"{}")
    null = endpoint(success={"pointer": "/ok", "equals": None}).success
    assert null.accepts(200, b'{"ok": null}') and not null.accepts(200, b'{"ok": false}')
    assert endpoint(success={"pointer": "", "equals": {"a": [1, {}]}}).success.accepts(200, b'{"a": [1.0, {}]}')


def test_exposed_headers_are_found_whatever_their_case() -> None:
    trigger = endpoint(headers={"Authorization": "Bearer x", "X-Other": "y"}, exposeHeaders=["authorization"])
    assert trigger.exposed_headers() == {"Authorization": "Bearer x", "authorization": "Bearer x"}
    fields = {"connection": "c", "payload": {}, "exposeHeaders": ["X-From", "X-None"]}
    (of_connection,) = parse_triggers({"config": {"a": fields}}).endpoints
    assert of_connection.exposed_headers({"x-from": "1", "x-secret": "2"}) == {"x-from": "1", "X-From": "1"}
    assert endpoint(headers={"Authorization": "Bearer x"}).exposed_headers() == {}


def test_a_sealed_document_is_read_without_its_values_and_left_untouched() -> None:
    document = {
        "config": {
            "a": {
                "url": SEALED,
                "method": SEALED,
                "headers": {"Authorization_sops": SEALED},
                "signing": {"secrets": [SEALED]},
                "expose_headers": [SEALED],
                "payloadTemplate": "{}",
            },
            "b": {"preset": "pagerduty", "with": {"routingKey": SEALED, "severity": SEALED}},
        },
        "sops": {"mac": SEALED, "age": [{"recipient": "age1", "enc": "-----"}], "lastmodified": "2026-01-01"},
    }
    block = parse_triggers(document)
    assert block.is_sealed
    assert block.dump() == document
    assert list(block.dump()["config"]["a"]) == list(document["config"]["a"])
    plain = {"config": {"a": {**MINIMAL, "method": "PUT"}}}
    seen: list[Mapping[str, Any]] = []

    def decrypt(sealed: Mapping[str, Any]) -> Mapping[str, Any]:
        seen.append(sealed)
        return plain

    opened = block.opened(decrypt)
    assert (seen, opened.is_sealed, opened.endpoints[0].method) == ([document], False, "PUT")
    assert opened.opened(decrypt) is opened


def test_sealed_values_need_a_document_that_can_be_opened() -> None:
    check_messages(refused({"config": {"a": {**MINIMAL, "url": SEALED}, "b": MINIMAL}}))


def test_what_was_sealed_wrongly_is_told_without_its_value() -> None:
    block = parse_triggers({"config": {"a": {**MINIMAL, "url": SEALED}}, "sops": {}})
    with raises(TriggerConfigError):
        block.opened(lambda document: {"config": {"a": {**MINIMAL, "url": "ftp://hunter2/s3cr3t"}}})


def test_files_hold_the_block_at_the_top_or_below_triggers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "triggers:\n  interval: 30m\n  config:\n    a:\n      url: https://h/x\n      payload: {a: '{{b}}'}\nother: 1\n"
    )
    (tmp_path / "b.json").write_text(json.dumps({"config": [MINIMAL]}))
    assert load_triggers(tmp_path / "a.yaml").endpoints[0].interval == 1800
    assert load_triggers(tmp_path / "b.json").endpoints[0].name == "trigger0"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.yaml", "config: {s3cr3t: [", "is not YAML at line 1"),
        ("a.yaml", "config:\n  a: {}\n  a: {}\n", 'duplicate key "a", at line 3'),
        ("a.yaml", "", "must be a mapping"),
        ("a.yaml", "config: {true: {url: 1}}", "config: a key is true or false; put it in quotes"),
        (
            "a.yaml",
            "config: {a: {url: 'https://h', payload: &x {day: *x}}}",
            "trigger a: payload: is nested deeper than 40 levels",
        ),
        (
            "a.yaml",
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(8)),
            "has more than 20000 values",
        ),
        ("a.json", '{"config": {"a": 1, "a": 2}}', 'duplicate key "a"'),
        ("a.json", '{"config": s3cr3t}', "is not JSON at line 1, column 12"),
        ("a.json", "[" * 100_000, "holds a value that can't be read"),
        ("a.json", '{"config": ' + "9" * 5000 + "}", "holds a value that can't be read"),
    ],
)
def test_a_file_that_can_t_be_read_is_told_by_place_and_not_by_content(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TriggerConfigError) as caught:
        load_triggers(tmp_path / name)
    assert told in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    for name, message in (("none.yaml", "can't be read: No such file"), ("x.yaml", "is not in UTF-8")):
        with pytest.raises(TriggerConfigError, match=message):
            load_triggers(tmp_path / name)


def test_errors_of_a_file_name_it_where_they_are_the_block_s(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("config: {}\nintervall: 5s\n")
    with raises(TriggerConfigError, tmp_path / "t.yaml"):
        load_triggers(tmp_path / "t.yaml")
