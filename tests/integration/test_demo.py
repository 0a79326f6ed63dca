"""The demo itself: a real Airflow, a driver killed half way, and no secret in anything that Airflow keeps.

Whatever ends it ends what it has started: Airflow, Spark's driver, the sample API, and its folder.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import psutil
import pytest

from demo import airflow_stack
from demo.airflow_stack import BUSY_SECONDS, AirflowStack
from demo.cleanup import processes_of
from demo.run import API_KEY, good, is_driver, report
from tests import soon
from tests.integration.conftest import ROOT, is_alive, run_python
from tests.soon import PATIENCE

wait_until = partial(soon.wait_until, every=0.1)
STACK = """
import subprocess, sys
from pathlib import Path
from demo import airflow_stack
from demo.cleanup import exit_on_signals

class Stack(airflow_stack.AirflowStack):
    def _migrate(self): pass
    def _start(self, name, arguments):
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        deaf += "; print('up', flush=True); time.sleep(900)"
        child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {deaf!r}], start_new_session=True)"
        self._processes[name] = subprocess.Popen([sys.executable, "-c", child], env=self.environment)
    def _wait_until_healthy(self):
        sys.stdin.read()

exit_on_signals()
folder = Path(sys.argv[1])
with Stack(folder / "airflow", folder, {}, folder=folder):
    pass
"""


def test_a_killed_driver_loses_nothing_and_no_secret_is_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    done = run_python("-m", "demo.run", "--keep", folder, timeout=None)
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


def parent_of(command: list[str], output: IO[str]) -> subprocess.Popen[bytes]:
    """A process whose only business is to be the parent of the command, as `make` is."""
    # Tests may run under nohup, and then what they start has to end at SIGHUP nevertheless.
    code = "import signal, subprocess, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); subprocess.run(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *command], cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=output
    )


@pytest.mark.parametrize("ending", ["TERM", "KILL", "its parent is killed"])
def test_nothing_of_a_stack_outlives_what_started_it(tmp_path: Path, ending: str) -> None:
    """With processes in Airflow's place, whose children are in sessions of their own and deaf to TERM."""
    home = tmp_path / "work" / "airflow"
    home.mkdir(parents=True)
    with (tmp_path / "output").open("w+") as output:
        parent = parent_of([sys.executable, "-c", STACK, str(home.parent)], output)
        wait_until(lambda: (tmp_path / "output").read_text().count("up") == 4)
        [owner] = psutil.Process(parent.pid).children()
        assert len(processes_of(home)) == 8
        if ending == "its parent is killed":
            parent.kill()
        else:
            owner.send_signal(getattr(signal, f"SIG{ending}"))
        wait_until(lambda: not processes_of(home))
        parent.communicate()
        wait_until(lambda: not owner.is_running())
    # One that cleans up leaves its folder to its own `with`; one that can't has it removed.
    if ending == "KILL":
        wait_until(lambda: not home.parent.exists())
    assert "Traceback" not in (tmp_path / "output").read_text()


def test_a_demo_that_is_told_to_end_leaves_neither_airflow_nor_spark_nor_a_folder() -> None:
    before = set(Path(tempfile.gettempdir()).glob("rfr-demo-*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.run"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        while "Airflow is up" not in process.stdout.readline():
            assert process.poll() is None
        [folder] = set(Path(tempfile.gettempdir()).glob("rfr-demo-*")) - before
        home = folder / "airflow"
        wait_until(lambda: any(is_driver(member) for member in processes_of(home)))
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in output
    assert processes_of(home) == []
    assert not [member for member in below if is_alive(member)]
    assert not folder.exists()
