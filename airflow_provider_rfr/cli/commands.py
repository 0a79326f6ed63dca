"""What the commands of ``airflow rfr`` have in common."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from functools import wraps

from airflow_provider_rfr.exceptions import RfrError


def command(work: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Errors of ours are for people: a line each, and exit code 1."""

    @wraps(work)
    def wrapped(args: Namespace) -> None:
        from airflow_provider_rfr.hooks.fields import quiet_masking

        try:
            with quiet_masking():
                code = work(args)
        except RfrError as error:
            print(error, file=sys.stderr)
            code = 1
        if code:
            sys.exit(code)

    return wrapped
