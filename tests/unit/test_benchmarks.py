"""The benchmarks run at their smallest, and a kill leaves nothing of a tree of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import chart, kept, page
from benchmarks.processes import Tree, members_of
from benchmarks.shapes import SHAPES
from tests.soon import PATIENCE

TWO_SLEEPERS = (
    "import os, subprocess, sys, time\n"
    "subprocess.Popen(['sleep', '60'], preexec_fn=lambda: os.setpgid(0, 0))\n"
    "print('ready', flush=True)\ntime.sleep(60)\n"
)
# A parent that ignores the end of its worker, as Spark's does, so that the worker's cost is nobody's.
IGNORED_WORKER = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "if not os.fork():\n"
    "    while time.process_time() < 2: pass\n"
    "    time.sleep(1)\n"
    "    os._exit(0)\n"
    "try:\n    os.wait()\nexcept ChildProcessError:\n    pass\n"
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
def test_the_cost_of_a_worker_counts_though_its_parent_does_not_wait_for_it() -> None:
    with Tree([sys.executable, "-c", IGNORED_WORKER]) as tree:
        usage = tree.wait()
    assert usage.returncode == 0
    assert usage.cpu > 1.5


@pytest.mark.test
def test_a_refresh_and_the_script_written_by_hand_are_measured_and_the_last_line_is_json() -> None:
    command = [sys.executable, "-m", "benchmarks.refresh", "--shape", "tiny", "--runs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    tiny = json.loads(done.stdout.splitlines()[-1])["shapes"]["tiny"]
    assert all(tiny[side]["wall_s"] > 0 and tiny[side]["peak_mb"] > 0 for side in ("plain", "product"))
    assert "wall, s" in done.stdout


@pytest.mark.full
def test_streams_and_a_killed_chain_are_published_whole() -> None:
    command = [sys.executable, "-m", "benchmarks.refresh", "--shape", "S12", "chain", "--runs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    (kill,) = json.loads(done.stdout.splitlines()[-1])["shapes"]["chain"]["kills"]
    assert kill["rows_published"] == kill["rows_source"] == 200_000


def test_the_documentation_shows_the_kept_figures() -> None:
    figures = kept.read()
    assert set(figures["shapes"]) == set(SHAPES)
    text = (page.DOCS / "benchmarks.md").read_text()
    assert text.partition(page.BEGIN)[2].partition(page.END)[0].strip() == page.tables(figures).strip()
    drawn = chart.draw(figures)
    assert (page.DOCS / "images" / "benchmarks.svg").read_text() == drawn
    ElementTree.fromstring(drawn)


def test_a_change_compares_ratios_and_so_forgets_the_speed_of_the_machine() -> None:
    slow = {"product": {"wall_s": 20.0}, "plain": {"wall_s": 10.0}}
    fast = {"product": {"wall_s": 3.0}, "plain": {"wall_s": 1.0}}
    assert kept.ratio(slow, "wall_s") == 2
    assert kept.change(fast, slow, "wall_s") == 1.5
    assert kept.change(fast, {}, "wall_s") is None


def test_figures_of_shapes_that_were_not_measured_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept.write({"release": "1.0.0", "shapes": {"A": {"runs": 5}, "B": {"runs": 5}}}, path)
    kept.write({"release": "1.1.0", "shapes": {"A": {"runs": 3}}}, path)
    assert kept.read(path) == {"release": "1.1.0", "shapes": {"A": {"runs": 3}, "B": {"runs": 5}}}


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


@pytest.mark.full
def test_the_merge_benchmark_counts_every_table() -> None:
    command = [sys.executable, "-m", "benchmarks.merge", "--rows", "20000", "--files", "2", "--product-only"]
    command += ["--runs", "1", "--case", "newest:100", "random:1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["int"]["product"]
    assert figures["random:1000"]["changes"]["deleted"] == 20
