"""Run ``airflow rfr`` as ``python -m airflow_provider_rfr``, for Airflow 3.1, which has no commands of providers."""

from __future__ import annotations

import sys

from airflow.__main__ import main
from airflow.cli import cli_parser

from airflow_provider_rfr.cli import get_rfr_commands

if __name__ == "__main__":
    [group] = get_rfr_commands()
    cli_parser.ALL_COMMANDS_DICT[group.name] = group
    sys.argv.insert(1, group.name)
    main()  # type: ignore[no-untyped-call]
