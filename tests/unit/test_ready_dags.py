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
assert [outlet.name for outlet in task.outlets] == ["rfr:resumable_full_refresh/refresh"]
from airflow.serialization.serialized_objects import DagSerialization
DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
"""


def test_the_ready_dag_parses_and_serialises_without_spark_and_without_a_connection() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


WEBHOOKS = """
import sys
from dags.deliver_webhooks import dag as deliver
from dags.try_webhook import dag as tried
heavy = {"pyspark", "pyiceberg", "pandas", "pyarrow", "pybars"} & set(sys.modules)
assert not heavy, heavy
assert (deliver.task_ids, tried.task_ids) == (["deliver"], ["call"])
assert not {"url", "headers", "signing"} & set(tried.params)
for dag in deliver, tried:
    dag.params.validate()
from airflow.serialization.serialized_objects import DagSerialization
for dag in deliver, tried:
    DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
"""


def test_the_dags_of_webhooks_parse_without_the_lake_and_their_forms_ask_for_no_secret() -> None:
    done = subprocess.run([sys.executable, "-c", WEBHOOKS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


MANIFEST = """
import sys
from dags.airbyte_manifest import dag
heavy = {"airbyte_cdk", "pyspark", "pyiceberg", "pandas", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
assert dag.task_ids == ["refresh"]
assert set(dag.params) == {"manifest", "config", "streams", "target"}
dag.params.validate()
from airflow.serialization.serialized_objects import DagSerialization
DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
"""


def test_the_dag_of_a_manifest_parses_without_the_cdk_and_its_form_asks_for_no_secret() -> None:
    done = subprocess.run([sys.executable, "-c", MANIFEST], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
