from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import sys
from dags.full_refresh import dag
heavy = {"pyspark", "pyiceberg", "pandas", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
assert dag.task_ids == ["refresh"]
task = dag.get_task("refresh")
assert [outlet.name for outlet in task.outlets] == ["rfr:refresh"]
from airflow.serialization.serialized_objects import DagSerialization
DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
"""


def test_the_ready_dag_parses_and_serialises_without_spark_and_without_a_connection() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
