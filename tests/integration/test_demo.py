"""The demo itself: a real Airflow, a driver killed half way, and no secret in anything that Airflow keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.run import API_KEY
from tests.integration.conftest import ROOT


@pytest.mark.test
@pytest.mark.timeout(300)
def test_a_killed_driver_loses_nothing_and_no_secret_is_left_behind(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "demo.run", "--keep", str(kept)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["missing"] == figures["duplicates"] == 0
    assert figures["rows_published"] == figures["rows_source"]
    assert figures["pages_refetched"] <= 0.05 * figures["pages_fetched_before_kill"] + 8  # and those in flight
    assert [file for file in kept.rglob("*") if file.is_file() and API_KEY.encode() in file.read_bytes()] == []
