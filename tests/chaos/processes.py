"""One attempt at a refresh, as the processes it consists of. Linux only: they are found in ``/proc``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import members_of
from tests.chaos.plan import Victim

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "spark_apps" / "full_refresh.py"
MIGRATION = ROOT / "spark_apps" / "builtin_migration.py"
SUPERVISOR = ROOT / "tests" / "chaos" / "supervisor.py"
WORKERS = ("worker_daemon", "pyspark.daemon", "pyspark/daemon.py")


@dataclass(frozen=True, slots=True)
class Member:
    """A live process of an attempt."""

    pid: int
    name: str
    command: str

    @property
    def role(self) -> Victim | None:
        if self.name == "java":
            return Victim.JVM
        if str(SUPERVISOR) in self.command:
            return Victim.SUPERVISOR
        if any(str(app) in self.command for app in (APP, MIGRATION)):
            return Victim.DRIVER
        return Victim.WORKER if any(name in self.command for name in WORKERS) else None


class Attempt:
    """A run of an application in a session of its own, which outlives the process that was started where that one is
    killed."""

    def __init__(self, config: Path, output: Path, *, supervised: bool, app: Path = APP) -> None:
        self.output_file = output
        self.supervised = supervised
        command = [sys.executable, str(app)]
        command = [sys.executable, str(SUPERVISOR), str(config), *command] if supervised else command
        command += [] if supervised else ["--config", str(config)]
        master = {"PYSPARK_SUBMIT_ARGS": "--master local[2,4] pyspark-shell"}
        environment = {**os.environ, **master, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.began = time.monotonic()
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        return self.output_file.read_text(errors="replace")

    def figures(self) -> dict[str, Any]:
        """The JSON object of the last line; empty where the attempt was killed before it."""
        for line in reversed(self.output().splitlines()):
            if line.startswith('{"') and line.endswith("}"):
                with contextlib.suppress(ValueError):
                    return dict(json.loads(line))
        return {}

    def members(self) -> list[Member]:
        """Live processes of the session, orphans too."""
        found = []
        self._process.poll()
        for pid in members_of(self._process.pid):
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text()
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if stat.rpartition(")")[2].split()[0] != "Z":
                    found.append(Member(pid, stat.partition("(")[2].rpartition(")")[0], command))
        return sorted(found, key=lambda member: member.pid)

    def find(self, victim: Victim, pick: float) -> int | None:
        """The process of that role, or one of several; None while there is none."""
        pids = [member.pid for member in self.members() if member.role is victim]
        return pids[min(int(pick * len(pids)), len(pids) - 1)] if pids else None

    def end(self) -> None:
        """SIGKILL to whatever is left."""
        while members := self.members():
            for member in members:
                send(member.pid, signal.SIGKILL)
            time.sleep(0.01)
        self._process.wait()


def send(pid: int, number: signal.Signals) -> bool:
    """Whether the signal was sent; False where the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
