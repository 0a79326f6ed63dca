"""``python spark_apps/full_refresh.py`` on a terminal and without one, where it can't begin."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.refresh import application
from airflow_provider_rfr.streams import Page, PagedStream
from tests.unit.refresh.test_application import LateSpark
from tests.unit.test_preflight import ROOT, java

pytestmark = pytest.mark.test


def run(config: Path, home: Path, *, on_terminal: bool) -> tuple[list[str], list[str]]:
    """The lines on standard output, a terminal or none, and those on standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    environment |= {"JAVA_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "spark_apps/full_refresh.py", "--config", str(config)]
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False
        )
        out = os.read(ours, 65536).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert done.returncode == 2
    return out.splitlines(), done.stderr.splitlines()


def test_missing_java_is_a_sentence_on_a_terminal_and_json_alone_elsewhere(tmp_path: Path) -> None:
    out, err = run(tmp_path / "refresh.yaml", tmp_path / "gone", on_terminal=True)
    (line,) = map(json.loads, out)
    assert err == [line["error"]["message"]]
    assert err[0].startswith(f"no Java was found in JAVA_HOME, {tmp_path}/gone; run: unset JAVA_HOME")
    out, err = run(tmp_path / "refresh.yaml", tmp_path / "gone", on_terminal=False)
    assert (list(map(json.loads, out)), err) == ([line], [])


def test_a_wrong_configuration_is_a_sentence_on_a_terminal_and_json_alone_elsewhere(tmp_path: Path) -> None:
    home = java(tmp_path / "jdk", 'openjdk version "17.0.15"')
    config = tmp_path / "refresh.yaml"
    config.write_text("streams: [orders]\n")
    out, err = run(config, home, on_terminal=True)
    (line,) = map(json.loads, out)
    assert [*map(str.rstrip, err)] == [*map(str.rstrip, line["error"]["message"].splitlines())] != []
    out, err = run(config, home, on_terminal=False)
    assert (list(map(json.loads, out)), err) == ([line], [])


class Hostile(PagedStream):
    """A stream whose error has what a terminal would obey."""

    name = "hostile"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.public_config = config

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        raise RfrError("no page \x1b[31mtoday")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_refresh_that_failed_ends_with_a_sentence_on_a_terminal(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(application, "Cluster", LateSpark)
    monkeypatch.setattr(application, "stop_on_signals", lambda stop: None)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    source = {"class": f"{__name__}:Hostile"}
    document = {"source": source, "streams": ["hostile"], "target": "raw.pages", "lake": {"properties": properties}}
    path = tmp_path / "refresh.json"
    path.write_text(json.dumps(document))
    assert application.main(str(path), began=0.0) != 0
    told = capsys.readouterr()
    assert "today" in json.loads(told.out.splitlines()[-1])["error"]["message"]
    sentences = [line for line in told.err.splitlines() if line.startswith("hostile failed: ")]
    assert len(sentences) == is_terminal
    assert "\x1b" not in "".join(sentences)
