"""The DAGs in README and in docs are DAGs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from jinja2 import Template

from airflow_provider_rfr.operators import IncrementalSyncOperator
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.streams.incremental import CursorWindow
from tests.airflow_versions import needs_sdk_timetables

ROOT = Path(__file__).resolve().parents[3]


def examples_in(*places: str) -> dict[str, str]:
    """Return the DAG files of documents, by the names of their files."""
    text = "".join((ROOT / place).read_text() for place in places)
    return dict(re.findall(r"```python\n# \$AIRFLOW_HOME/dags/(\w+)\.py\n(.*?)```", text, re.DOTALL))


PAGES = ("operator", "retries_and_resume", "backfill", "several_streams", "clusters")
EXAMPLES = examples_in("README.md", *(f"docs/{page}.md" for page in PAGES))


def dags_of(
    name: str,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    folder: Path = SHOP.parent,
    names: dict[str, Any] | None = None,
) -> list[DAG]:
    """Return the DAGs that the code of a file makes.

    :param folder: of the files that it names
    :param names: gets what the code defines
    """
    made: list[DAG] = []
    enter = DAG.__enter__

    def note(dag: DAG) -> DAG:
        made.append(dag)
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", note)
    monkeypatch.chdir(folder)
    names = {} if names is None else names
    names["__name__"] = name
    exec(compile(code, f"{name}.py", "exec"), names)
    return made


@needs_sdk_timetables
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_parses_to_the_dag_of_its_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dags_of(name, EXAMPLES[name], monkeypatch)
    assert [dag.dag_id for dag in made] == [name]
    assert made[0].task_ids == ["refresh"]


def test_the_incremental_example_parses_to_an_hourly_and_a_weekly_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    hourly, weekly = dags_of("shipments", examples_in("docs/incremental.md")["shipments"], monkeypatch)
    task, trigger = hourly.task_dict["refresh"], weekly.task_dict["trigger"]
    assert isinstance(task, IncrementalSyncOperator)
    assert (str(hourly.schedule), hourly.max_active_runs, str(weekly.schedule)) == ("@hourly", 1, "@weekly")
    assert (trigger.trigger_dag_id, set(trigger.conf)) == (hourly.dag_id, set(hourly.params))
    for asked in (False, True):
        assert Template(task.full_refresh).render(params={"full_refresh": asked}) == str(asked)


@needs_sdk_timetables
def test_the_example_of_a_backfill_reads_the_data_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    code = examples_in("docs/backfill.md")["shipments_by_day"]
    [dag] = dags_of("shipments_by_day", code, monkeypatch)
    window = Template(dag.task_dict["refresh"].window)
    first, last = "2026-01-01 00:00:00+00:00", "2026-01-02 00:00:00+00:00"
    rendered = window.render(data_interval_start=first, data_interval_end=last)
    assert str(CursorWindow.parse(rendered)) == "2026-01-01T00:00:00.000000Z/2026-01-02T00:00:00.000000Z"


def test_the_readme_and_each_page_have_an_example() -> None:
    names = {"shop", "shop_daily", "shop_retries", "shop_mapped", "shop_deferred"}
    assert set(EXAMPLES) == names | {"payments_by_day", "shipments_by_day"}


def test_mapped_tasks_are_shown_by_their_streams() -> None:
    [template] = re.findall(r'map_index_template="(.*)",', EXAMPLES["shop_mapped"])
    assert Template(template).render(task=SimpleNamespace(streams=["orders", "items"])) == "orders, items"
