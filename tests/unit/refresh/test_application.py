"""The application as a process runs it, with threads in the place of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from airflow_provider_rfr.builtins import Kind, load_objects
from airflow_provider_rfr.builtins.deploy import apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.refresh import application
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.streams import Page, PagedStream, ReadContext
from airflow_provider_rfr.streams.tokens import AccessToken, shared_credential
from spark_apps.full_refresh import open_history
from tests.soon import PATIENCE
from tests.unit.refresh import changing_source
from tests.unit.refresh.changing_source import RECORDS, moment
from tests.unit.refresh.test_rounds import Threads

PACKAGE = Path(application.__file__).parents[1]
STACKS: list[list[str]] = []
"""Own frames on the way to a page: those of the driver, of the stream's thread, and of the thread that reads."""


def own_frames(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if PACKAGE in file.parents:
            yield f"{file.stem}.{frame.f_code.co_name}"
        frame = frame.f_back


class Introspective(PagedStream):
    """One page, which notes how it is read."""

    name = "introspective"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.public_config: Mapping[str, Any] = config

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        stack: list[str] = []
        for name, last in (("MainThread", "side_by_side.run"), ("rfr-introspective", "round_task.run")):
            thread = next(thread for thread in threading.enumerate() if thread.name == name)
            frames = list(own_frames(sys._current_frames()[thread.ident or 0]))[::-1]
            # A thread waits for those that it started in a function of its own, which does not lead here.
            stack += frames[: frames.index(last) + 1]
        STACKS.append([*stack, *list(own_frames(sys._getframe(1)))[::-1], "read_page"])
        return Page([{"id": 1}], None)


class LateSpark(Threads):
    """A cluster that is ready when the driver prefetch is over, so that the driver reads all pages."""

    context = ui_address = None
    is_local = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.ready.clear()

    def start(self) -> None: ...

    def stop(self) -> None:
        self.ready.set()


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A document whose refresh the driver does alone, in its driver prefetch."""
    monkeypatch.setattr(application, "Cluster", LateSpark)
    monkeypatch.setattr(application, "stop_on_signals", lambda stop: None)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    document = {
        "source": {"class": f"{__name__}:Introspective"},
        "streams": ["introspective"],
        "target": "raw.pages",
        "lake": {"properties": properties},
    }
    path = tmp_path / "refresh.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_few_frames_lie_between_the_program_and_the_page(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    STACKS.clear()
    assert application.main(document, began=0.0) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 1
    (stack,) = STACKS
    assert stack[0] == "application.main"
    assert len(stack) <= 14, stack


@pytest.fixture
def catalog(document: str) -> Catalog:
    return open_catalog(LakeSettings("rfr", json.loads(Path(document).read_text())["lake"]["properties"]))


@pytest.fixture
def store(tmp_path: Path, catalog: Catalog) -> ControlStore:
    """A control store, and the history tables."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    spec = load_objects([item for item in load_objects().objects if item.kind is Kind.LOG], entry_points=False)
    recorded, live = observe(catalog, store, project=spec.project)
    apply(plan(spec, recorded, live), catalog=catalog, store=store, spec=spec)
    return store


def run_with_store(document: str, url: str | None) -> int:
    written = json.loads(Path(document).read_text())
    Path(document).write_text(json.dumps(written | {"store": url}))
    return application.main(document, began=0.0, open_history=open_history)


def history_of(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = catalog.load_table(f"rfr_system.{name}").scan().to_arrow().to_pylist()
    return rows


def test_a_refresh_makes_no_commit_on_the_history_tables_in_its_own_time(
    document: str, catalog: Catalog, store: ControlStore, tmp_path: Path
) -> None:
    for _ in range(2):
        assert run_with_store(document, f"sqlite:///{tmp_path}/store.db") == 0
    assert history_of(catalog, "refresh_history") == history_of(catalog, "commit_history") == []
    assert History(store, catalog).maintain(always=True) == 4
    attempts, commits = history_of(catalog, "refresh_history"), history_of(catalog, "commit_history")
    assert [(row["generation"], row["outcome"]) for row in attempts] == [(1, "published"), (2, "published")]
    assert [row["snapshot_id"] for row in attempts] == [row["snapshot_id"] for row in commits]


def test_the_histories_hold_what_a_sync_changed(
    document: str, catalog: Catalog, store: ControlStore, tmp_path: Path
) -> None:
    written = json.loads(Path(document).read_text()) | {"streams": ["orders"], "target": "raw.orders"}
    written |= {"source": {"class": f"{changing_source.__name__}:Orders"}, "sync": "incremental"}
    Path(document).write_text(json.dumps(written | {"options": {"mode": "merge"}}))
    RECORDS[:] = [{"id": number, "updated_at": moment(number), "shop": "a"} for number in range(3)]
    url = f"sqlite:///{tmp_path}/store.db"
    assert run_with_store(document, url) == 0
    RECORDS.append({"id": 7, "updated_at": moment(7), "shop": "a"})
    assert run_with_store(document, url) == 0
    RECORDS.clear()
    History(store, catalog).maintain(always=True)
    first, second = history_of(catalog, "refresh_history")
    assert (first["mode"], first["changes"], second["mode"]) == ("replace", None, "merge")
    assert (second["changes"]["inserted"], second["changes"]["unchanged"]) == (1, 1)
    commits = history_of(catalog, "commit_history")
    assert [row["changes"] and row["changes"]["inserted"] for row in commits] == [None, 1]


def test_the_refresh_after_which_more_than_a_hundred_rows_wait_appends_them(
    document: str, catalog: Catalog, store: ControlStore, tmp_path: Path
) -> None:
    now = datetime.now(timezone.utc)
    rows = [{"commit_id": f"c{n}", "target": "raw.a", "snapshot_id": n, "committed_at": now} for n in range(99)]
    History(store, catalog).report("rfr_system.commit_history", rows, ("commit_id",))
    assert run_with_store(document, f"sqlite:///{tmp_path}/store.db") == 0
    assert len(history_of(catalog, "refresh_history")) == 1
    assert len(history_of(catalog, "commit_history")) == 100


@pytest.mark.usefixtures("store")
def test_a_refresh_whose_control_store_is_away_is_published_and_its_commit_is_recorded_by_the_next(
    document: str, catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_with_store(document, f"sqlite:///{tmp_path}/no/such/folder/canary-51d0aa.db") == 0
    assert "raw.pages: the history can't be written (ConfigurationError); this attempt is missing" in caplog.text
    assert "its commit is added to rfr_system.commit_history by the table's next refresh within 2 days" in caplog.text
    assert "canary-51d0aa" not in caplog.text
    assert run_with_store(document, None) == 0
    assert "raw.pages: the driver has no control store; this attempt is missing" in caplog.text
    assert run_with_store(document, f"sqlite:///{tmp_path}/store.db") == 0
    History(open_store(f"sqlite:///{tmp_path}/store.db"), catalog).maintain(always=True)
    assert [row["generation"] for row in history_of(catalog, "refresh_history")] == [3]
    assert sorted(row["generation"] for row in history_of(catalog, "commit_history")) == [1, 2, 3]


def test_where_no_deploy_created_the_history_tables_nothing_is_said(
    document: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert application.main(document, began=0.0) == 0
    assert "history" not in caplog.text


def test_the_process_ends_after_a_refresh_token_that_is_redeemed_is_kept(
    document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped, kept = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(LateSpark, "stop", lambda spark: stopped.set())

    def obtain(context: Any, refresh_token: str | None) -> AccessToken:
        begun.set()
        assert stopped.wait(PATIENCE)
        # The answer comes when nothing else is left to do.
        time.sleep(0.5)
        kept.set()
        return AccessToken("access")

    credential = shared_credential(f"{__name__} of a slow endpoint", obtain, "configured")
    threading.Thread(target=credential.token, args=(None, ReadContext()), daemon=True).start()
    assert begun.wait(PATIENCE)
    assert application.main(document, began=0.0) == 0
    assert kept.is_set()


def test_a_line_that_nobody_reads_any_more_ends_nothing() -> None:
    program = "from airflow_provider_rfr.refresh.application import _say\nfor number in range(9): _say(number)"
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")
