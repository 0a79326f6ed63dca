"""Real processes for tests that kill: forked from a server that has imported what they run, so that they start at once.

A kill is a SIGKILL to a process of its own, as anywhere else; only the imports are shared.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

from tests.soon import PATIENCE

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.integration.webhook_program", "tests.integration.sink_program"])
# A process's exit code is read once, from a pipe: a second thread that reads it at the same time finds 255.
_READING = threading.Lock()


def start(program: Callable[[Any], None], task: Any) -> ForkServerProcess:
    """A process that runs the program; what it prints is pytest's own output.

    :param program: of a module
    :param task: its argument, which can be pickled
    """
    process = _CONTEXT.Process(target=program, args=(task,), daemon=True)
    process.start()
    return process


def exit_code(process: ForkServerProcess) -> int:
    """The exit code of a process that ends by itself, or that somebody has killed; a signal's number is negative."""
    with _READING:
        process.join(PATIENCE)
    assert process.exitcode is not None, f"it still runs after {PATIENCE:g} s"
    return process.exitcode
