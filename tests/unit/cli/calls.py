"""``airflow rfr ...`` in this process, by Airflow's own parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.cli.cli_parser import get_parser


def rfr(*arguments: Any) -> int:
    """``airflow rfr ...``; returns the exit code."""
    args = get_parser().parse_args(["rfr", *map(str, arguments)])
    try:
        args.func(args)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """What it printed as JSON."""
    return json.loads(capsys.readouterr().out)
