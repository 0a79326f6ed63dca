"""Whatever ends the demo ends what it has started: Airflow, Spark's driver, the sample API, and its folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import IO

import psutil
import pytest

from demo.cleanup import processes_of
from demo.run import is_driver
from tests import soon
from tests.integration.conftest import ROOT, is_alive
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
        assert process.stdout is not None
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
