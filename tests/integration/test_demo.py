"""The demo itself: a real Airflow, a driver killed half way, and no secret in anything that Airflow keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from demo import airflow_stack
from demo.airflow_stack import BUSY_SECONDS, AirflowStack
from demo.run import API_KEY, good, report
from tests.integration.conftest import ROOT


def test_a_killed_driver_loses_nothing_and_no_secret_is_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "demo.run", "--keep", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["missing"] == figures["duplicates"] == 0
    assert figures["rows_published"] == figures["rows_source"]
    assert figures["pages_refetched"] <= 0.05 * figures["pages_fetched_before_kill"] + 8  # and those in flight
    assert [file for file in folder.rglob("*") if file.is_file() and API_KEY.encode() in file.read_bytes()] == []


@pytest.mark.check
def test_a_refresh_that_failed_is_reported_without_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"pages_total": 960, "pages_fetched_before_kill": 0, "pages_refetched": 0, "task_state": "failed"}
    assert not good(figures)
    report(figures)
    lines = capsys.readouterr().out.splitlines()
    assert "THIS IS NOT WHAT SHOULD HAVE HAPPENED" in lines
    assert json.loads(lines[-1]) == figures


@pytest.mark.check
def test_the_sentences_of_a_failed_task_are_told_once_each_and_not_its_whole_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "dag_id=shop" / "run_id=one" / "attempt=1.log"
    log.parent.mkdir(parents=True)
    lines = [{"level": "info", "event": "Submitting"}, *[{"level": "error", "event": "items: no such host"}] * 2]
    log.write_text("\n".join([*map(json.dumps, lines), "not JSON"]))
    assert AirflowStack(tmp_path, tmp_path, {}).task_errors() == ["items: no such host"]


@pytest.mark.check
def test_a_request_that_waited_for_the_database_as_long_as_sqlite_does_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, answers = 0.0, [(500, '{"reason": "Database error"}'), (200, '{"state": "queued"}')]

    def request(*_: object) -> tuple[int, str]:
        nonlocal now
        now += BUSY_SECONDS + 1
        return answers.pop(0)

    stack = AirflowStack(tmp_path, tmp_path, {})
    monkeypatch.setattr(stack, "_request", request)
    monkeypatch.setattr(airflow_stack, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None))
    assert stack.call("POST", "/dags/shop/dagRuns") == {"state": "queued"}
