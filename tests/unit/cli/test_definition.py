"""What all commands have in common, by Airflow's own parser."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from collections.abc import Iterator

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand
from airflow.cli.cli_parser import get_parser

from airflow_provider_rfr.cli.definition import get_rfr_commands

DOCUMENTS = {"triggers render", "triggers schema", "triggers seal", "builtins graph"}
"""What these print is a document of its own."""


def commands(group: GroupCommand, *words: str) -> Iterator[tuple[str, ActionCommand]]:
    for each in group.subcommands:
        if isinstance(each, GroupCommand):
            yield from commands(each, *words, each.name)
        else:
            yield " ".join((*words, each.name)), each


COMMANDS = dict(commands(get_rfr_commands()[0]))


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    return get_parser()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_s_help_ends_with_an_example_that_can_be_typed(name: str, parser: ArgumentParser) -> None:
    epilog = COMMANDS[name].epilog or ""
    assert epilog.startswith(f"Example: airflow rfr {name}")
    typed = epilog.removeprefix("Example: airflow ").partition(" | ")[0]
    assert callable(parser.parse_args(shlex.split(typed)).func)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - DOCUMENTS))
def test_every_command_speaks_json(name: str, parser: ArgumentParser) -> None:
    typed = (COMMANDS[name].epilog or "").removeprefix("Example: airflow ")
    assert parser.parse_args([*shlex.split(typed), "--json"]).output == "json"
