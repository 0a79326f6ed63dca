"""What all commands have in common, by Airflow's own parser."""

from __future__ import annotations

import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand
from airflow.cli.cli_parser import get_parser

from airflow_provider_rfr.cli import get_rfr_commands


def commands(group: GroupCommand, *words: str) -> Iterator[tuple[str, ActionCommand]]:
    for subcommand in group.subcommands:
        if isinstance(subcommand, GroupCommand):
            yield from commands(subcommand, *words, subcommand.name)
        else:
            yield " ".join((*words, subcommand.name)), subcommand


def groups(group: GroupCommand) -> Iterator[GroupCommand]:
    for subcommand in group.subcommands:
        if isinstance(subcommand, GroupCommand):
            yield subcommand
            yield from groups(subcommand)


COMMANDS = dict(commands(get_rfr_commands()[0]))


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    return get_parser()


def typed(name: str) -> list[str]:
    """The words after ``airflow`` in the command's example."""
    return shlex.split((COMMANDS[name].epilog or "").removeprefix("Example: airflow ").partition(" | ")[0])


def test_each_command_s_help_ends_with_an_example_that_can_be_typed(parser: ArgumentParser) -> None:
    for name, command in COMMANDS.items():
        assert (command.epilog or "").startswith(f"Example: airflow rfr {name}")
        assert callable(parser.parse_args(typed(name)).func)


def test_names_of_files_are_paths_which_need_not_be_utf_8() -> None:
    arguments = [argument.kwargs for command in COMMANDS.values() for argument in command.args]
    files = [kwargs for kwargs in arguments if kwargs.get("metavar") in ("FILE", "DIR", "PATH")]
    assert files
    for kwargs in files:
        assert kwargs["type"]("\udcff") == Path("\udcff")


def test_every_command_speaks_json(parser: ArgumentParser) -> None:
    for name in COMMANDS.keys() - {"source read", "load"}:  # which print nothing but JSON
        assert parser.parse_args([*typed(name), "--json"]).output == "json", name


def test_everything_that_may_be_left_out_says_its_default() -> None:
    for name, command in COMMANDS.items():
        parser = ArgumentParser(add_help=False)
        for argument in command.args:
            argument.add_to_parser(parser)
        for option in parser._actions:
            shown = str(option.help) % {"default": option.default}
            if not option.required and option.option_strings != ["--json"]:  # which is another name of --output
                assert "(default: " in shown, (name, option.option_strings, option.dest)
                assert str(option.default or "") in shown, (name, option.option_strings)


def test_descriptions_are_sentences_that_begin_with_a_verb() -> None:
    """The help of an argument begins with a capital letter as well, unless with a name."""
    [rfr] = get_rfr_commands()
    described = [rfr, *groups(rfr), *COMMANDS.values()]
    verbs = {
        *("Begin", "Cancel", "Change", "Check", "Decide", "Delete", "Deploy", "Drop", "Expire", "Follow", "Hold"),
        *(
            "Load",
            "Print",
            "Queue",
            "Read",
            "Refresh",
            "Remove",
            "Render",
            "Replay",
            "Resume",
            "Run",
            "Send",
            "Set",
            "Show",
        ),
        *("Take", "Try", "Write"),
    }
    for command in described:
        sentence = command.description or ""
        assert sentence.partition(" ")[0].strip(",") in verbs, command.name
        assert sentence.endswith(".") and not sentence.endswith(".."), command.name
        assert sentence.startswith(command.help) and not command.help.endswith("."), command.name
    for name, command in COMMANDS.items():
        for argument in command.args:
            text = argument.kwargs["help"]
            assert text[0].isupper() or text.startswith("namespace.table"), (name, argument.flags)
            assert not text.endswith("."), (name, argument.flags)


def test_an_option_has_one_spelling_and_one_kind_of_value_in_all_commands() -> None:
    spellings: dict[str, set[tuple[str, ...]]] = {}
    values: dict[str, set[Any]] = {}
    for command in COMMANDS.values():
        for argument in command.args:
            parser = ArgumentParser(add_help=False)
            argument.add_to_parser(parser)
            [option] = parser._actions
            if option.option_strings and option.dest != "output":
                spellings.setdefault(option.dest, set()).add(tuple(option.option_strings))
                values.setdefault(option.dest, set()).add((option.metavar, option.type, type(option)))
    assert {name: kinds for name, kinds in values.items() if len(kinds) > 1} == {}
    assert {name: forms for name, forms in spellings.items() if len(forms) > 1 or len(min(forms)) > 1} == {}


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("get_parser().parse_args(['rfr', 'refresh', 'list'])", ("pyiceberg", "pyspark", "pyarrow", "airbyte_cdk")),
        (
            "import airflow_provider_rfr.refresh.inspection",
            ("pyspark", "pyiceberg.catalog.rest", "airflow.models.dagrun"),
        ),
        ("import airflow_provider_rfr.hooks.task_states as tasks; tasks._states([])", ("airflow.models.taskinstance",)),
    ],
)
def test_a_command_imports_no_library_that_it_does_not_need(code: str, heavy: tuple[str, ...]) -> None:
    program = f"""
import sys
from airflow.cli.cli_parser import ALL_COMMANDS_DICT, get_parser
from airflow_provider_rfr.cli import get_rfr_commands
ALL_COMMANDS_DICT.setdefault("rfr", get_rfr_commands()[0])
before = set(sys.modules)
{code}
print(*set({heavy}) & (set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
