from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pyrage
import pytest
import yaml
from airflow.sdk import DAG
from sqlalchemy.exc import OperationalError

from airflow_provider_rfr.operators import CommitWebhookOperator
from airflow_provider_rfr.store.deliveries import CANCELLABLE, REPLAYABLE
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.outbox import delivery_id
from demo.webhook_receiver import Receiver
from tests.airflow_versions import rfr_command
from tests.unit.cli.calls import Printed, Rfr
from tests.unit.triggers.lake import Lake

pytestmark = pytest.mark.usefixtures("webhooks_on_loopback")


@pytest.fixture
def rfr(command: Rfr) -> Rfr:
    """``airflow rfr triggers ...``."""
    return partial(command, "triggers")


STORE = ("--lake-conn-id", "lake")


def write(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def block(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {
        "triggers": {
            "name": "shop",
            "config": {"hook": {"url": receiver.url, "payload": {"id": "{{delivery_id}}"}, **more}},
        }
    }


@pytest.fixture
def render(rfr: Rfr, tmp_path: Path) -> Rfr:
    """``airflow rfr triggers render``, of a text with variables."""

    def call(template: str, variables: Any, *more: str, code: int = 0) -> Printed:
        files = write(tmp_path, "t.hbs", template), write(tmp_path, "v.json", variables)
        return rfr("render", "--template", files[0], "--variables", files[1], *more, code=code)

    return call


def test_a_template_is_rendered_as_it_is(render: Rfr) -> None:
    assert render("a {{b}}\n", {"b": 'x"y'}).out == 'a x"y\n'
    assert render('{"a": "{{b}}"}', {"b": 'x"y'}, "--json-body").json == {"a": 'x"y'}


def test_a_template_s_mistake_is_told_with_its_place(render: Rfr) -> None:
    output = render("a\n {{nope}}", {}, code=1)
    assert output.out == ""
    assert "line 2, column 4" in output.err
    assert "nope" in output.err


def test_a_template_s_line_ends_stay_and_a_byte_order_mark_does_not(tmp_path: Path, rfr: Rfr) -> None:
    template, variables = tmp_path / "t.hbs", tmp_path / "v.json"
    template.write_bytes(b"\xef\xbb\xbfx\r\n{{#if yes}}\r\ny\r\n{{/if}}\r\nz")
    variables.write_bytes(b'\xef\xbb\xbf{"yes": true}')
    assert rfr("render", "--template", str(template), "--variables", str(variables)).out == "x\r\ny\r\nz"


@pytest.mark.parametrize("variables", ["[1]", "{", '"text"', "[" * 100_000, '{"a":' * 100_000])
def test_variables_that_are_no_object_are_refused(variables: str, render: Rfr) -> None:
    assert "--variables" in render("a", variables, code=1).err


def test_a_block_is_checked_as_a_deploy_does(tmp_path: Path, receiver: Receiver, rfr: Rfr) -> None:
    assert "nothing wrong, triggers: 1" in rfr("validate", write(tmp_path, "t.json", block(receiver))).out
    output = rfr(
        "validate", write(tmp_path, "t.json", block(receiver, payload={"a": "{{nope}}"}, timeout="0s")), code=1
    ).err
    assert "trigger hook: timeout must be greater than 0" in output
    assert "nope" in output


def test_the_schema_is_the_package_s(rfr: Rfr) -> None:
    assert "config" in rfr("schema").json["properties"]


def test_what_was_sealed_at_the_shell_is_delivered(
    lake: Lake, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    identity = pyrage.x25519.Identity.generate()
    plain = write(tmp_path, "plain.json", block(receiver, headers={"X-Key": "canary-be03"}))
    sealed = write(tmp_path, "sealed.json", rfr("seal", plain, "--recipient", identity.to_public()).out)
    assert "canary-be03" not in sealed.read_text()
    monkeypatch.setenv("SOPS_AGE_KEY", str(identity))
    lake.publish("raw.orders")
    rfr("deliver", sealed, *STORE)
    assert [request.headers["x-key"] for request in receiver.requests] == ["canary-be03"]


def test_deliveries_are_made_listed_replayed_and_cancelled(
    lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr
) -> None:
    commit = lake.publish("raw.orders")
    file = write(tmp_path, "t.json", block(receiver))
    receiver.answer = lambda request: (400, b"")
    output = rfr("deliver", file, *STORE, code=1)
    assert "1 enqueued, 0 delivered, 0 to be repeated, 1 given up, 0 pending" in output.out
    assert "hook (http://127.0.0.1" in output.err

    (row,) = rfr("list", "--state", "dead", "--output", "json", *STORE).json
    assert (row["id"], row["table"], row["status"]) == (delivery_id(commit, "shop/hook"), "raw.orders", 400)
    assert (row["attempts"], row["due"]) == (1, None)

    heads, values = (line.split() for line in rfr("list", *STORE).out.splitlines())
    assert heads[:4] == ["ID", "TABLE", "TRIGGER", "STATE"]
    assert values[:4] == [row["id"], "raw.orders", "shop/hook", "dead"]

    rfr("replay", row["id"], *STORE)
    receiver.answer = lambda request: (200, b"")
    rfr("deliver", file, "--target", "raw.orders", *STORE)
    assert {request.delivery_id for request in receiver.requests} == {row["id"]}
    assert len(receiver.requests) == 2

    rfr("pause", "raw.orders", "hook", *STORE)
    lake.publish("raw.orders")
    rfr("deliver", file, *STORE)
    assert len(receiver.requests) == 2
    rfr("cancel", "--trigger", "hook", *STORE)
    error = rfr("replay", "--trigger", "hok", *STORE, code=1).err
    assert "there is no endpoint 'hok' yet; those known are shop/hook" in error
    rfr("replay", "--trigger", "another/hook", *STORE, code=1)
    assert "3f0c: there is no such delivery" in rfr("cancel", "3f0c", *STORE, code=1).err
    rfr("resume", "raw.orders", "hook", *STORE)
    rfr("deliver", file, *STORE)
    assert len(receiver.requests) == 2


def test_what_is_named_by_its_id_is_replayed_or_the_answer_says_why_not(
    lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr
) -> None:
    one = delivery_id(lake.publish("raw.orders"), "shop/hook")
    file = write(tmp_path, "t.json", block(receiver))
    rfr("deliver", file, *STORE)
    assert "1 to be delivered again" in rfr("replay", one, *STORE).err
    output = rfr("replay", one, "f" * 32, *STORE, code=1).err
    assert f"{one}: it is pending" in output
    assert f"{'f' * 32}: there is no such delivery" in output
    rfr("deliver", file, *STORE)
    assert [request.delivery_id for request in receiver.requests] == [one, one]
    assert f"{one}: it is delivered" in rfr("replay", one, "--state", "dead", *STORE, code=1).err
    assert f"{one}: it is delivered, so there is nothing to cancel" in rfr("cancel", one, *STORE, code=1).err
    rfr("replay", one, *STORE)
    error = rfr("cancel", one, "--state", "dead", *STORE, code=1).err
    assert f"{one}: it is pending, and not what the other options name" in error


@pytest.mark.parametrize(("change", "states"), [("replay", REPLAYABLE), ("cancel", CANCELLABLE)])
def test_the_states_that_can_be_changed_are_the_choices(
    change: str, states: tuple[str, ...], lake: Lake, rfr: Rfr
) -> None:
    for state in ("pending", "delivered", "dead", "cancelled", "merged"):
        words = (change, "f" * 32, "--state", state, *STORE)
        if state in states:
            assert "there is no such delivery" in rfr(*words, code=1).err
        else:
            with pytest.raises(SystemExit, match="2"):
                rfr(*words)


def test_a_database_that_fails_is_told_in_a_line(lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr) -> None:
    def fail(*_: Any, **_values: Any) -> None:
        raise OperationalError("SELECT canary-77", {}, Exception("server closed the connection\nand more"))

    monkeypatch.setattr(operations, "deliveries", fail)
    output = "the database failed: server closed the connection; airflow rfr doctor may say why\n"
    assert rfr("list", *STORE, code=1).err.endswith(output)


@pytest.mark.parametrize("name", ["a" * 300, "~nobody-7f1c/t.yaml", "gone.yaml", "."])
def test_what_is_no_file_is_refused_in_a_sentence(name: str, rfr: Rfr) -> None:
    output = rfr("validate", name, code=1).err
    assert "Traceback" not in output
    assert "; name a YAML or JSON file with a block" in output


def test_a_file_is_one_block_for_an_operator_and_at_a_shell(
    lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr
) -> None:
    lake.publish("raw.orders")
    file = tmp_path / "hooks of a shop.json"
    file.write_text(json.dumps({"config": block(receiver)["triggers"]["config"]}))
    with DAG("shop", schedule=None):
        task = CommitWebhookOperator(task_id="tell", triggers=str(file), target="raw.orders", lake_conn_id="lake")
    assert task.execute({})["delivered"] == 1
    rfr("deliver", file, *STORE)
    assert len(receiver.requests) == 1


def test_an_endpoint_of_several_blocks_is_named_with_its_block(
    lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr
) -> None:
    for name in ("a", "b"):
        triggers = {**block(receiver)["triggers"], "name": name}
        file = write(tmp_path, f"{name}.json", triggers)
        lake.publish("raw.orders")
        rfr("deliver", file, *STORE)
    assert "write one of a/hook, b/hook" in rfr("pause", "raw.orders", "hook", *STORE, code=1).err
    rfr("pause", "raw.orders", "a/hook", *STORE)
    rfr("pause", "raw.orders", "c/hook", *STORE, code=1)
    lake.publish("raw.orders")
    for name in ("a", "b"):
        rfr("deliver", tmp_path / f"{name}.json", *STORE)
    assert {
        row["trigger"]
        for row in rfr("list", "--trigger", "a/hook", "--state", "pending", "--output", "json", *STORE).json
    } == {"a/hook"}


def test_a_block_that_moved_and_was_edited_goes_on_after_a_resume(
    lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr
) -> None:
    files = [tmp_path / folder / "triggers.json" for folder in ("old", "new")]
    for file in files:
        file.parent.mkdir()
        url = f"{receiver.url}/{file.parent.name}"
        file.write_text(json.dumps(block(receiver, url=url)["triggers"] | {"name": "shop"}))
    lake.publish("raw.orders")
    rfr("deliver", files[0], *STORE)
    lake.publish("raw.orders")
    output = rfr("deliver", files[1], *STORE, code=1).err
    assert all(str(file) in output for file in files)
    assert "airflow rfr triggers resume raw.orders shop/hook" in output
    rfr("resume", "raw.orders", "shop/hook", *STORE)
    rfr("deliver", files[1], *STORE)
    assert [request.path for request in receiver.requests] == ["/old", "/new"]


def test_a_list_tells_why_what_is_pending_is_not_sent(lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr) -> None:
    def pending() -> list[tuple[str | None, str]]:
        return [
            (row["due"], row["detail"]) for row in rfr("list", "--state", "pending", "--output", "json", *STORE).json
        ]

    lake.publish("raw.orders")
    file = write(tmp_path, "t.json", block(receiver))
    receiver.answer = lambda request: (410, b"")
    rfr("deliver", file, *STORE, code=1)
    lake.publish("raw.orders")
    rfr("deliver", file, *STORE)
    assert pending() == [(None, "the endpoint is disabled: it answered 410 Gone")]
    rfr("resume", "raw.orders", "hook", *STORE)
    rfr("pause", "raw.orders", "hook", *STORE)
    assert pending() == [(None, "the endpoint is paused")]
    rfr("resume", "raw.orders", "hook", *STORE)
    assert [bool(due) for due, _ in pending()] == [True]


def test_deliveries_of_several_tables_are_one_list(lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr) -> None:
    file = write(tmp_path, "t.json", block(receiver))
    for name in ("raw.orders", "raw.customers", "raw.orders"):
        lake.publish(name)
        rfr("deliver", file, *STORE)
    targets = [word for name in ("raw.orders", "raw.customers", "raw.orders") for word in ("--target", name)]
    listed = []
    for limit in (9, 2):
        listed.append(
            [row["table"] for row in rfr("list", *targets, "--limit", limit, "--output", "json", *STORE).json]
        )
    assert listed == [["raw.orders", "raw.customers", "raw.orders"], ["raw.orders", "raw.customers"]]


@pytest.mark.parametrize("change", ["replay", "cancel"])
def test_a_table_without_webhooks_and_a_trigger_of_another_table_are_refused(
    lake: Lake, receiver: Receiver, tmp_path: Path, change: str, rfr: Rfr
) -> None:
    for name, table in (("hook", "raw.orders"), ("other", "raw.customers")):
        triggers = block(receiver)
        triggers["triggers"]["config"] = {name: triggers["triggers"]["config"]["hook"]}
        file = write(tmp_path, "t.json", triggers)
        lake.publish(table)
        rfr("deliver", file, "--target", table, *STORE)
    output = "target: raw.order has no endpoint yet; the tables known are raw.customers, raw.orders"
    assert output in rfr(change, "--target", "raw.orders", "--target", "raw.order", *STORE, code=1).err
    output = "trigger: there is no endpoint 'other' for raw.orders yet; those known are shop/hook"
    assert output in rfr(change, "--target", "raw.orders", "--trigger", "other", *STORE, code=1).err
    rfr(change, "--target", "raw.customers", "--trigger", "other", *STORE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--target", "raw.\udcff"),
        ("list", "--trigger", "\udcff"),
        ("replay", "\udcff"),
        ("cancel", "1", "--reason", "\udcff"),
        ("pause", "raw.orders", "\udcff"),
        ("resume", "raw.\udcff", "hook"),
    ],
    ids=lambda case: case[0],
)
def test_bytes_that_are_no_text_are_refused_in_a_sentence(lake: Lake, arguments: tuple[str, ...], rfr: Rfr) -> None:
    output = rfr(*arguments, *STORE, code=1).err
    assert "has bytes that are not UTF-8; write it in UTF-8" in output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("words", [("triggers", "list"), ("connection", "history")])
def test_less_than_nothing_can_t_be_listed(words: tuple[str, ...], command: Rfr) -> None:
    assert "--limit: -1 is no number of rows" in command(*words, "--limit", "-1", code=1).err


def test_changing_everything_takes_a_name(lake: Lake, rfr: Rfr) -> None:
    assert "give ids, --target or --trigger" in rfr("replay", *STORE, code=1).err


def test_an_endpoint_is_tried(lake: Lake, receiver: Receiver, tmp_path: Path, rfr: Rfr) -> None:
    file = write(tmp_path, "t.json", block(receiver))
    assert rfr("test-fire", file, "hook", "--json").json["delivered"] is True
    assert rfr("test-fire", file, "shop/hook", "--json").json["delivered"] is True
    receiver.answer = lambda request: (500, b"")
    rfr("test-fire", file, "hook", code=1)
    for name in ("other", "other/hook"):
        assert f"there is no {name!r}; one of hook" in rfr("test-fire", file, name, code=1).err


def test_a_rendered_template_is_a_text_in_json_and_json_is_not_taken_for_json_body(tmp_path: Path, rfr: Rfr) -> None:
    template, variables = write(tmp_path, "t.hbs", "{{a}}"), write(tmp_path, "v.json", {"a": 'a "word"'})
    arguments = ("--template", template, "--variables", variables)
    assert rfr("render", *arguments, "--json").json == {"text": 'a "word"'}
    assert rfr("render", *arguments, "--json-body", "--json").json == {"text": '"a \\"word\\""'}


def test_the_schema_is_the_same_in_json(rfr: Rfr) -> None:
    text = rfr("schema").out
    assert rfr("schema", "--json").out == text
    assert yaml.safe_load(rfr("schema", "--output", "yaml").out) == json.loads(text)


def test_a_sealed_file_is_a_text_in_json(tmp_path: Path, rfr: Rfr) -> None:
    config = {"hook": {"url": "https://hooks.example.com/secret", "payload": {"a": 1}}}
    file = write(tmp_path, "t.json", {"triggers": {"name": "shop", "config": config}})
    recipient = str(pyrage.x25519.Identity.generate().to_public())
    sealed = rfr("seal", "--recipient", recipient, file, "--json").json["text"]
    again = write(tmp_path, "sealed.json", sealed)
    assert "https://hooks.example.com" not in sealed
    assert rfr("seal", "--recipient", recipient, again).out == sealed


@pytest.mark.test
def test_the_command_is_airflow_s_own_and_its_text_is_utf_8_in_every_terminal(tmp_path: Path) -> None:
    template, variables = write(tmp_path, "t.hbs", "{{a}}"), write(tmp_path, "v.json", {"a": "\u00e9\U0001f600"})
    command = rfr_command("triggers", "render", "--template", str(template), "--variables", str(variables))
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode()) == (0, "\u00e9\U0001f600"), done.stderr
