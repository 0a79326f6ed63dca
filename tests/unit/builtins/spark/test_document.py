"""The document of a migration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins import Policies, load_objects, plan
from airflow_provider_rfr.builtins.spark.application import read_document
from airflow_provider_rfr.builtins.state import ActualState, RegistryState, encode
from airflow_provider_rfr.exceptions import ConfigurationError, PlanError

LAKE = {"name": "lake", "properties": {"type": "sql", "uri": "postgresql://me:hidden@db/lake"}}


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "migration.json"
    path.write_text(json.dumps({"lake": LAKE, "store": "postgresql://me:hidden@db/store", **fields}))
    return path


def test_a_document_says_everything_of_a_deploy(tmp_path: Path) -> None:
    spec = load_objects(project="shop", version="2.0", entry_points=True)
    wanted = plan(spec, RegistryState(), ActualState(), policies=Policies(user_views="warn"))
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
    assert (document.lake.name, document.actor, document.supervisor) == ("lake", "me", (7, 8, "h"))
    assert document.spark.jars == ("a.jar",)
    assert document.spark.settings == {"spark.master": "local[2]", "spark.task.cpus": "1"}
    assert "hidden" not in repr(document)


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
        ({"spec": {"project": "x"}}, "spec"),
        ({"spec": {"project": "x"}, "objects": ["a"]}, "spec"),
        ({"policies": {"drift": "no"}}, "drift"),
        ({"spark": ["a"]}, "spark"),
        ({"run": {"supervisor": {"pid": "x"}}}, "run.supervisor"),
    ],
)
def test_a_wrong_field_is_named_and_no_secret_is_shown(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_document(written(tmp_path, **fields))
    assert caught.value.field == field
    assert "hidden" not in str(caught.value)


def test_a_file_that_is_no_document_shows_none_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("store: [postgresql://me:hidden@db")
    with pytest.raises(ConfigurationError, match="^config: can't be read") as caught:
        read_document(path)
    assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="FileNotFoundError"):
        read_document(tmp_path / "nowhere.yaml")


def test_a_plan_that_was_changed_is_refused(tmp_path: Path) -> None:
    document = plan(load_objects(), RegistryState(), ActualState()).to_json()
    document["steps"] = document["steps"][1:]
    with pytest.raises(PlanError, match="was changed after it was made"):
        read_document(written(tmp_path, plan=document))
