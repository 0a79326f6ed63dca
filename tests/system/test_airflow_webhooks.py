"""Commit webhooks on a running Airflow: delivery that frees its slot, sensor, watcher, and the preset of Airflow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.webhooks.outbox import delivery_id
from demo.webhook_receiver import Received, Receiver
from tests.system.conftest import PASSWORD, Story, api_server, wait_for
from tests.unit.triggers.lake import publish

CANARY = "canary-51e0c7"
USER = "hooks"


def block(url: str, **more: Any) -> dict[str, Any]:
    endpoint = {
        "url": f"{url}/hook?token={CANARY}",
        "headers": {"Authorization": f"Bearer {CANARY}"},
        "payload": {"id": "{{delivery_id}}", "attempt": "{{attempt}}"},
        **more,
    }
    return {"config": {"hook": endpoint}}


def write(folder: Path, document: Any) -> str:
    """A block with the folder's name, as the tests share one Airflow."""
    file = folder / "triggers.json"
    file.write_text(json.dumps({"triggers": {"name": folder.name, **document}}))
    return str(file)


@pytest.mark.gate
def test_no_slot_is_held_between_attempts_and_no_secret_is_left_behind(story: Story, tmp_path: Path) -> None:
    commit = publish(open_catalog(story.lake.settings), "raw.hooked", 3)

    def answer(request: Received) -> tuple[int, bytes]:
        return (200, b"") if len(receiver.requests) > 2 else (503, CANARY.encode())

    with Receiver(answer) as receiver:
        file = write(tmp_path, block(receiver.url))
        story.trigger("deliver", "hooked", triggers_file=file, target="raw.hooked")
        wait_for(lambda: story.airflow.task("deliver", "hooked", "deliver")["state"] == "deferred")
        story.succeed("deliver", "hooked", "deliver")
    assert story.result("deliver", "hooked", "deliver") == {
        "enqueued": 1,
        "delivered": 1,
        "failed": 2,
        "dead": 0,
        "pending": 0,
    }
    assert {request.delivery_id for request in receiver.requests} == {delivery_id(commit, f"{tmp_path.name}/hook")}
    assert [request.json["attempt"] for request in receiver.requests] == [1, 2, 3]
    assert story.files_with(CANARY) == []


def test_the_ready_dag_delivers_what_a_file_says_of_all_tables_and_of_the_one_in_its_form(
    story: Story, tmp_path: Path
) -> None:
    commits = [publish(open_catalog(story.lake.settings), f"raw.ready_{name}") for name in ("one", "two")]
    story.airflow.call("PATCH", "/dags/deliver_webhooks", {"is_paused": False})
    with Receiver() as receiver:
        file = write(tmp_path, block(receiver.url))
        story.trigger("deliver_webhooks", "one", triggers_file=file, target=["raw.ready_one"])
        story.succeed("deliver_webhooks", "one", "deliver")
        assert [request.json["id"] for request in receiver.requests] == [
            delivery_id(commits[0], f"{tmp_path.name}/hook")
        ]
        story.trigger("deliver_webhooks", "all", triggers_file=file)
        story.succeed("deliver_webhooks", "all", "deliver")
    assert delivery_id(commits[1], f"{tmp_path.name}/hook") in {request.json["id"] for request in receiver.requests}
    assert len({request.delivery_id for request in receiver.requests}) == len(receiver.requests)


def test_a_webhook_is_tried_from_its_form_with_a_connection_and_a_template(story: Story) -> None:
    with Receiver(lambda request: (202, f"taken {CANARY}".encode())) as receiver:
        story.airflow.call(
            "POST",
            "/connections",
            {"connection_id": "tried", "conn_type": "http", "host": receiver.url, "password": CANARY},
        )
        template = '{"from": "{{materialization_name}}", "all": {{json collection_names}} }'
        story.trigger("try_webhook", "tried", connection="tried", payloadTemplate=template)
        story.succeed("try_webhook", "tried", "call")
    (request,) = receiver.requests
    assert request.json["from"] and request.json["all"]
    outcome = story.result("try_webhook", "tried", "call")
    assert outcome["status"] == 202
    assert CANARY not in json.dumps(outcome)
    assert CANARY not in story.log("try_webhook", "tried")


