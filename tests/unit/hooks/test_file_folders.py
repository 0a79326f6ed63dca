"""Relative files of DAGs that a factory in another module makes, parsed as Airflow parses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.builtins import BuiltinsHook
from airflow_provider_rfr.hooks.dag_arguments import file_folders
from airflow_provider_rfr.hooks.webhooks import WebhookHook
from airflow_provider_rfr.operators.arguments import shipped_source
from airflow_provider_rfr.sample_api import SHOP
from tests.airflow_versions import DagBag
from tests.unit.messages import raises

FACTORIES = """
from airflow.sdk import DAG, dag, task_group
from airflow_provider_rfr.operators import BuiltinMigrationOperator, CommitWebhookOperator
from airflow_provider_rfr.operators import ResumableFullRefreshOperator, SinkOperator
from airflow_provider_rfr.sensors import CommitSensor

def refresh(**more):
    return ResumableFullRefreshOperator(
        task_id="refresh", source={"file": "shop.yaml"}, streams=["customers"], target="raw.{stream}",
        deliver_after="triggers.yaml", **more)

def with_dag(dag_id):
    with DAG(dag_id) as made:
        refresh()
        CommitWebhookOperator(task_id="deliver", triggers="triggers.yaml")
        CommitSensor(task_id="wait", target="raw.customers", triggers="triggers.yaml")
        BuiltinMigrationOperator(task_id="migrate", objects=["objects"])
        SinkOperator(task_id="send", objects="objects")
    return made

def decorated(dag_id):
    @dag(dag_id=dag_id)
    def made():
        @task_group
        def group():
            refresh()
        group()
    return made()

def mapped(dag_id):
    with DAG(dag_id) as made:
        ResumableFullRefreshOperator.partial(
            task_id="refresh", source={"file": "shop.yaml"}, target="raw.{stream}", deliver_after="triggers.yaml"
        ).expand(streams=[["customers"], ["orders"]])
    return made

def later(dag_id):
    made = DAG(dag_id)
    task = refresh()
    task.dag = made
    return made
"""
TRIGGERS = "config: {note: {url: 'https://example.com/hook', preset: slack}}\n"
Bag = Callable[[str], Any]


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("near_lib", "teams"):
        (tmp_path / folder).mkdir()
    (tmp_path / "near_lib" / "factory_of_dags.py").write_text(FACTORIES)
    monkeypatch.delitem(__import__("sys").modules, "near_lib.factory_of_dags", raising=False)
    return tmp_path


def add_files(folder: Path) -> None:
    (folder / "shop.yaml").write_text(SHOP.read_text())
    (folder / "triggers.yaml").write_text(TRIGGERS)
    (folder / "objects").mkdir()


def bag_of(dags: Path, factory: str = "with_dag") -> DagBag:
    file = dags / "teams" / "team.py"
    file.write_text(f"# airflow DAG\nfrom near_lib.factory_of_dags import {factory}\nmade = {factory}('made')\n")
    return DagBag(str(file))


def parsed(dags: Path, factory: str) -> Any:
    bag = bag_of(dags, factory)
    assert not bag.import_errors, bag.import_errors
    return bag.dags["made"]


@pytest.mark.parametrize("folder", ["teams", "near_lib"])
@pytest.mark.parametrize("factory", ["with_dag", "decorated", "later"])
def test_files_are_found_next_to_the_dags_file_and_next_to_the_factory(dags: Path, folder: str, factory: str) -> None:
    add_files(dags / folder)
    for task in parsed(dags, factory).tasks:
        assert file_folders(task) == (dags / "teams", dags / "near_lib")
        if task.task_id.endswith("refresh"):
            assert "customers" in shipped_source(task.source, file_folders(task))["definition"]["streams"]
            assert WebhookHook("triggers.yaml", task=task).block.endpoints
        if hasattr(task, "objects"):
            assert BuiltinsHook.of_task(task)._objects == [dags / folder / "objects"]


@pytest.mark.parametrize(("folder", "file"), [("teams", "shop.yaml"), ("near_lib", "../near_lib/shop.yaml")])
def test_a_mapped_tasks_files_are_found_as_in_the_parse(dags: Path, folder: str, file: str) -> None:
    add_files(dags / folder)
    task = parsed(dags, "mapped").get_task("refresh").unmap({"streams": ["customers"]})
    assert task.source == {"file": file}, "the path is the same in each version of a bundle"
    assert file_folders(task) == (dags / "teams",)
    assert "customers" in shipped_source(task.source, file_folders(task))["definition"]["streams"]
    assert WebhookHook(task._deliver_after, task=task).block.endpoints


def test_the_file_next_to_the_dags_file_comes_first(dags: Path) -> None:
    add_files(dags / "teams")
    add_files(dags / "near_lib")
    task = parsed(dags, "with_dag").get_task("migrate")
    assert BuiltinsHook.of_task(task)._objects == [dags / "teams" / "objects"]


def test_an_error_names_both_places(dags: Path) -> None:
    places = f"{dags}/teams/shop.yaml and {dags}/near_lib/shop.yaml do not exist"
    assert f"source.file: {places}" in str(bag_of(dags).import_errors)
    add_files(dags / "teams")
    (dags / "teams" / "objects").rmdir()
    task = parsed(dags, "with_dag").get_task("send")
    with raises(ConfigurationError, f"{dags}/teams/objects and {dags}/near_lib/objects"):
        BuiltinsHook.of_task(task)
    (dags / "teams" / "triggers.yaml").unlink()
    assert f"there is no such file in {dags}/teams or in {dags}/near_lib" in str(bag_of(dags).import_errors)


def test_the_working_folder_is_not_searched(dags: Path) -> None:
    add_files(dags)
    assert "shop.yaml do not exist" in str(bag_of(dags).import_errors)
