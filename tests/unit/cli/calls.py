"""``airflow rfr ...`` in this process, by Airflow's own parser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from airflow.cli.cli_parser import ALL_COMMANDS_DICT, get_parser

from airflow_provider_rfr.cli import get_rfr_commands


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Rfr = Callable[..., Printed]
"""Takes words of the command line, and ``code``, the exit code that is expected."""


def rfr(*arguments: Any) -> int:
    """``airflow rfr ...``; returns the exit code."""
    # Airflow 3.1 asks no provider for commands.
    ALL_COMMANDS_DICT.setdefault("rfr", get_rfr_commands()[0])
    args = get_parser().parse_args(["rfr", *map(str, arguments)])
    try:
        args.func(args)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """What it printed as JSON."""
    return json.loads(capsys.readouterr().out)
