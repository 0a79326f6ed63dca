"""The checks of a deferred refresh in Kubernetes, in a Python of their own.

Airflow's Kubernetes provider is kept apart from the development environment: the Spark provider's operator imports its
client wherever it finds it, which takes seconds in each process of each test.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.integration.conftest import ROOT

APART = ROOT / ".venv" / "kubernetes"


@pytest.mark.parametrize("tier", [pytest.param("gate", marks=pytest.mark.gate), "full"])
@pytest.mark.skipif(not APART.is_dir(), reason=f"{APART} is missing: scripts/setup.sh makes it")
def test_a_deferred_refresh_in_kubernetes(tier: str) -> None:
    options = ["-q", "-m", tier, "-p", "no:cacheprovider", "tests/integration/kubernetes_checks.py"]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{APART}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
