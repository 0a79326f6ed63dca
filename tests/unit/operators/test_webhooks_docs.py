"""The DAGs of docs/webhooks.md are DAGs, and the triggers file beside them is one."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.operators import CommitWebhookOperator
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.triggers import CommitTrigger
from tests.unit.operators.test_full_refresh_docs import dags_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")


def blocks(language: str, word: str) -> list[str]:
    found = re.findall(rf"^( *```{language}\n.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block).partition("\n")[2] for block in found if word in block]


def test_the_first_dag_delivers_what_its_load_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(SHOP, tmp_path / "shop.yaml")
    [triggers] = blocks("yaml", "# triggers.yaml")
    (tmp_path / "triggers.yaml").write_text(triggers)
    [code] = blocks("python", 'with DAG("shop"')
    [dag] = dags_of("shop", code, monkeypatch, folder=tmp_path)
    assert dag.task_ids == ["refresh", "notify"]
    notify = dag.task_dict["notify"]
    assert isinstance(notify, CommitWebhookOperator)
    assert notify.upstream_task_ids == {"refresh"}


def test_the_watched_asset_starts_a_dag_for_each_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = blocks("python", "AssetWatcher")
    names: dict[str, Any] = {}
    [dag] = dags_of("after_orders", code, monkeypatch, names=names)
    [watcher] = names["orders"].watchers
    assert dag.dag_id == "after_orders"
    assert isinstance(watcher.trigger, CommitTrigger)
