"""ALTER CONNECTION on a running Airflow: the API moves, and a token is rotated, while refreshes run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from airflow_provider_rfr.sample_api.client import SampleApi
from demo.airflow_stack import free_port
from tests.soon import PATIENCE
from tests.system.conftest import KEY, LATENCY_MS, SIZES, Story, answers, wait_for

CANARY = "canary-63b1f9-token"
ROTATED = "canary-63b1f9-rotated"
BEGUN = 60
SILENT = [{"kind": "hang", "path": "/partitions/*", "after": BEGUN}]
"""So that no refresh can be over before its connection is altered, however slow the test is."""
PAGES = SIZES.partitions * SIZES.pages
ROUND_PAGES = 4 * 30
"""More than four requests in flight bring in a round of a second."""


@pytest.fixture
def api() -> Iterator[SampleApi]:
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=CANARY, faults=SILENT) as api:
        yield api


def connection(name: str, host: str) -> dict[str, Any]:
    return {"connection_id": name, "conn_type": "rfr_api", "host": host}


def connect(story: Story, name: str, api: SampleApi) -> None:
    story.airflow.call("POST", "/connections", {**connection(name, api.base_url), "password": CANARY})


def start(story: Story, name: str, run: str) -> None:
    story.airflow.wait_for_dag(f"uses_{name}")
    conf = {
        "config": {"partitions": SIZES.partitions, "page_size": 25},
        "options": {"round_seconds": 1, "concurrency": 4},
    }
    body = {"dag_run_id": run, "logical_date": None, "conf": conf}
    story.airflow.call("POST", f"/dags/uses_{name}/dagRuns", body)


def try_to_alter(story: Story, run: str, statement: str, api: str | None = None) -> str:
    """By the operator; returns how its run ended."""
    story.airflow.wait_for_dag("alter")
    body = {"dag_run_id": run, "logical_date": None, "conf": {"statement": statement, "api": api}}
    story.airflow.call("POST", "/dags/alter/dagRuns", body)
    path = f"/dags/alter/dagRuns/{run}"
    ends = ("success", "failed")
    return str(wait_for(lambda: (found := story.airflow.call("GET", path)["state"]) in ends and found))


def alter(story: Story, run: str, statement: str, api: str | None = None) -> dict[str, Any]:
    """What the operator returned."""
    assert try_to_alter(story, run, statement, api) == "success", story.log("alter", run)[-4000:]
    path = f"/dags/alter/dagRuns/{run}"
    answer = story.airflow.call("GET", f"{path}/taskInstances/alter/xcomEntries/return_value?deserialize=true")
    return dict(answer["value"])


def cli(story: Story, *arguments: str, parameters: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a person types it; also what a list of processes shows meanwhile."""
    return subprocess.run(
        ["airflow", "rfr", "connection", *arguments],
        env=story.airflow.environment,
        input=json.dumps(parameters or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def rows(story: Story, name: str) -> list[int]:
    return sorted(story.lake.rows(f"raw.{name}")["id"].to_pylist())


def ended(story: Story, name: str, run: str) -> dict[str, Any]:
    return story.succeed(f"uses_{name}", run)


def kept_in(story: Story, *texts: str) -> list[str]:
    """Files of Airflow, of the lake and of the control store that hold one of the texts in plain."""
    places = []
    for path in (*story.airflow.home.rglob("*"), *story.lake.folder.rglob("*")):
        if path.is_file() and any(text.encode() in path.read_bytes() for text in texts):
            places.append(str(path))
    return places


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


def test_a_refresh_goes_on_at_the_new_address_and_the_other_never_notices(story: Story, api: SampleApi) -> None:
    connect(story, "moving", api)
    story.airflow.call("POST", "/connections", {**connection("staying", story.api.base_url), "password": KEY})
    story.hold_after(1)
    start(story, "moving", "move")
    start(story, "staying", "move")
    api.wait_for_pages(BEGUN, timeout=PATIENCE)
    story.api.wait_for_pages(1, timeout=PATIENCE)
    api.kill()
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=CANARY) as moved:
        began = time.monotonic()
        assert story.task("uses_staying", "move")["state"] == "running"
        # Both slots are taken: the command line needs none.
        done = cli(story, "alter", f"ALTER CONNECTION moving SET (host = '{moved.base_url}')", "-o", "json")
        assert done.returncode == 0, done.stderr[-3000:]
        wait_for(lambda: moved.counts()["pages"] > 1)
        seconds = time.monotonic() - began
        story.api.set_faults()
        ended(story, "moving", "move")
        served = moved.counts()
        truth = sorted(moved.truth("/partitions/items")["ids"])
    print(f"went on after {seconds:.1f} s, {served['pages']} pages at the new address")
    assert rows(story, "moving") == truth
    result = story.result("uses_moving", "move")
    assert (result["generation"], result["pages"]) == (1, PAGES)
    assert served["pages"] <= PAGES - BEGUN + ROUND_PAGES
    answer = json.loads(done.stdout)
    assert [dependent["dag_id"] for dependent in answer["dependents"]] == ["uses_moving"]
    ended(story, "staying", "move")
    stayed = story.result("uses_staying", "move")
    assert (stayed["attempts"], stayed["pages_refetched"]) == (1, 0)
    assert story.task("uses_staying", "move")["try_number"] == 1


@pytest.mark.gate
def test_a_refresh_that_was_refused_goes_on_with_the_rotated_token_and_no_secret_is_left_behind(story: Story) -> None:
    with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=CANARY, faults=SILENT) as api:
        connect(story, "rotating", api)
        start(story, "rotating", "rotate")
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
        ended(story, "rotating", "rotate")
        truth = sorted(rotated.truth("/partitions/items")["ids"])
    assert result["options"] == {"password": {"before": "***", "after": "***"}}
    assert [dependent["outcome"] for dependent in result["dependents"]] == ["started"]
    assert rows(story, "rotating") == truth
    assert story.result("uses_rotating", "rotate")["generation"] == 1
    history = cli(story, "history", "rotating")
    assert "variable:rotated" in history.stdout, history.stderr[-2000:]
    assert kept_in(story, CANARY, ROTATED) == []


