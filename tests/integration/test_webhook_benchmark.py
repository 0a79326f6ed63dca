"""The benchmark of the webhooks measures what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.soon import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_delivers_everything_and_ends_with_its_figures() -> None:
    command = [sys.executable, "-m", "benchmarks.webhooks", "--endpoints", "4", "--each", "20", "--pairs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert figures["deliveries"] == 80
    for dead in ("refusing", "silent"):
        assert (figures[dead]["lost"], figures[dead]["doubled"]) == (0, 0)
        assert figures[dead]["per_s"] > 0
