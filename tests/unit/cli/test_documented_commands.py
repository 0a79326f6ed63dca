"""Commands in the documentation can be typed, by people as by CI."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from airflow.cli.cli_parser import ALL_COMMANDS_DICT, get_parser

from airflow_provider_rfr.cli import get_rfr_commands

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = ("builtins", "connections", "managed_spark", "upgrade", "webhooks", "webhooks_sealing", "webhooks_templates")
CONSOLE = re.compile(r"^ *```console\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^ *(?:\$ )?airflow (rfr .*)$", re.MULTILINE)
[WORKFLOW] = re.findall(
    r"^```yaml\n# .github/workflows/objects.yml\n(.*?)^```$",
    (DOCS / "builtins.md").read_text(),
    re.DOTALL | re.MULTILINE,
)


def commands() -> Iterator[str]:
    for page in PAGES:
        for block in CONSOLE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8")):
            for command in COMMAND.findall(block):
                # Without the command that follows, the output's file and the comment.
                yield re.split(r" (?:[>#|]|&&|\|\|) ", command)[0].strip()


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    # Airflow 3.1 asks no provider for commands.
    ALL_COMMANDS_DICT.setdefault("rfr", get_rfr_commands()[0])
    return get_parser()


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_of_the_documentation_can_be_typed(command: str, parser: ArgumentParser) -> None:
    assert callable(parser.parse_args(shlex.split(command)).func)


def test_the_workflow_for_ci_plans_each_change_and_applies_that_plan_after_a_push(parser: ArgumentParser) -> None:
    workflow = yaml.safe_load(WORKFLOW)
    [job] = workflow["jobs"].values()
    # YAML 1.1 reads the key "on" as a truth value.
    assert set(workflow[True]) == {"pull_request", "push"}
    options = job["env"]["DEPLOY"].replace("${{ github.run_number }}", "7")
    steps = [step for step in job["steps"] if step.get("run", "").startswith("airflow rfr")]
    # Exit code 2 says that there is something to do.
    assert [step["run"].partition(" || ")[2] for step in steps] == ["test $? -eq 2", ""]
    assert [step.get("if") for step in steps] == [None, "github.event_name == 'push'"]
    words = [shlex.split(step["run"].partition(" || ")[0].replace("$DEPLOY", options))[1:] for step in steps]
    plan, apply = map(parser.parse_args, words)
    assert (plan.subcommand, apply.subcommand, plan.save) == ("plan", "apply", apply.plan)
    assert plan.declared_version == apply.declared_version == "1.7"
