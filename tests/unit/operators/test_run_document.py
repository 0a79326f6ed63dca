"""What a refresh is told of its task."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.operators.full_refresh import _airflow_run
from airflow_provider_rfr.refresh.config import _AirflowRun


@pytest.mark.parametrize(
    ("more", "logical_date"),
    [
        ({"logical_date": datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "2026-03-01T00:00:00Z"),
        ({"logical_date": None}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize(("map_index", "shown"), [(2, 2), (None, -1)])
def test_the_task_is_told_as_webhooks_name_it(
    more: dict[str, Any], logical_date: str | None, map_index: int | None, shown: int
) -> None:
    ti = SimpleNamespace(dag_id="shop", run_id="manual__1", task_id="group.refresh", map_index=map_index)
    context: Any = {"ti": ti, **more}
    found = _airflow_run(context)
    place = {"dag_id": "shop", "dag_run_id": "manual__1", "task_id": "group.refresh", "map_index": shown}
    assert found == {**place, "logical_date": logical_date}
    assert _AirflowRun.model_validate(found).map_index == shown
