"""The DAGs in docs/incremental.md are DAGs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_provider_rfr.operators import IncrementalSyncOperator
from airflow_provider_rfr.sample_api import SHOP

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "incremental.md").read_text()


def test_the_example_parses_to_an_hourly_and_a_weekly_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    [example] = re.findall(r"```python\n# \$AIRFLOW_HOME/dags/shipments\.py\n(.*?)```", TEXT, re.DOTALL)
    made: list[DAG] = []
    enter = DAG.__enter__

    def note(dag: DAG) -> DAG:
        made.append(dag)
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", note)
    monkeypatch.chdir(SHOP.parent)
    exec(compile(example, "shipments.py", "exec"), {"__name__": "shipments"})
    tasks = {dag.dag_id: dag.task_dict["refresh"] for dag in made}
    assert {name: task.full_refresh for name, task in tasks.items()} == {"shipments": False, "shipments_in_full": True}
    assert all(isinstance(task, IncrementalSyncOperator) for task in tasks.values())
