"""The worked example of docs/builtins.md, from the first plan to the second deploy, as somebody types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from tests.integration.conftest import ROOT

TEXT = (ROOT / "docs" / "builtins.md").read_text()
EXAMPLE = TEXT.partition("## From a plan to the second deploy")[2].partition("\n## ")[0]
[FIRST] = re.findall(r"```yaml\n(# objects/ingest.yaml\n.*?)```", EXAMPLE, re.DOTALL)
[DIFF] = re.findall(r"```diff\n(.*?)```", EXAMPLE, re.DOTALL)
CONSOLE = re.findall(r"```console\n(.*?)```", EXAMPLE, re.DOTALL)
HASHES = re.compile(r"\b[0-9a-f]{12,32}\b")


def changed(text: str, diff: str) -> str:
    """The text after a diff that has no context."""
    lines = diff.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
    assert text.count(old) == 1
    return text.replace(old, new)


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Each ``airflow rfr`` command of a block with the lines that it is said to print."""
    blocks: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ airflow"):
            blocks.append((line.removeprefix("$ ").partition(";")[0], []))
        elif blocks and not line.startswith("$ "):
            blocks[-1][1].append(line)
    return blocks


class Terminal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "objects").mkdir()
        (folder / "airflow").mkdir()
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/w"}
        self.lake = LakeSettings("rfr", properties)
        connection = {
            "conn_type": "rfr_lake",
            "host": properties["uri"],
            "extra": {"warehouse": properties["warehouse"]},
        }
        scripts = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW_CONN_RFR_LAKE_DEFAULT": json.dumps(connection),
            "PATH": f"{scripts}:{os.environ['PATH']}",
        }

    def declare(self, text: str) -> None:
        (self.folder / "objects" / "ingest.yaml").write_text(text)

    def type(self, command: str) -> list[str]:
        done = subprocess.run(
            command.split(), cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )
        print(done.stdout, done.stderr[-3000:])
        return [*done.stdout.splitlines(), f"exit code {done.returncode}"]

    def follow(self, block: str) -> None:
        """Everything that the block says is printed."""
        for command, expected in commands(block):
            printed = [HASHES.sub("#", line).rstrip() for line in self.type(command)]
            for line in expected:
                if line != "..." and not line.startswith("deploy "):
                    assert HASHES.sub("#", line).rstrip() in printed, (command, line)
            if any(line.startswith("deploy ") for line in expected):
                assert any(line.startswith("deploy #: done") for line in printed)


def test_the_worked_example_prints_what_it_says(tmp_path: Path) -> None:
    first, blocked, second = CONSOLE
    terminal = Terminal(tmp_path)
    terminal.declare(FIRST)
    terminal.follow(first)
    table = open_catalog(terminal.lake).load_table("ops.ingest_runs")
    rows = [{"run_id": run_id, "finished_at": None, "records": said} for run_id, said in (("a", "12"), ("b", None))]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    expected = changed(FIRST, DIFF)
    terminal.declare(expected)
    terminal.follow(blocked)
    (entry,) = re.findall(r"write:  (- \{.*\}\})", blocked)
    (column,) = re.findall(r"- \{name: records, .*\}", expected)
    terminal.declare(expected.replace(column, entry))
    terminal.follow(second)
    now = open_catalog(terminal.lake).load_table("ops.ingest_runs").scan().to_arrow().to_pylist()
    assert sorted((row["run_id"], row["records"], row["attempts"]) for row in now) == [
        ("a", 12, None),
        ("b", None, None),
    ]
