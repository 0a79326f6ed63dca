"""The ready DAGs parse in a process that has loaded nothing heavy, and their forms ask for no secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARSE = """
import sys
from dags.{module} import dag
heavy = {{"airbyte_cdk", "pyspark", "pyiceberg", "pandas", "pyarrow", "pybars"}} & set(sys.modules)
assert not heavy, heavy
{checks}
from tests.airflow_versions import DagSerialization
DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
"""
CHECKS = {
    "full_refresh": """
assert dag.task_ids == ["refresh"]
assert [outlet.name for outlet in dag.get_task("refresh").outlets] == ["rfr:resumable_full_refresh/refresh"]
""",
    "incremental_sync": """
from dags.incremental_sync import in_full
assert dag.task_ids == ["refresh"]
assert (dag.max_active_runs, dag.is_paused_upon_creation, in_full.is_paused_upon_creation) == (1, True, True)
trigger = in_full.get_task("trigger")
assert (trigger.trigger_dag_id, trigger.conf) == (dag.dag_id, {"full_refresh": True})
dag.params.validate()
""",
    "deliver_webhooks": """
assert dag.task_ids == ["deliver"]
dag.params.validate()
""",
    "manage_webhooks": """
assert dag.task_ids == ["manage"]
dag.params.validate()
""",
    "try_webhook": """
assert dag.task_ids == ["call"]
assert not {"url", "headers", "signing"} & set(dag.params)
dag.params.validate()
""",
    "airbyte_manifest": """
assert dag.task_ids == ["refresh"]
assert set(dag.params) == {"manifest", "config", "streams", "target"}
dag.params.validate()
""",
}


@pytest.mark.parametrize("module", CHECKS)
def test_a_ready_dag_parses_and_serialises_without_the_lake_and_without_a_connection(module: str) -> None:
    program = PARSE.format(module=module, checks=CHECKS[module])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
