"""Run a command with all its descendants, and measure their cost. Linux only: the figures come from ``/proc``.

A command runs in a session of its own. All processes of that session are its tree, orphans included. This process
adopts the orphans (as a subreaper), so that ``wait4`` returns the CPU time of each. It does not return that of Spark's
Python workers, because their parent ignores SIGCHLD. For these, the last sample counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_EVERY = 0.25
_SURVIVORS_MAY_TAKE = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of one run.

    :ivar wall: seconds from the start of the command to its end
    :ivar cpu: user and system seconds of the whole tree
    :ivar peak_bytes: largest sum of the tree's proportional set sizes, sampled four times a second
    :ivar survivors: processes of the tree that outlived the command
    """

    returncode: int
    wall: float
    cpu: float
    peak_bytes: int
    survivors: int
    stdout: str
    stderr: str


class Tree:
    """A running command and its descendants. It ends with its context, whatever happens."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        _adopt_orphans(True)
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._cpu = 0.0
        self._peak = 0
        self._unwaited: dict[int, float] = {}
        self._done = threading.Event()
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )
        self.session = self._process.pid
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._done.set()
        self._sampler.join()
        _adopt_orphans(False)
        self._out.close()
        self._err.close()

    def running(self) -> bool:
        return self._process.returncode is None and not self._reap(self._process.pid, os.WNOHANG)

    def wait(self) -> Usage:
        """Wait for the command, then a while for its survivors, and end those that stay."""
        if self._process.returncode is None:
            self._reap(self._process.pid, 0)
        wall = time.perf_counter() - self._began
        survivors = len(self._adopted())
        until = time.perf_counter() + _SURVIVORS_MAY_TAKE
        while self._adopted() and time.perf_counter() < until:
            time.sleep(0.02)
        self.kill()
        self._done.set()
        code, cpu = self._process.returncode, self._cpu + sum(self._unwaited.values())
        return Usage(code, wall, cpu, self._peak, survivors, _text(self._out), _text(self._err))

    def kill(self) -> None:
        """Send SIGKILL to the whole tree, until nothing of it is left."""
        if self._process.returncode is None:
            # Not yet reaped, so the group is still ours. One call ends most of the tree at one moment.
            os.killpg(self._process.pid, signal.SIGKILL)
        while members := members_of(self.session):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._process.returncode is None:
                self._reap(self._process.pid, 0)
            self._adopted()
            time.sleep(0.005)

    def _adopted(self) -> list[int]:
        """Reap the members that ended, and return those that are left."""
        for pid in members_of(self.session):
            if pid != self._process.pid:
                with contextlib.suppress(ChildProcessError):
                    self._reap(pid, os.WNOHANG)
        return members_of(self.session)

    def _reap(self, pid: int, flags: int) -> bool:
        ended, status, usage = os.wait4(pid, flags)
        if not ended:
            return False
        self._cpu += usage.ru_utime + usage.ru_stime
        self._unwaited.pop(ended, None)
        if pid == self._process.pid:
            self._process.returncode = os.waitstatus_to_exitcode(status)
        return True

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_EVERY):
            members = members_of(self.session)
            self._peak = max(self._peak, sum(map(memory_of, members)))
            for pid in members:
                with contextlib.suppress(OSError):
                    if parent_ignores_children(pid):
                        self._unwaited[pid] = cpu_of(pid)


def members_of(session: int) -> list[int]:
    """List the processes of a session, also those that ended and are not yet reaped."""
    pids = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                if int(_stat(int(place.name))[3]) == session:
                    pids.append(int(place.name))
    return pids


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that one process has used."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def parent_ignores_children(pid: int) -> bool:
    """Tell whether the parent ignores SIGCHLD, so that no ``wait4`` returns the CPU time of this process."""
    for line in Path(f"/proc/{_stat(pid)[1]}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False


def _stat(pid: int) -> list[str]:
    # Split after the process name, which may hold anything. The next fields: state, parent, group, session.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def memory_of(pid: int) -> int:
    """Return the proportional set size of one process in bytes; 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _adopt_orphans(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
