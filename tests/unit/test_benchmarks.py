"""The benchmarks run at their smallest, and a kill leaves nothing of a tree of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.processes import Tree, members_of
from tests.soon import PATIENCE

TWO_SLEEPERS = (
    "import os, subprocess, sys, time\n"
    "subprocess.Popen(['sleep', '60'], preexec_fn=lambda: os.setpgid(0, 0))\n"
    "print('ready', flush=True)\ntime.sleep(60)\n"
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.test
def test_a_kill_ends_the_whole_tree_and_nothing_else() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    with Tree([sys.executable, "-c", TWO_SLEEPERS]) as tree:
        while len(members_of(tree.session)) < 2:
            time.sleep(0.02)
        assert tree.running()
        tree.kill()
        assert not tree.running()
        assert members_of(tree.session) == []
    os.kill(bystander.pid, 0)
    bystander.kill()
    bystander.wait()


@pytest.mark.test
def test_the_baseline_is_measured_alone_and_ends_with_one_json_line() -> None:
    command = [sys.executable, "benchmarks/refresh.py", "--shape", "tiny", "--runs", "1", "--baseline-only"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["tiny"]["baseline"]["wall_s"] > 0
    assert "wall, s" in done.stdout


@pytest.mark.full
def test_the_scale_benchmark_runs_at_its_smallest() -> None:
    command = [sys.executable, "-m", "benchmarks.scale", "--small", "--only", "open", "--only", "resume"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert [run["size"] for run in figures["open"]] == [1_000]
    assert figures["resume"][0]["seconds"] > 0


@pytest.mark.full
def test_the_webhook_benchmark_delivers_everything() -> None:
    command = [sys.executable, "-m", "benchmarks.webhooks", "--endpoints", "4", "--each", "20", "--pairs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["deliveries"] == 80
    assert all(figures[dead]["lost"] == figures[dead]["doubled"] == 0 for dead in ("refusing", "silent"))
