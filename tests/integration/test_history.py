"""The package's own tables are filled by the refreshes that they tell of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_rfr.builtins import Kind, load_objects
from airflow_provider_rfr.builtins.deploy import apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.refresh.after_publish import _COMMITS, _REFRESHES
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.store.engine import open_store
from tests.integration.conftest import Lake, Runner, shop

CANARY = "canary-8c1e44-key"


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def deploy_logs(lake: Lake, folder: Path) -> None:
    """The package's own tables, without its views, which take Spark."""
    logs = [item for item in load_objects().objects if item.kind is Kind.LOG]
    spec = load_objects(logs, entry_points=False)
    catalog, store = open_catalog(lake.settings), open_store(store_url(folder))
    recorded, live = observe(catalog, store, project=spec.project)
    apply(plan(spec, recorded, live), catalog=catalog, store=store, spec=spec)


def told(lake: Lake, folder: Path, table: str, *order: str) -> list[dict[str, Any]]:
    History(open_store(store_url(folder)), open_catalog(lake.settings)).maintain(always=True)
    return sorted(lake.rows(table).to_pylist(), key=lambda row: [row[name] for name in order])


def test_a_failed_attempt_and_a_commit_are_told_with_what_they_read_and_without_secrets(
    runner: Runner, lake: Lake, api: SampleApi, tmp_path: Path
) -> None:
    deploy_logs(lake, tmp_path)
    api.set_faults({"kind": "error", "status": 403, "path": "/partitions/3/items"})
    source = shop(api, partitions=8, page_size=25) | {"secrets": {"api_key": CANARY}}
    document = runner.config(source=source, streams=["items"], target="raw.items", store=store_url(tmp_path))
    runner.run(document, expect=1)
    api.set_faults()
    figures = runner.run(document).figures
    failed, published = told(lake, tmp_path, _REFRESHES, "epoch")
    assert (failed["outcome"], published["outcome"]) == ("failed", "published")
    assert failed["generation"] == published["generation"] == 1
    assert failed["partitions_done"] == failed["partitions"] - 1
    (failure,) = failed["failures"]
    assert "403" in failure["reason"]
    assert failed["error_type"] == "RefreshFailedError"
    assert (published["target"], published["stream"], published["epoch"]) == ("raw.items", "items", figures["epoch"])
    assert (published["published_rows"], published["error"]) == (4000, None)
    (commit,) = told(lake, tmp_path, _COMMITS, "sequence")
    assert commit["snapshot_id"] == published["snapshot_id"] == figures["snapshot_id"]
    counts = {"documents": 4000, "bytes": commit["bytes"]}
    assert commit["bindings"] == [{"table": "raw.items", "collection": "items", **counts}]
    assert CANARY not in str([failed, published, commit])
