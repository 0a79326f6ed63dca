"""A driver whose parent died ends by itself.

When a worker is killed for its memory, its Spark driver lives on as an orphan, beside the driver of the retry. The
ledger's epoch keeps the table right; this keeps the API and the machine from double work.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0


def process_started(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which tells it from a later one of its number; None if gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether that very process lives; True where the machine can't tell."""
    if not Path("/proc/self/stat").exists():
        return _answers(pid)
    return process_started(pid) == started


def watch_supervisor(pid: int, started: int, host: str, stop: Callable[[str], None]) -> None:
    """Call ``stop`` once when the supervisor is gone; does nothing on another host, where it can't be seen."""
    if host != socket.gethostname():
        return

    def poll() -> None:
        waiting = threading.Event()
        while is_alive(pid, started):
            waiting.wait(_POLL_SECONDS)
        stop(f"the process {pid} that this refresh ran for is gone")

    threading.Thread(target=poll, name="rfr-watchdog", daemon=True).start()


def stop_on_signals(stop: Callable[[str], None]) -> None:
    """Let SIGTERM and SIGINT end the round at hand, commit it, and end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: stop(f"received {signal.Signals(received).name}"))


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
