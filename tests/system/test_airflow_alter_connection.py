"""ALTER CONNECTION on a running Airflow: the API moves, and a token is rotated, while refreshes run."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest

from airflow_provider_rfr.sample_api import SampleApi
from tests.airflow_versions import rfr_command
from tests.soon import PATIENCE
from tests.system.conftest import KEY, LATENCY_MS, SIZES, Story, api_server, wait_for

CANARY = "canary-63b1f9-token"
ROTATED = "canary-63b1f9-rotated"
BEGUN = 60
SILENT = [{"kind": "hang", "path": "/partitions/*", "after": BEGUN}]
"""So that no refresh can be over before its connection is altered, however slow the test is."""
MORE = replace(SIZES, pages=SIZES.pages + 1)
SILENT_AGAIN = [{**SILENT[0], "after": BEGUN // 2}]
PAGES = SIZES.partitions * SIZES.pages


@pytest.fixture
def api() -> Iterator[SampleApi]:
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=CANARY, faults=SILENT) as api:
        yield api


def connect(story: Story, name: str, api: SampleApi, password: str = KEY, **fields: Any) -> None:
    """Store a connection in Airflow's database."""
    body = {"connection_id": name, "conn_type": "rfr_api", "host": api.base_url, "password": password, **fields}
    story.airflow.call("POST", "/connections", body)


def try_to_alter(story: Story, run: str, statement: str, api: str | None = None) -> str:
    """By the operator; returns how its run ended."""
    story.trigger("alter", run, statement=statement, api=api)
    return story.wait_for_run("alter", run)


def alter(story: Story, run: str, statement: str, api: str | None = None) -> dict[str, Any]:
    """What the operator returned."""
    assert try_to_alter(story, run, statement, api) == "success", story.log("alter", run)[-4000:]
    return story.result("alter", run, "alter")


def cli(story: Story, *arguments: str, parameters: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a person types it; also what a list of processes shows meanwhile."""
    return subprocess.run(
        rfr_command("connection", *arguments),
        env=story.airflow.environment,
        input=json.dumps(parameters or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def move(story: Story, name: str, to: SampleApi) -> dict[str, Any]:
    """By the command line, which needs no slot; returns its answer once the load reads at the new address."""
    done = cli(story, "alter", f"ALTER CONNECTION {name} SET (host = '{to.base_url}')", "-o", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    wait_for(lambda: to.counts()["pages"] > 1)
    return dict(json.loads(done.stdout))


def rows(story: Story, name: str) -> list[int]:
    return sorted(story.lake.rows(f"raw.{name}")["id"].to_pylist())


def command_lines(story: Story) -> str:
    places = []
    for process in story.processes():
        with suppress(psutil.Error):
            places.append(" ".join(process.cmdline()))
    return "\n".join(places)


def spark_pages(story: Story, name: str, run: str) -> str:
    """What Spark's own pages show of the driver that runs."""
    url = wait_for(lambda: story.links(f"uses_{name}", run)["Spark UI"])
    shown = ""
    for page in ("environment/", "jobs/", "executors/"):
        with urllib.request.urlopen(f"{url.rstrip('/')}/{page}", timeout=10) as answer:
            shown += answer.read().decode()
    return shown


def test_a_refresh_goes_on_at_each_new_address_and_the_other_never_notices(story: Story, api: SampleApi) -> None:
    connect(story, "moving", api, CANARY)
    connect(story, "staying", story.api)
    story.hold_after(1)
    story.start("uses_moving", "move")
    story.start("uses_staying", "move")
    api.wait_for_pages(BEGUN, timeout=PATIENCE)
    story.api.wait_for_pages(1, timeout=PATIENCE)
    api.kill()
    # Both slots are taken all the time.
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=CANARY, faults=SILENT_AGAIN) as moved:
        began = time.monotonic()
        assert story.task("uses_staying", "move")["state"] == "running"
        answer = move(story, "moving", moved)
        seconds = time.monotonic() - began
        wait_for(lambda: moved.faults()[0]["used"])
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=CANARY) as last:
        move(story, "moving", last)
        story.api.set_faults()
        story.succeed("uses_moving", "move")
        served = last.counts()["pages"]
        truth = sorted(last.truth("/partitions/items")["ids"])
    print(f"went on after {seconds:.1f} s, {served} pages at the last address")
    assert rows(story, "moving") == truth
    result = story.result("uses_moving", "move")
    assert (result["generation"], result["pages"]) == (1, PAGES)
    assert served < PAGES
    assert [dependent["dag_id"] for dependent in answer["dependents"]] == ["uses_moving"]
    story.succeed("uses_staying", "move")
    stayed = story.result("uses_staying", "move")
    assert (stayed["attempts"], stayed["pages_refetched"]) == (1, 0)
    assert story.task("uses_staying", "move")["try_number"] == 1


