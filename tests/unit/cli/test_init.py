"""``airflow rfr init``: what it writes is what DAGs, sources, webhooks and connections are read from."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest
import yaml
from airflow.secrets.local_filesystem import load_connections_dict
from packaging.requirements import Requirement

from airflow_provider_rfr.refresh.cluster import EXECUTOR_PACKAGES
from airflow_provider_rfr.sample_api import SampleApi, Sizes
from tests.airflow_versions import DagBag
from tests.unit.cli.calls import Rfr
from tests.unit.cli.test_manifest import SHOP as MANIFEST
from tests.unit.cli.test_manifest import needs_cdk
from tests.unit.messages import check_messages

ROOT = Path(__file__).parents[3]
DAGS = ROOT / "dags"
WRITTEN = {"shop.yaml", "shop.py", "triggers.yaml", "connections.yaml"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_prints_the_files_and_the_next_steps(command: Rfr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_messages(command("init", "dags/shop").out)
    assert names(tmp_path / "dags" / "shop") == WRITTEN


def test_without_a_folder_it_writes_into_the_dag_folder(
    command: Rfr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    command("init")
    assert names(tmp_path / "dags") == WRITTEN


def test_only_the_owner_reads_the_connections(command: Rfr, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        command("init", tmp_path / "dags")
    finally:
        os.umask(before)
    rights = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "dags").iterdir()}
    assert (rights.pop("connections.yaml"), set(rights.values())) == (0o600, {0o644})


def test_scripts_get_files_and_commands_as_json(command: Rfr, tmp_path: Path) -> None:
    told = command("init", tmp_path, "--json").json
    assert {Path(file) for file in told["files"]} == {tmp_path / name for name in WRITTEN}
    assert [step.split()[0] for step in told["next"]] == ["mkdir", "airflow", "airflow"]


def test_get_started_has_the_commands_that_it_prints(command: Rfr, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "get_started.md").read_text()
    for step in command("init", tmp_path, "--json").json["next"]:
        assert f"\n$ {step.replace(str(tmp_path), '$AIRFLOW_HOME/dags')}\n" in page
    assert "\n$ python -m airflow_provider_rfr.sample_api --port 8091\n" in page
    assert {name for name in WRITTEN if f"\n| `{name}` |" in page} == WRITTEN


def test_get_started_names_the_extras() -> None:
    page = (ROOT / "docs" / "get_started.md").read_text()
    extras = re.search(
        r"\[project\.optional-dependencies\]\n(.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    assert extras is not None
    for name in set(re.findall(r"^(\w+) = ", extras[1], re.MULTILINE)) - {"dev", "pyspark"}:
        assert re.search(rf"^\| .*`{name}`.* \|", page, re.MULTILINE), name


def test_the_page_on_clusters_has_the_executors_packages_with_their_versions() -> None:
    [block] = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "clusters.md").read_text(), re.DOTALL)
    listed = {need.name: need.specifier for need in map(Requirement, block.split())}
    project = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    needs = [Requirement(text) for text in re.findall(r'^    "([^"]+)",', project, re.MULTILINE)]
    assert listed == {need.name: need.specifier for need in needs if need.name in EXECUTOR_PACKAGES.values()}
    assert set(listed) == set(EXECUTOR_PACKAGES.values())


def test_the_dags_parse(command: Rfr, tmp_path: Path) -> None:
    command("init", tmp_path)
    command("init", tmp_path, "--dag", "deliver_webhooks")
    command("init", tmp_path, "--dag", "full_refresh")
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    assert set(bag.dags) == {"shop", "deliver_webhooks", "resumable_full_refresh"}
    assert bag.dags["shop"].get_task("refresh").streams == ["customers", "orders"]


@pytest.mark.test
def test_the_source_reads_the_sample_api(command: Rfr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command("init", tmp_path)
    connection = yaml.safe_load((tmp_path / "connections.yaml").read_text())["shop_api"]
    with SampleApi(Sizes(records=230, customers=120), api_key=connection["password"]) as api:
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_API", json.dumps({**connection, "host": api.base_url}))
        told = command("source", "check", tmp_path / "shop.yaml", "--api-conn-id", "shop_api", "--json").json
    assert [(one["stream"], one["records"]) for one in told["streams"]] == [("customers", 100), ("orders", 100)]


@pytest.mark.test
def test_the_stream_of_the_page_on_syncs_fits_into_the_source(
    command: Rfr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("init", tmp_path)
    [block] = re.findall(r"```yaml\n(  shipments:.*?)```", (ROOT / "docs" / "incremental.md").read_text(), re.DOTALL)
    with (tmp_path / "shop.yaml").open("a") as source:
        source.write(block)
    with SampleApi(Sizes(records=120), api_key="k") as api:
        connection = {"conn_type": "rfr_api", "host": api.base_url, "password": "k"}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_API", json.dumps(connection))
        told = command("source", "check", tmp_path / "shop.yaml", "--api-conn-id", "shop_api", "--json").json
    [shipments] = [one for one in told["streams"] if one["stream"] == "shipments"]
    assert (shipments["records"], shipments["incremental"]) == (100, ["merge", "append"])


def test_the_webhooks_are_a_triggers_block(command: Rfr, tmp_path: Path) -> None:
    command("init", tmp_path)
    assert "triggers: 1" in command("triggers", "validate", tmp_path / "triggers.yaml").out


def test_airflow_reads_the_connections(command: Rfr, tmp_path: Path) -> None:
    command("init", tmp_path)
    connections = load_connections_dict(str(tmp_path / "connections.yaml"))
    assert {name: found.conn_type for name, found in connections.items()} == {
        "shop_api": "rfr_api",
        "rfr_lake_default": "rfr_lake",
        "spark_default": "spark",
    }
    assert connections["rfr_lake_default"].extra_dejson == {"warehouse": "file:///tmp/rfr/warehouse"}


@pytest.mark.parametrize("present", [("shop.py",), ("shop.yaml", "connections.yaml")])
def test_no_file_is_overwritten_and_none_is_written_beside_one(
    command: Rfr, tmp_path: Path, present: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in present:
        Path(name).write_text("mine")
    check_messages(command("init", ".", code=1).err)
    assert names(tmp_path) == set(present)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}


def test_a_folder_that_is_a_file_is_an_error(command: Rfr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop").write_text("mine")
    check_messages(command("init", "shop", code=1).err)


@needs_cdk
def test_a_manifest_gives_the_streams_and_the_fields_of_the_connection(command: Rfr, tmp_path: Path) -> None:
    command("init", tmp_path, "--from-manifest", MANIFEST)
    assert names(tmp_path) == WRITTEN
    assert (tmp_path / "shop.yaml").read_text() == MANIFEST.read_text()
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    task = bag.dags["shop"].get_task("refresh")
    assert task.source == {"manifest": "shop.yaml"}
    assert "Offset Events" in task.streams
    connection = yaml.safe_load((tmp_path / "connections.yaml").read_text())["shop_api"]
    assert connection == {"conn_type": "rfr_api", "extra": {"url": "made-up"}, "password": "write api_key here"}


@needs_cdk
def test_a_manifest_of_the_usual_name_is_called_as_its_connector(command: Rfr, tmp_path: Path) -> None:
    folder = tmp_path / "source-my.shop"
    folder.mkdir()
    (folder / "manifest.yaml").write_text(MANIFEST.read_text())
    command("init", tmp_path / "dags", "--from-manifest", folder / "manifest.yaml")
    assert names(tmp_path / "dags") == {"my_shop.yaml", "my_shop.py", "triggers.yaml", "connections.yaml"}


@needs_cdk
@pytest.mark.parametrize("stem", ["triggers", "connections"])
def test_a_manifest_called_as_a_file_beside_it_gets_another_name(command: Rfr, tmp_path: Path, stem: str) -> None:
    manifest = tmp_path / f"{stem}.yaml"
    manifest.write_text(MANIFEST.read_text())
    command("init", tmp_path / "dags", "--from-manifest", manifest)
    assert (tmp_path / "dags" / f"{stem}_api.yaml").read_text() == MANIFEST.read_text()
    assert names(tmp_path / "dags") == {f"{stem}_api.yaml", f"{stem}_api.py", "triggers.yaml", "connections.yaml"}


@pytest.mark.parametrize("name", sorted(path.stem for path in DAGS.glob("*.py")))
def test_each_ready_dag_can_be_copied(command: Rfr, tmp_path: Path, name: str) -> None:
    command("init", tmp_path, "--dag", name)
    assert names(tmp_path) == {f"{name}.py"}
    assert (tmp_path / f"{name}.py").read_text() == (DAGS / f"{name}.py").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--dag", "deliver_webhook"),
        ("--dag", "../conftest"),
        ("--dag", "full_refresh", "--from-manifest", "manifest.yaml"),
        ("--from-manifest", "manifest.yaml"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(
    command: Rfr, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_messages(command("init", "dags", *words, code=1).err)
    assert names(tmp_path) == set()
