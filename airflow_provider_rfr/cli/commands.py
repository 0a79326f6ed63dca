"""What the commands of ``airflow rfr`` have in common."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final

from airflow_provider_rfr.exceptions import RfrError

_CONTEXT: Final = "_AIRFLOW_PROCESS_CONTEXT"


def command(work: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """A command: connections are found where Airflow's own commands find them; errors of ours are a line each, and exit
    code 1. So is a reader that has gone, as in ``| head``, without a line."""

    @wraps(work)
    def wrapped(args: Namespace) -> None:
        from airflow_provider_rfr.hooks.fields import quiet_masking

        try:
            with quiet_masking(), _with_stored_connections():
                code = work(args)
            sys.stdout.flush()
        except RfrError as error:
            print(error, file=sys.stderr)
            code = 1
        except BrokenPipeError:
            # What is still buffered would fail once more when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        if code:
            sys.exit(code)

    return wrapped


@contextmanager
def _with_stored_connections() -> Iterator[None]:
    """Airflow looks for connections in its database only in a process that says it is a server's."""
    from airflow_provider_rfr.hooks.connection_database import can_be_reached

    if _CONTEXT in os.environ or not can_be_reached():
        yield
        return
    os.environ[_CONTEXT] = "server"
    try:
        yield
    finally:
        del os.environ[_CONTEXT]