@pytest.mark.gate
def test_a_refresh_that_was_refused_goes_on_with_the_rotated_token_and_no_secret_is_left_behind(story: Story) -> None:
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=CANARY, faults=SILENT) as api:
        connect(story, "rotating", api, CANARY)
        story.start("uses_rotating", "rotate")
        api.wait_for_pages(BEGUN, timeout=PATIENCE)
        assert CANARY not in command_lines(story) + spark_pages(story, "rotating", "rotate")
        port = api.port
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=ROTATED, port=port) as rotated:
        # 401 from now on: no retry helps, so the task has failed, and says why.
        wait_for(lambda: story.task("uses_rotating", "rotate")["state"] in ("failed", "up_for_retry"))
        shown = cli(story, "dependents", "rotating")
        assert "it failed" in shown.stdout, shown.stderr[-2000:]
        assert "401" in shown.stdout
        story.airflow.call("POST", "/variables", {"key": "rotated", "value": ROTATED})
        result = alter(story, "rotate", "ALTER CONNECTION rotating SET (password = SECRET 'variable:rotated')")
        wait_for(lambda: rotated.counts()["pages"] > 1)
        assert ROTATED not in command_lines(story)
        story.succeed("uses_rotating", "rotate")
        truth = sorted(rotated.truth("/partitions/items")["ids"])
    assert result["options"] == {"password": {"before": "***", "after": "***"}}
    assert [dependent["outcome"] for dependent in result["dependents"]] == ["started"]
    assert rows(story, "rotating") == truth
    assert story.result("uses_rotating", "rotate")["generation"] == 1
    history = cli(story, "history", "rotating")
    assert "variable:rotated" in history.stdout, history.stderr[-2000:]
    assert story.files_with(CANARY, ROTATED) == []


def test_a_blind_change_stalls_the_refresh_and_the_next_one_starts_it_before_its_retry_is_due(story: Story) -> None:
    connect(story, "waiting", story.api)
    story.start("uses_waiting", "whole")
    story.succeed("uses_waiting", "whole")
    before = rows(story, "waiting")
    assert before == sorted(story.api.truth("/partitions/items")["ids"])
    blind = "ALTER CONNECTION waiting SET (host = 'http://127.0.0.1:9') WITH (VALIDATE = false)"
    assert alter(story, "blind", blind)["result"] == "applied"
    assert story.airflow.call("GET", "/connections/waiting")["host"] == "http://127.0.0.1:9"
    story.start("uses_waiting", "wait")
    wait_for(lambda: story.task("uses_waiting", "wait")["state"] == "up_for_retry")
    assert "uses_waiting.refresh (wait): it failed (" in cli(story, "dependents", "waiting").stdout
    assert rows(story, "waiting") == before
    with SampleApi(MORE, latency_ms=LATENCY_MS, api_key=KEY) as repaired:
        result = alter(story, "repair", f"ALTER CONNECTION waiting SET (host = '{repaired.base_url}')")
        assert [dependent["outcome"] for dependent in result["dependents"]] == ["started"]
        story.succeed("uses_waiting", "wait")
        truth = sorted(repaired.truth("/partitions/items")["ids"])
    assert rows(story, "waiting") == truth
    assert set(before) < set(truth)


def test_the_operator_keeps_what_it_is_not_told_to_change(story: Story) -> None:
    extra = {"page_size": 20, "deep": {"a": [1, 2]}, "client_secret": CANARY}
    connect(story, "kept", story.api, login="me", description="mine", extra=json.dumps(extra))
    result = alter(story, "kept", "ALTER CONNECTION kept SET (extra.more = true) WITH (VALIDATE = false)")
    assert (result["result"], result["options"]) == ("applied", {"extra.more": {"before": None, "after": "true"}})
    stored = story.airflow.call("GET", "/connections/kept")
    assert (stored["login"], stored["description"]) == ("me", "mine")
    assert json.loads(stored["extra"]).keys() == {*extra, "more"}
    again = alter(story, "kept2", "ALTER CONNECTION kept SET (extra.more = true)")
    assert again["result"] == "unchanged"
    assert alter(story, "kept3", "ALTER CONNECTION kept RENAME TO renamed")["result"] == "renamed"
    renamed = story.airflow.call("GET", "/connections/renamed")
    assert (renamed["login"], json.loads(renamed["extra"]).keys()) == ("me", {*extra, "more"})
    assert alter(story, "kept4", "COMMENT ON CONNECTION renamed IS 'ours'")["result"] == "applied"
    assert story.airflow.call("GET", "/connections/renamed")["description"] == "ours"
    assert alter(story, "kept5", "DROP CONNECTION renamed")["result"] == "dropped"
    assert alter(story, "kept6", "DROP CONNECTION IF EXISTS renamed")["result"] == "missing"
    assert story.files_with(CANARY) == []


def test_airflow_decides_who_may_and_tests_connections_where_that_is_enabled(story: Story) -> None:
    extra = {"page_size": 20, "test_path": "/customers"}
    connect(story, "guarded", story.api, description="mine", extra=json.dumps(extra))
    people, testing = {"editor": "op", "reader": "viewer"}, {"AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}
    with api_server(story.airflow, people, CANARY, **testing) as url:
        for user in people:
            connect(story, f"api_of_{user}", story.api, CANARY, conn_type="http", host=url, login=user)
        change = "ALTER CONNECTION guarded SET (extra.page_size = 30)"
        assert try_to_alter(story, "reader", change, "api_of_reader") == "failed"
        assert "edit" in story.log("alter", "reader")
        assert try_to_alter(story, "dead", f"{change}, SET (host = 'http://127.0.0.1:9')", "api_of_editor") == "failed"
        assert alter(story, "editor", change, "api_of_editor")["result"] == "applied"
    stored = story.airflow.call("GET", "/connections/guarded")
    assert json.loads(stored["extra"]) == {"page_size": 30, "test_path": "/customers"}
    assert (stored["host"], stored["description"]) == (story.api.base_url, "mine")
    assert story.files_with(CANARY) == []
