"""A large catalog is planned fast, and a larger one not much slower for its size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.full
def test_the_benchmark_ends_with_its_figures() -> None:
    command = [sys.executable, "-m", "benchmarks.plan", "--sizes", "300", "600", "--repeat", "2", "--limit", "60"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"] and figures["slowest_cpu_seconds"] > 0
    runs = figures["cases"]
    assert set(runs) == {"unchanged", "one_in_a_hundred", "every_table", "first", "load"}
    for sizes in runs.values():
        assert [(size["objects"], size["edges"]) for size in sizes] == [(300, 900), (600, 1800)]
    steps = {name: run[-1]["steps"] for name, run in runs.items()}
    assert steps["load"] == steps["unchanged"] == 0
    # A view that feels a change is bridged before it, and defined again after it.
    assert 0 < steps["one_in_a_hundred"] < steps["every_table"] < 2 * steps["first"] == 2 * 600
    assert set(figures["slopes"]) == set(runs)
