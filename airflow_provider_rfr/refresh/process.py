"""Events that end a driver: signals, and the death of its supervisor.

When a worker is killed for its memory, its Spark driver lives on as an orphan, next to the driver of the retry. The
ledger's epoch protects the table; the watchdog here saves the API and the machine double work. Imports only the
standard library, because the operator uses it, too.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_POLL_SECONDS = 1.0


def process_started(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which with its number identifies it; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Tell whether that very process lives; where there is no /proc, whether a process of that number does."""
    if Path("/proc/self/stat").exists():
        return process_started(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def watch_supervisor(pid: int, started: int, host: str, stop: Callable[[str], None]) -> None:
    """Call ``stop`` with a reason once the supervisor has ended; does nothing on another host, which can't see it."""
    if host != socket.gethostname():
        return

    def poll() -> None:
        waiting = threading.Event()
        while is_alive(pid, started):
            waiting.wait(_POLL_SECONDS)
        stop(f"the process {pid}, for which this refresh ran, has ended")

    threading.Thread(target=poll, name="rfr-watchdog", daemon=True).start()


def stop_on_signals(stop: Callable[[str], None]) -> None:
    """Call ``stop`` with a reason on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: stop(f"received {signal.Signals(received).name}"))