def test_a_blind_change_stalls_the_refresh_and_the_next_one_starts_it_before_its_retry_is_due(story: Story) -> None:
    body = {**connection("waiting", story.api.base_url), "password": KEY}
    story.airflow.call("POST", "/connections", body)
    blind = "ALTER CONNECTION waiting SET (host = 'http://127.0.0.1:9') WITH (VALIDATE = false)"
    assert alter(story, "blind", blind)["result"] == "applied"
    assert story.airflow.call("GET", "/connections/waiting")["host"] == "http://127.0.0.1:9"
    start(story, "waiting", "wait")
    wait_for(lambda: story.task("uses_waiting", "wait")["state"] == "up_for_retry")
    assert "uses_waiting.refresh (wait): it failed (" in cli(story, "dependents", "waiting").stdout
    result = alter(story, "repair", f"ALTER CONNECTION waiting SET (host = '{story.api.base_url}')")
    assert [dependent["outcome"] for dependent in result["dependents"]] == ["started"]
    ended(story, "waiting", "wait")
    assert rows(story, "waiting") == sorted(story.api.truth("/partitions/items")["ids"])


def test_what_is_refused_is_said_and_nothing_is_stored(story: Story) -> None:
    body = {**connection("refused", story.api.base_url), "password": KEY, "extra": json.dumps({"page_size": 20})}
    story.airflow.call("POST", "/connections", body)
    before = story.airflow.call("GET", "/connections/refused")

    def refused(*arguments: str) -> str:
        done = cli(story, *arguments)
        assert done.returncode == 1
        return done.stderr

    assert CANARY not in refused("alter", f"ALTER CONNECTION refused SET (password = '{CANARY}')")
    assert "must be a port" in refused("alter", "ALTER CONNECTION refused SET (port = 'abc')")
    assert "the API did not answer" in refused("alter", "ALTER CONNECTION refused SET (host = 'http://127.0.0.1:9')")
    assert "environment" in refused("alter", "ALTER CONNECTION shop SET (host = 'http://127.0.0.1:9')")
    assert "is not there" in refused("validate", "nowhere")
    assert cli(story, "validate", "refused").returncode == 0
    planned = cli(story, "alter", "ALTER CONNECTION refused SET (extra.page_size = 30)", "--dry-run")
    assert "extra.page_size: 20 -> 30" in planned.stdout
    assert story.airflow.call("GET", "/connections/refused") == before


def test_the_operator_keeps_what_it_is_not_told_to_change(story: Story) -> None:
    extra = {"page_size": 20, "deep": {"a": [1, 2]}, "client_secret": CANARY}
    body = {**connection("kept", story.api.base_url), "password": KEY, "login": "me", "description": "mine"}
    story.airflow.call("POST", "/connections", {**body, "extra": json.dumps(extra)})
    result = alter(story, "kept", "ALTER CONNECTION kept SET (extra.more = true) WITH (VALIDATE = false)")
    assert (result["result"], result["options"]) == ("applied", {"extra.more": {"before": None, "after": "True"}})
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
    assert kept_in(story, CANARY) == []


@contextmanager
def guarded_api(story: Story) -> Iterator[str]:
    """One more API server of the same Airflow, that asks for passwords and tests connections."""
    port, passwords = free_port(), story.airflow.home / "passwords-of-connections.json"
    passwords.write_text(json.dumps({"editor": CANARY, "reader": CANARY}))
    environment = {
        **story.airflow.environment,
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "editor:op,reader:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    command = ["airflow", "api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (story.airflow.home / "guarded-api-server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/api/v2/version"))
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            passwords.unlink()


def test_airflow_decides_who_may_and_tests_connections_where_that_is_enabled(story: Story) -> None:
    api = {**connection("guarded", story.api.base_url), "password": KEY, "description": "mine"}
    story.airflow.call(
        "POST", "/connections", {**api, "extra": json.dumps({"page_size": 20, "test_path": "/customers"})}
    )
    with guarded_api(story) as url:
        for user in ("editor", "reader"):
            body = {"connection_id": f"api_of_{user}", "conn_type": "http", "host": url}
            story.airflow.call("POST", "/connections", {**body, "login": user, "password": CANARY})
        change = "ALTER CONNECTION guarded SET (extra.page_size = 30)"
        assert try_to_alter(story, "reader", change, "api_of_reader") == "failed"
        assert "edit" in story.log("alter", "reader")
        assert try_to_alter(story, "dead", f"{change}, SET (host = 'http://127.0.0.1:9')", "api_of_editor") == "failed"
        assert alter(story, "editor", change, "api_of_editor")["result"] == "applied"
    stored = story.airflow.call("GET", "/connections/guarded")
    assert json.loads(stored["extra"]) == {"page_size": 30, "test_path": "/customers"}
    assert (stored["host"], stored["description"]) == (story.api.base_url, "mine")
    assert kept_in(story, CANARY) == []
