"""``airflow rfr load``: a file's refresh by the command, killed and run again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.airflow_versions import rfr_command
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import PYTHON_PATH, Lake, assert_whole, kill_group
from tests.soon import PATIENCE, wait_until

KEY = "canary-9a3d-key"
PARTITIONS, PAGES = 8, 40
Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def api() -> Iterator[SampleApi]:
    sizes = Sizes(partitions=PARTITIONS, pages=PAGES, page_records=10)
    with SampleApi(sizes, latency_ms=60, api_key=KEY) as running:
        yield running


@pytest.fixture
def start(lake: Lake, api: SampleApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the command in a process group of its own, from another folder than its file's."""
    set_connections(monkeypatch, lake, api)
    shutil.copy(SHOP, tmp_path / "shop.yaml")
    arguments = {
        "source": {"file": "shop.yaml", "config": {"partitions": PARTITIONS, "page_size": 10}},
        "streams": ["items"],
        "target": "raw.items",
        "api_conn_id": "shop",
        "lake_conn_id": "lake",
        "options": {"concurrency": 8, "round_seconds": 1, "spark": "always"},
    }
    (tmp_path / "load.json").write_text(json.dumps(arguments))
    started: list[subprocess.Popen[str]] = []

    def call() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            rfr_command("load", str(tmp_path / "load.json")),
            cwd="/",
            env={**os.environ, **PYTHON_PATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            kill_group(process)


def figures(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    """Return the JSON that is alone on standard output."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err[-6000:]
    assert KEY not in out + err
    [line] = out.splitlines()
    return dict(json.loads(line))


@pytest.mark.gate
def test_a_load_that_is_killed_is_continued_by_the_same_command(api: SampleApi, lake: Lake, start: Start) -> None:
    process = start()
    api.wait_for_pages(PARTITIONS * PAGES // 2)
    kill_group(process)
    assert not lake.has("raw.items")
    result = figures(start())
    assert_whole(lake, api)
    assert (result["generation"], result["attempts"], result["rows"]) == (1, 2, PARTITIONS * PAGES * 10)
    assert result["pages_fetched"] < PARTITIONS * PAGES
    # What was published is not resumed: the next load is a refresh of its own.
    assert figures(start())["generation"] == 2


def test_the_application_does_not_outlive_the_command(api: SampleApi, lake: Lake, start: Start) -> None:
    process = start()
    api.wait_for_pages(PARTITIONS * PAGES // 4)
    [application] = psutil.Process(process.pid).children()
    assert KEY not in str(application.cmdline()) + str(application.environ())
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not application.is_running() or application.status() == psutil.STATUS_ZOMBIE)
    assert figures(start())["rows"] == PARTITIONS * PAGES * 10
    assert_whole(lake, api)


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.kill, signal.SIGTERM, id="SIGTERM to the command"),
        pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C"),
    ],
)
def test_a_load_that_is_stopped_ends_after_its_round(
    api: SampleApi, lake: Lake, start: Start, send: Callable[[int, int], None], number: int
) -> None:
    process = start()
    api.wait_for_pages(PARTITIONS * PAGES // 4)
    send(process.pid, number)
    assert figures(process, code=1)["error"]["type"] == "RefreshStoppedError"
    assert figures(start())["attempts"] == 2
    assert_whole(lake, api)


def test_a_stream_that_fails_gives_the_exit_code_of_the_application(api: SampleApi, start: Start) -> None:
    api.set_faults({"kind": "error", "path": "/partitions/*", "status": 403})
    process = start()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "403" in json.loads(out)["error"]["message"]
    assert KEY not in out + err
