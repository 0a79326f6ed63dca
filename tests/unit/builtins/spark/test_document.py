"""The document of a migration."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins import Policies, load_objects
from airflow_provider_rfr.builtins.deploy import main, read_document
from airflow_provider_rfr.builtins.model import ActualState, RegistryState, encode
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.builtins.refresh import refresh
from airflow_provider_rfr.exceptions import ConfigurationError, PlanError
from tests.unit.builtins.catalogs import mview, table
from tests.unit.builtins.catalogs import spec as declared
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises

LAKE = {"name": "lake", "properties": {"type": "sql", "uri": "postgresql://me:hidden@db/lake"}}


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "migration.json"
    path.write_text(json.dumps({"lake": LAKE, "store": "postgresql://me:hidden@db/store", **fields}))
    return path


KEPT = """
kind: table
name: shop.orders
keep: billing, seven years
columns: [{name: rows, type: bigint, was: [n, {name: row_count, type: string, using: CAST(row_count AS bigint)}]}]
---
kind: removed
name: shop.orders.note
"""


def test_a_document_says_everything_of_a_deploy(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(KEPT)
    spec = load_objects(tmp_path / "shop.yaml", project="shop", version="2.0", entry_points=True)
    policies = Policies(break_views=frozenset({"bob.v"}), accept_data_loss=frozenset({"shop.orders.at"}))
    wanted = plan(spec, RegistryState(), ActualState(), policies=policies)
    supervisor = {"pid": 7, "started": 8, "host": "h"}
    document = read_document(
        written(
            tmp_path,
            spec=encode(spec),
            plan=wanted.to_json(),
            policies=encode(wanted.policies),
            actor="me",
            jars=["a.jar"],
            spark={"spark.master": "local[2]", "spark.task.cpus": 1},
            run={"supervisor": supervisor},
        )
    )
    assert document.catalog_spec() == spec
    assert document.plan == wanted
    assert document.policies == wanted.policies
    assert (document.lake.name, document.actor, document.run["supervisor"]) == ("lake", "me", (7, 8, "h"))
    assert document.jars == ("a.jar",)
    assert document.spark == {"spark.master": "local[2]", "spark.task.cpus": "1"}
    assert "hidden" not in repr(document)


def test_a_document_asks_for_a_refresh_in_place_of_a_deploy(tmp_path: Path) -> None:
    document = read_document(written(tmp_path, project="shop", refresh={"names": ["ops.m"], "force": True}))
    assert document.refresh is not None
    assert (document.project, document.refresh.names, document.refresh.force) == ("shop", ("ops.m",), True)
    every = read_document(written(tmp_path, refresh={})).refresh
    assert every is not None
    assert (every.names, every.force) == ((), False)


def test_a_refresh_ends_with_what_became_of_each_view_and_starts_no_spark_where_nothing_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path)
    place.deploy(
        declared("1.0", table("ops.t", "id bigint"), mview("ops.m", "SELECT id FROM ops.t WHERE id > 0", "id bigint"))
    )
    refresh([], project="ops", catalog=place.catalog, store=place.store, sql=place.engine)
    place.close()
    lake = {"name": "lake", "properties": dict(place.settings.properties)}
    fields: dict[str, Any] = {"lake": lake, "store": place.store_url, "project": "ops"}
    assert main(read_document(written(tmp_path, **fields, refresh={})), began=time.monotonic()) == 0
    (view,) = json.loads(capsys.readouterr().out)["views"].values()
    assert (view["name"], view["state"], view["rows"]) == ("ops.m", "unchanged", 0)
    assert main(read_document(written(tmp_path, **fields, refresh={"names": ["ops.t"]})), began=0.0) == 1
    assert "ops.t is not a deployed materialized view" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_objects_are_read_from_folders_beside_the_document(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "a.yaml").write_text("kind: table\nname: mine.a\ncolumns: [{name: id, type: bigint}]\n")
    spec = read_document(written(tmp_path, objects=["objects"], project="mine")).catalog_spec()
    assert "mine.a" in spec.by_key()
    assert spec.project == "mine"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"lake": None}, "lake"),
        ({"lake": {"name": "x"}}, "lake.properties"),
        ({"store": None}, "store"),
        ({"stroe": "x"}, "stroe"),
        ({"objects": "folder"}, "objects"),
        ({"spec": {"project": "x"}}, "spec.version"),
        ({"policies": {"drift": "no"}}, "drift"),
        ({"spark": ["a"]}, "spark"),
        ({"refresh": ["ops.m"]}, "refresh"),
        ({"refresh": {"names": "ops.m"}}, "refresh.names"),
        ({"run": {"supervisor": {"pid": "x", "started": 1, "host": "h"}}}, "run.supervisor.pid"),
        ({"run": {"supervisor": {"pid": 1}}}, "run.supervisor.started"),
    ],
)
def test_a_wrong_field_is_named_and_no_secret_is_shown(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_document(written(tmp_path, **fields))
    assert caught.value.field == field
    assert "hidden" not in str(caught.value)


def test_every_wrong_field_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_document(written(tmp_path, stroe="hidden", project=["x"], spark={"spark.task.cpus": [1]}))
    assert {problem.field for problem in caught.value.problems} == {"stroe", "project", "spark.spark.task.cpus"}
    assert "hidden" not in str(caught.value)


def test_a_flag_of_yaml_is_written_as_spark_reads_it(tmp_path: Path) -> None:
    document = read_document(written(tmp_path, spark={"spark.ui.enabled": True}, version=1.5))
    assert document.spark == {"spark.ui.enabled": "true"}
    assert document.version == "1.5"


def test_a_file_that_is_no_document_shows_none_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("store: [postgresql://me:hidden@db")
    with raises(ConfigurationError) as caught:
        read_document(path)
    assert "hidden" not in str(caught.value)
    with raises(ConfigurationError):
        read_document(tmp_path / "nowhere.yaml")


def test_a_plan_that_was_changed_is_refused(tmp_path: Path) -> None:
    document = plan(load_objects(), RegistryState(), ActualState()).to_json()
    document["steps"] = document["steps"][1:]
    with raises(PlanError):
        read_document(written(tmp_path, plan=document))
