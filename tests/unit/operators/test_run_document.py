"""What a refresh is told of its task."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.operators.full_refresh import _airflow_run
from airflow_provider_rfr.refresh.config import _AirflowRun

TI = SimpleNamespace(dag_id="shop", run_id="manual__1", task_id="group.refresh", map_index=2)


@pytest.mark.parametrize(
    ("more", "logical_date"),
    [
        ({"logical_date": datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "2026-03-01T00:00:00Z"),
        ({"logical_date": None}, None),
        ({}, None),
    ],
)
def test_the_task_is_told_as_webhooks_name_it(more: dict[str, Any], logical_date: str | None) -> None:
    context: Any = {"ti": TI, **more}
    found = _airflow_run(context)
    assert found == {
        "dag_id": "shop",
        "dag_run_id": "manual__1",
        "task_id": "group.refresh",
        "map_index": 2,
        "logical_date": logical_date,
    }
    assert _AirflowRun.model_validate(found).map_index == 2


def test_a_task_that_is_not_mapped_has_the_index_minus_one() -> None:
    context: Any = {"ti": SimpleNamespace(**{**vars(TI), "map_index": None})}
    assert _airflow_run(context)["map_index"] == -1
