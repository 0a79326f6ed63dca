"""The DAGs in README and docs/full_refresh.md are DAGs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from jinja2 import Template

from airflow_provider_rfr.sample_api import SHOP
from tests.airflow_versions import needs_sdk_timetables

ROOT = Path(__file__).resolve().parents[3]
CHAPTER = (ROOT / "docs" / "full_refresh.md").read_text()
README = (ROOT / "README.md").read_text()
EXAMPLES = dict(re.findall(r"```python\n# \$AIRFLOW_HOME/dags/(\w+)\.py\n(.*?)```", README + CHAPTER, re.DOTALL))


@needs_sdk_timetables
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_parses_to_the_dag_of_its_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DAG] = []
    enter = DAG.__enter__

    def note(dag: DAG) -> DAG:
        made.append(dag)
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", note)
    monkeypatch.chdir(SHOP.parent)
    exec(compile(EXAMPLES[name], f"{name}.py", "exec"), {"__name__": name})
    assert [dag.dag_id for dag in made] == [name]
    assert made[0].task_ids == ["refresh"]


def test_the_readme_backfills_and_mapped_tasks_have_an_example() -> None:
    assert {"shop", "shop_by_day", "payments_by_day", "shop_mapped"} <= set(EXAMPLES)


def test_mapped_tasks_are_shown_by_their_streams() -> None:
    [template] = re.findall(r'map_index_template="(.*)",', EXAMPLES["shop_mapped"])
    assert Template(template).render(task=SimpleNamespace(streams=["orders", "items"])) == "orders, items"
