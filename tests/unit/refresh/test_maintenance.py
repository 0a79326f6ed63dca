"""What a publish tidies up after itself: snapshots of the target, and ledgers of its parts."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_rfr.lake import expiry
from airflow_provider_rfr.lake.expiry import _MAX_AGE, _MIN_SNAPSHOTS
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh import after_publish
from airflow_provider_rfr.refresh.after_publish import RefreshFigures, drop_part_ledgers, maintain, part_ledgers
from airflow_provider_rfr.refresh.config import parse_options
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.state import RefreshState

NAME = "raw.daily"
TASK = {"dag_id": "shop", "dag_run_id": "monday", "task_id": "refresh", "map_index": -1}


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return SqlCatalog("t", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")


def publish(catalog: SqlCatalog, value: int) -> None:
    target = TargetTable(catalog, NAME)
    planned = target.prepare(pa.schema([pa.field("id", pa.int64())]), "evolve", inferred=False, rows_stay=False)
    rows = pa.table({"id": pa.array([value], pa.int64())})
    files = [stored.describe(planned.layout) for stored, _ in planned.write(rows)]
    target.commit(files, ("ledger", 1), mode="replace", replace_where=None, summary={})


def ledger_of(catalog: SqlCatalog, where: str | None, *, published: bool = True) -> Ledger:
    ledger = Ledger(LedgerTable.load_or_create(catalog, NAME, part_of(where)))
    labels = {"replace_where": where, **TASK}
    ledger.open_generation([("{}", {})], read_fingerprint="r", publish_fingerprint="p", run_key=None, labels=labels)
    if published:
        ledger.commit([], state=RefreshState.PUBLISHED, published_rows=3, snapshot_id=1)
    return ledger


def days_later(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    clock = time.time
    monkeypatch.setattr(after_publish, "time", SimpleNamespace(time=lambda: clock() + days * 86400))


def tidied(catalog: SqlCatalog, **options: Any) -> RefreshFigures:
    figures = RefreshFigures("orders", NAME)
    maintain(catalog, parse_options(options), figures)
    return figures


def ledgers(catalog: SqlCatalog) -> list[str]:
    headers = (ledger.header for ledger in part_ledgers(catalog, NAME))
    return sorted(header.replace_where or "" for header in headers if header is not None)


def let_all_go(catalog: SqlCatalog, **more: str) -> None:
    with catalog.load_table(NAME).transaction() as transaction:
        transaction.set_properties({_MAX_AGE: "0", _MIN_SNAPSHOTS: "1", **more})


def test_snapshots_of_a_table_that_a_refresh_made_are_expired_and_counted(catalog: SqlCatalog) -> None:
    publish(catalog, 1)
    publish(catalog, 2)
    assert tidied(catalog).snapshots_expired == 0
    let_all_go(catalog)
    assert tidied(catalog, expire=False).snapshots_expired == 0
    figures = tidied(catalog)
    assert figures.snapshots_expired == 1
    assert figures.files_deleted >= 3 and figures.files_undeleted == 0


def test_a_table_of_somebody_else_is_left_alone_unless_it_is_asked_for(catalog: SqlCatalog) -> None:
    catalog.create_namespace("raw")
    catalog.create_table(NAME, pa.schema([pa.field("id", pa.int64())]))
    publish(catalog, 1)
    publish(catalog, 2)
    let_all_go(catalog)
    assert tidied(catalog).snapshots_expired == 0
    assert tidied(catalog, expire=True).snapshots_expired == 1


@pytest.mark.parametrize("error", [PermissionError("secret"), ConnectionError("secret"), ValueError("secret")])
def test_what_fails_here_fails_no_refresh_and_shows_no_text_of_others(
    catalog: SqlCatalog, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(catalog, 1)
    publish(catalog, 2)
    let_all_go(catalog)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(expiry._Expiry, "_commit", fail)
    assert tidied(catalog).snapshots_expired == 0
    assert f"raw.daily is published, but could not be tidied up: {type(error).__name__}" in caplog.text
    assert "secret" not in caplog.text


def test_a_property_that_is_no_number_is_told_in_words(catalog: SqlCatalog, caplog: pytest.LogCaptureFixture) -> None:
    publish(catalog, 1)
    let_all_go(catalog, **{_MAX_AGE: "1 week"})
    tidied(catalog)
    assert "table property history.expire.max-snapshot-age-ms: '1 week' is not a whole number" in caplog.text


def test_a_ledger_says_in_words_which_part_it_is_and_who_read_it(catalog: SqlCatalog) -> None:
    ledger_of(catalog, None)
    ledger_of(catalog, "day = '2026-01-01'")
    (found,) = part_ledgers(catalog, NAME)
    assert found.header is not None
    assert found.header.replace_where == "day = '2026-01-01'"
    assert {name: getattr(found.header, name) for name in TASK} == TASK
    assert found.table == f"{NAME}__rfr_ledger_{part_of(found.header.replace_where)}"


def test_a_part_s_ledger_goes_when_nobody_resumes_it(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = "day = '2026-01-02'"
    publish(catalog, 1)
    ledger_of(catalog, None)
    ledger_of(catalog, "day = '2026-01-01'")
    ledger_of(catalog, where, published=False)
    before = ledgers(catalog)
    days_later(monkeypatch, 6.9)
    tidied(catalog, replace_where=where)
    assert ledgers(catalog) == before
    days_later(monkeypatch, 7.1)
    tidied(catalog)
    tidied(catalog, replace_where=where, expire=False)
    tidied(catalog, replace_where=where, resume_within=30 * 86400)
    assert ledgers(catalog) == before
    tidied(catalog, replace_where=where)
    assert ledgers(catalog) == []
    # The whole table's ledger is no part's.
    assert LedgerTable.load(catalog, NAME) is not None
    assert not [path for path in (tmp_path / "warehouse").rglob("*__rfr_ledger_*/**/*") if path.is_file()]


def test_an_unfinished_part_is_kept_for_as_long_as_it_may_be_resumed(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(catalog, 1)
    ledger_of(catalog, "day = '2026-01-01'")
    ledger_of(catalog, "day = '2026-01-02'", published=False)
    days_later(monkeypatch, 1)
    dropped = drop_part_ledgers(catalog, NAME, 0.0)
    assert [ledger.header.replace_where for ledger in dropped if ledger.header] == ["day = '2026-01-01'"]
    assert ledgers(catalog) == ["day = '2026-01-02'"]


def test_a_part_whose_ledger_was_dropped_begins_anew(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(catalog, 1)
    first = ledger_of(catalog, "day = '2026-01-01'")
    days_later(monkeypatch, 8)
    assert len(drop_part_ledgers(catalog, NAME, after_publish._LEDGER_SECONDS)) == 1
    second = ledger_of(catalog, "day = '2026-01-01'")
    assert first.id != second.id and second.header is not None and second.header.generation == 1


def test_a_ledger_that_is_made_while_its_predecessor_is_dropped_keeps_its_files(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both lie in the same folder."""
    where = "day = '2026-01-01'"
    publish(catalog, 1)
    ledger_of(catalog, where)
    drop = SqlCatalog.drop_table

    def and_begin_anew(self: SqlCatalog, name: str) -> None:
        drop(self, name)
        ledger_of(catalog, where)

    monkeypatch.setattr(SqlCatalog, "drop_table", and_begin_anew)
    drop_part_ledgers(catalog, NAME, -1.0, -1.0)
    monkeypatch.undo()
    again = Ledger(LedgerTable.load_or_create(catalog, NAME, part_of(where)))
    assert again.header is not None and again.header.generation == 1
    again.commit([], records=1)


def test_each_publish_looks_at_a_few_of_many_ledgers(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(catalog, 1)
    for number in range(5):
        ledger_of(catalog, f"day = '{number}'")
    days_later(monkeypatch, 8)
    monkeypatch.setattr(after_publish, "_SAMPLE", 2)
    tidied(catalog, replace_where="day = '1'")
    assert len(ledgers(catalog)) == 3
