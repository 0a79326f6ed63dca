"""The CPU time that Spark's Python workers spend on a task that does nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, run_python
from tests.integration.standalone import Standalone

JOBS = 20
PROGRAM = f"""
import json, sys
import psutil
from airflow_provider_rfr.refresh.cluster import Cluster

def seconds_of_workers():
    # User and system, of the workers and of those of the daemon that ended.
    tree = psutil.Process(int(sys.argv[1]) or None).children(recursive=True)
    # A worker that just ended has no command line, and its time is the daemon's as soon as that one looks.
    told = [process.as_dict(["name", "cmdline", "cpu_times"], ad_value=()) for process in tree]
    workers = [one for one in told if "daemon" in " ".join(one["cmdline"]) and one["name"] != "java"]
    assert workers
    return sum(sum(one["cpu_times"][:4]) for one in workers)

cluster = Cluster("cost", json.loads(sys.argv[2]), preload=True)
cluster.start()
cluster.run(abs, [-1, -2])
before = seconds_of_workers()
for _ in range({JOBS}):
    assert cluster.run(abs, [-1, -2]) == [1, 2]
print((seconds_of_workers() - before) / {JOBS})
cluster.context.stop()
"""


@pytest.mark.gate
def test_a_job_of_two_tasks_that_do_nothing_costs_the_workers_next_to_no_cpu() -> None:
    done = run_python("-c", PROGRAM, "0", "{}")
    assert float(done.stdout.splitlines()[-1]) < 0.05


def test_nor_does_it_cost_the_workers_of_executors(tmp_path: Path) -> None:
    with Standalone(tmp_path, workers=1, cores=2) as cluster:
        settings = {
            "spark.master": cluster.url,
            "spark.pyspark.python": sys.executable,
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        }
        done = run_python("-c", PROGRAM, str(cluster.workers[0].pid), json.dumps(settings))
    assert float(done.stdout.splitlines()[-1]) < 0.05
