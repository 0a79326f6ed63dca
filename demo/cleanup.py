"""The end of all processes that a demo or a test started, however it ends: by itself, by a signal, or by SIGKILL.

Airflow's processes are found by ``AIRFLOW_HOME`` in their environment, which every child inherits: also the workers of
a scheduler that was killed, and Spark's drivers.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0))


def exit_on_signals() -> None:
    """Raise ``SystemExit`` on SIGTERM, SIGHUP, Ctrl-C and the end of the parent process, so that cleanup runs.

    Under ``nohup``, SIGHUP and the parent's end are ignored.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        for signum in _SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        raise SystemExit(128 + number)

    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    for signum in _SIGNALS[:2] if under_nohup else _SIGNALS:
        signal.signal(signum, leave)
    if not under_nohup and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def processes_of(home: Path) -> list[psutil.Process]:
    """List every process of the Airflow with this ``AIRFLOW_HOME``."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(home):
                processes.append(process)
    return processes


def end_processes(home: Path) -> None:
    """End every process of the Airflow with this ``AIRFLOW_HOME``: by SIGTERM, and after five seconds by SIGKILL."""
    for sent, seconds in _GRACE:
        end = time.monotonic() + seconds
        signalled: set[psutil.Process] = set()
        while (running := processes_of(home)) and time.monotonic() < end:
            for process in set(running) - signalled:
                with suppress(psutil.Error):
                    process.send_signal(sent)
            signalled.update(running)
            time.sleep(0.1)


class Watchdog:
    """A process in a session of its own that ends an Airflow's processes when its owner finishes or dies.

    :param home: the Airflow's ``AIRFLOW_HOME``
    :param folder: folder to remove if the owner dies; an owner that finishes removes it itself
    """

    def __init__(self, home: Path, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "demo.cleanup", str(home), *([str(folder)] if folder else [])],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self) -> None:
        """End the Airflow's processes, and return when they have ended."""
        self._process.communicate(b"done")


def watch(home: Path, folder: Path | None = None) -> None:
    """Wait until standard input is closed, then end the processes. The watchdog runs this."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    closing = sys.stdin.buffer.read()
    end_processes(home)
    if folder is not None and not closing:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(*map(Path, sys.argv[1:]))
