"""An Airflow that takes its DAGs from a git repository, and keeps what tasks return in files."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.sample_api import SHOP
from tests.integration.postgres import PostgresServer
from tests.soon import PATIENCE
from tests.system.conftest import COST_OF_KILL, KEY, TOTAL, Story, new_airflow, wait_for

DAG = "from_git"
REPOSITORY = Path(__file__).parent / "repository"
ITEMS = '    request: {path: "/partitions/{{ stream_slice.partition }}/items"}\n'
SKU = "        sku: {type: string}\n"
#: What the second commit puts into the source's file: the stream ``items`` has one more column.
EDITS = {
    ITEMS: f"{ITEMS}    transformations: [{{type: add, fields: {{origin: second}}}}]\n",
    SKU: f"{SKU}        origin: {{type: string}}\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("git")


@pytest.fixture(scope="module")
def repository(folder: Path) -> Path:
    """A repository with the DAG and its source file in the folder ``dags``."""
    repository = folder / "repository"
    dags = repository / "dags"
    dags.mkdir(parents=True)
    shutil.copy(REPOSITORY / "loads.py", dags)
    shutil.copy(SHOP, dags)
    git(repository, "init", "-q", "-b", "main")
    commit(repository)
    return repository


@pytest.fixture(scope="module")
def stack(folder: Path, repository: Path, postgres: PostgresServer) -> Iterator[Story]:
    """An Airflow of its own: DAG bundles and the XCom backend are settings of a whole installation."""
    home = folder / "airflow"
    repo = {"repo_url": str(repository), "tracking_ref": "main", "subdir": "dags", "refresh_interval": 2}
    bundle = {"name": "team", "classpath": "airflow.providers.git.bundles.git.GitDagBundle", "kwargs": repo}
    settings = {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(home / "bundles"),
        "AIRFLOW__CORE__XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": (home / "xcom").as_uri(),
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": "0",
    }
    with new_airflow(folder, postgres, (), settings) as story:
        story.airflow.wait_for_dag(DAG)
        yield story


def git(repository: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    command = ["git", "-C", str(repository), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path) -> str:
    """Commit everything; return the commit's id."""
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "Change the loads")
    return git(repository, "rev-parse", "HEAD")


def xcom(story: Story, run: str, task: str, key: str = "return_value") -> Any:
    """Return what the file of an XCom holds; None where there is no such XCom.

    Airflow's API shows the address that its database has instead: only tasks ask the backend.
    """
    entries = f"/dags/{DAG}/dagRuns/{run}/taskInstances/{task}/xcomEntries"
    if key not in [entry["key"] for entry in story.airflow.call("GET", entries)["xcom_entries"]]:
        return None
    address = story.airflow.call("GET", f"{entries}/{key}?deserialize=true")["value"]
    assert address.startswith((story.airflow.home / "xcom").as_uri())
    return json.loads(Path(address.removeprefix("file://")).read_text())


def test_a_run_keeps_its_commit_of_the_repository_and_its_retry_resumes(story: Story, repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    story.hold_after(TOTAL // 2)
    story.start(DAG, "first", table="items")
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)
    shop = repository / "dags" / "shop.yaml"
    for before, after in EDITS.items():
        assert shop.read_text().count(before) == 1
        shop.write_text(shop.read_text().replace(before, after))
    second = commit(repository)
    wait_for(lambda: story.airflow.call("GET", f"/dags/{DAG}/details")["bundle_version"] == second)

    # Not always the first: on a busy machine, Airflow may give up a try before it begins.
    killed_try = story.task(DAG, "first")["try_number"]
    story.kill(story.drivers())
    story.api.set_faults()
    assert story.succeed(DAG, "first")["try_number"] == killed_try + 1
    assert story.airflow.call("GET", f"/dags/{DAG}/dagRuns/first")["bundle_version"] == first
    result = xcom(story, "first", "refresh")
    assert (result["generation"], result["attempts"]) == (1, 2)
    pages = story.api.counts(path="/partitions/*")
    assert pages["pages"] == TOTAL
    assert pages["refetched"] <= COST_OF_KILL
    story.assert_whole("raw.items")
    assert "origin" not in story.lake.rows("raw.items").column_names

    story.api.reset()
    story.start(DAG, "second", table="items")
    story.succeed(DAG, "second")
    assert xcom(story, "second", "refresh")["generation"] == 2
    assert story.api.counts(path="/partitions/*")["served"] == TOTAL
    story.assert_whole("raw.items")
    assert set(story.lake.rows("raw.items")["origin"].to_pylist()) == {"second"}
    story.wait_for_no_driver()


def test_results_checkpoints_and_buttons_work_where_another_backend_keeps_xcom(story: Story) -> None:
    story.hold_after(TOTAL // 2)
    story.start(DAG, "kept", table="kept")
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)
    button = wait_for(lambda: story.links(DAG, "kept")["Spark UI"], describe=lambda: "there is no button")
    assert button.startswith("http://")
    copy = "rfr_checkpoint.refresh.-1"
    checkpoint = wait_for(lambda: xcom(story, "kept", "report", copy), describe=lambda: story.log(DAG, "kept")[-3000:])
    assert list(checkpoint["tables"]) == ["raw.kept"]

    killed_try = story.task(DAG, "kept")["try_number"]
    story.kill(story.drivers())
    story.wait_for_state(DAG, "kept", "up_for_retry", "queued", "running")
    story.api.set_faults()
    assert story.succeed(DAG, "kept")["try_number"] == killed_try + 1
    result = xcom(story, "kept", "refresh")
    assert (result["generation"], result["attempts"], result["rows"]) == (1, 2, 25 * TOTAL)
    assert story.airflow.task(DAG, "kept", "report")["state"] == "success"
    assert xcom(story, "kept", "report") == result
    assert story.links(DAG, "kept")["Spark UI"].startswith("http://")
    assert xcom(story, "kept", "report", copy) is None
    story.assert_whole("raw.kept")
    assert story.api.counts(path="/partitions/*")["refetched"] <= COST_OF_KILL
    story.wait_for_no_driver()
    assert story.files_with(KEY) == []