def test_the_sensor_waits_in_the_triggerer_until_somebody_commits(story: Story) -> None:
    story.trigger("sense", "sensed")
    wait_for(lambda: story.airflow.task("sense", "sensed", "wait")["state"] == "deferred")
    publish(open_catalog(story.lake.settings), "raw.sensed")
    story.succeed("sense", "sensed", "wait")
    assert story.result("sense", "sensed", "wait")["raw.sensed"]["sequence"] == 1


def test_a_sensor_in_a_run_that_a_refresh_started_does_not_wait_for_the_next_refresh(story: Story) -> None:
    story.airflow.wait_for_dag("after_refresh")
    story.start("on_demand", "after-refresh", table="after_refresh")
    story.succeed("on_demand", "after-refresh")

    def ended() -> dict[str, Any] | None:
        runs = story.airflow.call("GET", "/dags/after_refresh/dagRuns")["dag_runs"]
        return next((dict(run) for run in runs if run["state"] in ("success", "failed")), None)

    started = wait_for(ended)
    assert started["state"] == "success"
    snapshot = story.result("on_demand", "after-refresh")["snapshot_id"]
    assert story.result("after_refresh", started["dag_run_id"], "wait")["raw.after_refresh"]["snapshot_id"] == snapshot
    log = story.log("after_refresh", started["dag_run_id"])
    assert f"Waiting for commits of raw.after_refresh from snapshot {snapshot} on (newest: raw.after_refresh at " in log


@pytest.mark.gate
def test_commits_made_outside_airflow_start_dags_and_none_is_missed(story: Story) -> None:
    catalog = open_catalog(story.lake.settings)
    story.airflow.wait_for_dag("on_commit")

    def told() -> list[int]:
        try:
            events = story.airflow.call("GET", "/assets/events?order_by=-timestamp&limit=100")["asset_events"]
        except RuntimeError:
            # Airflow can't tell an event whose run is queued and has no start yet.
            return []
        payloads = [event["extra"]["payload"] for event in events if "payload" in (event.get("extra") or {})]
        return [payload["sequence"] for payload in reversed(payloads) if payload["table"] == "raw.watched"]

    count = 0
    while not told():  # the watcher begins with the commit after its first look
        publish(catalog, "raw.watched")
        count += 1
        assert count < 60
        time.sleep(2)
    for _ in range(3):
        publish(catalog, "raw.watched")
    count += 3
    sequences = wait_for(lambda: (found := told()) and count in found and found)
    assert sequences == list(range(sequences[0], count + 1))
    wait_for(lambda: story.airflow.call("GET", "/dags/on_commit/dagRuns")["total_entries"] >= 1)


def test_airflows_preset_starts_one_run_for_a_commit_however_often_it_is_delivered(
    story: Story, tmp_path: Path
) -> None:
    commit = publish(open_catalog(story.lake.settings), "raw.starts", 7)
    start = {"dag_id": "started", "username": USER, "password": PASSWORD}
    endpoint = {"preset": "airflow-dag-run", "with": start}
    with api_server(story.airflow, {USER: "admin"}) as url:
        file = write(tmp_path, {"config": {"start": {**endpoint, "url": url}}})
        story.trigger("deliver", "starts", triggers_file=file, target="raw.starts")
        story.succeed("deliver", "starts", "deliver")
        assert story.result("deliver", "starts", "deliver")["delivered"] == 1
        run_id = delivery_id(commit, f"{tmp_path.name}/start")
        story.succeed("started", run_id, "done")
        started = story.airflow.call("GET", f"/dags/started/dagRuns/{run_id}")
        assert started["conf"]["documents"] == 7
        # The store is lost: the commit tells again what it owes, and Airflow answers that it has the run.
        for file_of_store in story.airflow.home.glob("rfr_control_store.db*"):
            file_of_store.unlink()
        story.trigger("deliver", "starts_again", triggers_file=file, target="raw.starts")
        story.succeed("deliver", "starts_again", "deliver")
        assert story.result("deliver", "starts_again", "deliver")["delivered"] == 1
        assert story.airflow.call("GET", "/dags/started/dagRuns")["total_entries"] == 1
