"""Every service of docker-compose.yaml, by its own command and health check, and the ready DAG on all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.postgres import binaries

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_the_stack_runs_without_containers() -> None:
    binaries()  # skips, and fails in CI, where PostgreSQL is not installed
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo.bare_machine"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(1100)
        finally:
            if process.poll() is None:
                # It ends what it started.
                process.terminate()
                process.wait(60)
        output.seek(0)
        text = output.read()
    assert code == 0, text[-6000:]
    figures = json.loads(text.splitlines()[-1])
    assert figures == {
        "healthy": 12,
        "services": 12,
        "state": "success",
        "log_in_ui": True,
        "secrets_in_log": 0,
        "webhooks": "skipped",
        "migrations": 0,
        "control_store": "postgresql+psycopg2",
        "rows_shown": 10,
        "rows": 20_000,
        "missing": 0,
        "doubled": 0,
    }
