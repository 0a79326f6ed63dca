"""What a refresh is told of its task."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.operators.full_refresh import _airflow_run
from airflow_provider_rfr.refresh.config import _AirflowRun


@pytest.mark.parametrize(
    ("map_index", "shown", "more", "logical_date"),
    [
        (2, 2, {"logical_date": datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "2026-03-01T00:00:00Z"),
        (None, -1, {"logical_date": None}, None),
        (None, -1, {}, None),
    ],
    ids=["a mapped task", "a run without a logical date", "a context without one"],
)
def test_the_task_is_told_as_webhooks_name_it(
    map_index: int | None, shown: int, more: dict[str, Any], logical_date: str | None
) -> None:
    ti = SimpleNamespace(dag_id="shop", run_id="manual__1", task_id="group.refresh", map_index=map_index, try_number=3)
    context: Any = {"ti": ti, **more}
    found = _airflow_run(context)
    place = {"dag_id": "shop", "dag_run_id": "manual__1", "task_id": "group.refresh", "map_index": shown}
    assert found == {**place, "logical_date": logical_date, "try_number": 3}
    read = _AirflowRun.model_validate(found)
    assert (read.map_index, read.try_number) == (shown, 3)
    assert "try_number" not in read.for_webhooks()
