"""What other versions of the package read: ledgers, fingerprints, plans, checkpoints and events, kept byte for byte.

A failure means that a running refresh would start again, or that a plan or a table of an older version can't be read.
``RFR_GOLDEN=write`` writes the files in ``tests/golden`` anew, for a change of a format that is meant.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins.plan import Plan
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.lake.files import PAGE_COLUMNS, FileStore, ledger_arrow_schema
from airflow_provider_rfr.operators._attempt import Checkpoint
from airflow_provider_rfr.refresh.page_rows import FlushLabel, page_row, write_rows
from airflow_provider_rfr.refresh.past import PastAttempt, PastGeneration
from airflow_provider_rfr.refresh.resume import fingerprints_of
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState, read_header
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.streams.core import Complete, NextPage, Page
from airflow_provider_rfr.streams.loader import inline_source, load_streams
from airflow_provider_rfr.streams.paged import as_paged
from tests.unit.builtins.test_render import planned

GOLDEN = Path(__file__).parents[1] / "golden"
MANIFESTS = Path(__file__).parent / "streams" / "airbyte" / "manifests"
URL = "http://127.0.0.1:1"
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=timezone.utc)


def assert_golden(name: str, content: Any) -> None:
    """Compare a JSON document with the stored one."""
    file = GOLDEN / name
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("RFR_GOLDEN") == "write":
        file.write_text(text)
    assert file.read_text() == text


def header() -> LedgerHeader:
    """Return a header in which each field has a value."""
    past = PastGeneration(
        generation=6, outcome="refused", opened_at=NOW, ended_at=NOW, attempts=2, pages=5, records=50, rows=40,
        error="no", dag_id="d", dag_run_id="r", task_id="t", map_index=0,
    )  # fmt: skip
    attempt = PastAttempt(
        epoch=2, began_at=NOW, ended_at=NOW, outcome="stopped", pages=7, error="no", dag_id="d", dag_run_id="r",
        task_id="t", map_index=0, try_number=1, retried={"http_5xx": 2},
    )  # fmt: skip
    return LedgerHeader(
        generation=7, epoch=3, state=RefreshState.OPEN, read_fingerprint="read", publish_fingerprint="publish",
        opened_at=NOW, committed_at=NOW, began_at=NOW, progressed_at=NOW, refused_under="rules", silence=120.5,
        ended_at=NOW, outcome="failed", error="é \"quoted\"", run_key="k", replace_where="tenant = 'a'", dag_id="d",
        dag_run_id="r", task_id="t", map_index=3, attempts=4, rounds=9, pages=41_000, records=2**40, bytes=10**12,
        partitions=64, partitions_done=63, found_pages=1, found_records=2, found_partitions=3, pages_refetched=5,
        overlap_checks=6, previous_rows=8, published_rows=9, snapshot_id=2**62, past=(past,),
        try_number=2, retried={"http_429": 3, "timeout": 1}, earlier=(attempt,), stream="orders",
        host="api.example:8443", paging="cursors",
        primary_key="tenant, id",
    )  # fmt: skip


def test_a_header_is_written_and_read_as_before() -> None:
    assert_golden("header.json", header().to_summary())
    assert read_header(json.loads((GOLDEN / "header.json").read_text())) == header()


LABEL = FlushLabel(7, 3, 2, 1, 0, 5, "e3-r2-t1-a0-s4-0123456789ab.parquet", {"http_429": 3})


def test_a_ledger_file_is_read_as_before() -> None:
    file = GOLDEN / "pages.parquet"
    store = FileStore({})
    if os.environ.get("RFR_GOLDEN") == "write":
        place = {"generation": 7, "epoch": 3, "ordinal": 4, "key": '{"tenant":"a"}', "chain": 1}
        pages = (
            Page([{"id": 1, "name": "é", "n": {"x": [1.5]}}], NextPage({"after": 1}), promised=2),
            Page([{"id": 2}], Complete(), request="GET https://api.example/x", status=200, absent="data.next"),
        )
        rows = [
            page_row(page, **place, number=number, token=None if number == 1 else {"after": 1})
            for number, page in enumerate(pages, start=1)
        ]
        write_rows(store, str(file), rows, footer=json.dumps(asdict(LABEL)))
    footer = store.read_footer(str(file))
    assert footer is not None
    assert footer[0] == json.dumps(asdict(LABEL))
    assert FlushLabel.from_footer(footer[0]) == LABEL
    names = ledger_arrow_schema().names
    assert {*PAGE_COLUMNS, "records"} <= {*names}
    rows = store.read_table(str(file), names).to_pylist()
    assert_golden("pages.json", [{**row, "fetched_at": row["fetched_at"].isoformat()} for row in rows])


MANIFEST_CONFIG = {
    "url": URL,
    "page_size": 3,
    "kinds": ["new", "old"],
    "field": "items",
    "start": "2024-01-01",
    "username": "user",
    "credentials": {"kind": "key"},
    "tables": [{"name": "first"}, {"name": "second table"}],
}


def _prints(source: dict[str, Any]) -> dict[str, Any]:
    streams = load_streams(inline_source(source))
    return {name: asdict(fingerprints_of(as_paged(stream))) for name, stream in streams.items()}


def test_sources_have_the_fingerprints_that_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRBYTE_ENABLE_UNSAFE_CODE", "true")
    sources: dict[str, dict[str, Any]] = {
        "shop": {"file": str(SHOP), "config": {"base_url": URL}, "secrets": {"api_key": "k"}}
    }
    for file in sorted(MANIFESTS.glob("*.yaml")):
        components = {"components": str(MANIFESTS / "components.py")} if file.stem == "custom" else {}
        settings = {"config": MANIFEST_CONFIG, "secrets": {"api_key": "k", "password": "p", "secret": "s" * 32}}
        # The streams of this one are answers of its API.
        if file.stem != "dynamic":
            sources[file.stem] = {"manifest": str(file), **settings, **components}
    assert_golden("fingerprints.json", {name: _prints(source) for name, source in sources.items()})


def test_a_plan_is_read_and_written_as_before() -> None:
    file = GOLDEN / "plan.json"
    if os.environ.get("RFR_GOLDEN") == "write":
        assert_golden("plan.json", planned().to_json())
    assert_golden("plan.json", Plan.from_json(json.loads(file.read_text())).to_json())


def test_a_checkpoint_is_read_and_written_as_before() -> None:
    counts = {"generation": 7, "state": "open", "pages": 3, "records": 30, "partitions": 2, "partitions_done": 1}
    checkpoint = Checkpoint(owner="d/r/t/-1", stalled=1, tables={"raw.t": {**counts, "epoch": 3}})
    assert_golden("checkpoint.json", checkpoint.model_dump(mode="json"))
    assert Checkpoint.parse((GOLDEN / "checkpoint.json").read_text(), "d/r/t/-1") == checkpoint


def test_an_event_is_read_and_written_as_before() -> None:
    event = CommitEvent(
        commit_id="c", target="raw.t", lake="l", target_name="T", run_id="00000000-0000-0000-0000-000000000001",
        sequence=3, snapshot_id=2**62, committed_at=NOW, generation=7, collection_names=("a", "b"), producer="rfr/0.1",
        fetched_at_min=NOW, fetched_at_max=NOW,
    )  # fmt: skip
    assert_golden("event.json", {"summary": event.to_summary(), "json": json.loads(event.to_json())})
    assert CommitEvent.from_json(event.to_json()) == event
