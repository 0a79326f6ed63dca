"""The CPU time that Spark's Python workers spend on a task that does nothing."""

from __future__ import annotations

import pytest

from tests.integration.conftest import run_python

JOBS = 20
PROGRAM = f"""
import psutil
from airflow_provider_rfr.refresh.cluster import Cluster

def seconds_of_workers():
    # User and system, of the workers and of those of the daemon that ended.
    tree = psutil.Process().children(recursive=True)
    workers = [process for process in tree if process.name() != "java"]
    assert workers
    return sum(sum(process.cpu_times()[:4]) for process in workers)

cluster = Cluster("cost", preload=True)
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
    done = run_python("-c", PROGRAM)
    assert float(done.stdout.splitlines()[-1]) < 0.05
