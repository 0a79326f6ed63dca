"""What is told of refreshes: from real ledgers in a real catalog, and from headers where only time matters."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from airflow_provider_rfr.exceptions import CatalogError, FencedError
from airflow_provider_rfr.hooks.spark import _ROUND
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.inspection import status_of, statuses
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.state import (
    LedgerHeader,
    Progress,
    RefreshState,
    State,
    TableStatus,
    rate_in_words,
    read_header,
    state_of,
)
from tests.headers import NOON, header_of
from tests.soon import PATIENCE
from tests.strict_commits import write_page
from tests.unit.messages import check_messages

NAME = "raw.orders"
TASK = {"dag_id": "shop", "dag_run_id": "monday", "task_id": "refresh", "map_index": -1}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/warehouse"}
    return open_catalog(LakeSettings("rfr", properties))


def begun(catalog: Catalog, name: str = NAME, where: str | None = None, partitions: int = 4, **labels: Any) -> Ledger:
    ledger = Ledger(LedgerTable.load_or_create(catalog, name, part_of(where)))
    slices = [(f'{{"n":{number}}}', {"n": number}) for number in range(partitions)]
    # An hour, for tests on a machine that has much else to do.
    labels = {"replace_where": where, "silence": 3600.0, **TASK, **labels}
    ledger.open_generation(slices, read_fingerprint="r", publish_fingerprint="p", run_key="k", labels=labels)
    return ledger


def read_page(ledger: Ledger, ordinal: int = 0, name: str = "page-1.parquet") -> None:
    """One page with one record, in a file that a commit names."""
    header = ledger.held
    file = write_page(ledger, name, ordinal)
    ledger.commit([file], rounds=header.rounds + 1, pages=header.pages + 1, records=1, partitions_done=ordinal + 1)


def told(catalog: Catalog, where: str | None = None, *, later: float = 0.0) -> TableStatus:
    found = status_of(catalog, NAME, where, datetime.now(timezone.utc) + timedelta(seconds=later))
    assert found is not None
    return found


def header(seconds: float = 0.0, **fields: Any) -> LedgerHeader:
    return header_of(**{"partitions": 8, "committed_at": after(seconds), **fields})


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


READ = {"partitions_done": 8}
FAILURE = {"ended_at": after(5), "outcome": "failed", "error": "SourceError: 503"}
STOP = {**FAILURE, "outcome": "stopped"}


@pytest.mark.parametrize(
    ("committed", "fields", "now", "expected"),
    [
        pytest.param(0, {}, 89, State.READING, id="it commits"),
        pytest.param(0, READ, 89, State.PUBLISHING, id="it commits, and all is read"),
        pytest.param(0, {}, 91, State.INTERRUPTED, id="it is silent for too long"),
        pytest.param(0, READ, 91, State.INTERRUPTED, id="it is silent for too long, and all is read"),
        pytest.param(0, {"silence": 600.0}, 599, State.READING, id="it may be silent for longer"),
        pytest.param(901, {}, 901, State.STALE, id="signs of life without a page are no progress"),
        pytest.param(901, {"progressed_at": after(60)}, 902, State.READING, id="a page is progress"),
        pytest.param(901, {"silence": 3600.0}, 901, State.READING, id="without a page, but within its silence"),
        pytest.param(901, READ, 901, State.PUBLISHING, id="a publish shows no progress in the ledger"),
        pytest.param(5, FAILURE, 6, State.FAILED, id="a failure"),
        pytest.param(5, FAILURE, 1e7, State.FAILED, id="a failure, however old"),
        pytest.param(5, {**FAILURE, "refused_under": "rules"}, 1e7, State.REFUSED, id="a refused publish, however old"),
        pytest.param(5, STOP, 86_400, State.STOPPED, id="a stop"),
        pytest.param(5, STOP, 86_406, State.STALE, id="a stop that nobody continued in a day"),
        pytest.param(0, {}, -3600, State.READING, id="a clock behind the driver's makes nobody dead"),
    ],
)
def test_the_state_follows_from_what_the_attempt_said_and_when(
    committed: float, fields: dict[str, Any], now: float, expected: State
) -> None:
    assert state_of(header(committed, **fields), after(now)) is expected


@pytest.mark.parametrize(
    ("fields", "percent"),
    [
        ({"pages": 0}, 0),
        ({"pages": 9}, None),
        ({"pages": 9, "previous_rows": 100, "records": 30}, 30),
        ({"partitions_done": 2}, 25),
        ({"partitions_done": 2, "previous_rows": 100, "records": 80}, 80),
        ({"partitions": 1}, None),
        ({"partitions": 1, "previous_rows": 100, "records": 250}, 99),
        ({"partitions": 1, "partitions_done": 1}, 100),
        ({"partitions": 1, "previous_rows": 100, "records": 50, "base_state": "s"}, None),
    ],
)
def test_percent_is_of_the_reading_and_none_where_nobody_knows(fields: dict[str, Any], percent: int | None) -> None:
    assert TableStatus(NAME, "", State.READING, "", header(**fields)).percent == percent


def test_pace_and_time_left_are_those_of_the_attempt() -> None:
    fields = {"began_at": after(100), "progressed_at": after(110), "found_pages": 600, "found_partitions": 4}
    content = TableStatus(NAME, "", State.READING, "", header(115, pages=700, partitions_done=6, **fields)).to_json()
    assert (content["pages_per_second"], content["seconds_left"]) == (10.0, 10)


def test_the_operator_recognises_the_line_that_the_driver_prints_after_a_round() -> None:
    assert _ROUND.match(Progress.of(header(10)).line("orders"))


def test_the_time_left_is_by_records_where_the_first_of_many_partitions_is_complete() -> None:
    fields = {"began_at": after(0), "progressed_at": after(50), "previous_rows": 48_000, "records": 26_400}
    status = TableStatus(NAME, "", State.READING, "", header(55, partitions=24, partitions_done=1, pages=528, **fields))
    assert (status.percent, status.to_json()["seconds_left"]) == (55, 41)


def test_a_refresh_is_followed_from_its_opening_to_its_publish(catalog: Catalog) -> None:
    assert status_of(catalog, NAME) is None
    LedgerTable.load_or_create(catalog, NAME)
    assert told(catalog).state is State.OPENING
    assert told(catalog, later=901).state is State.STALE
    ledger = begun(catalog, partitions=2)
    opened = told(catalog)
    assert (opened.state, opened.percent, opened.is_working) == (State.READING, 0, True)
    size = opened.header and opened.header.bytes
    read_page(ledger)
    found = told(catalog)
    assert found.header is not None and size is not None
    assert found.percent == 50
    assert found.header.bytes > size > 0
    content = found.to_json()
    assert content["run"] == {**TASK, "try_number": None}
    assert (content["pages"], content["partitions_done"], content["partitions"]) == (1, 1, 2)
    ledger.commit([], partitions_done=2)
    assert told(catalog).state is State.PUBLISHING
    ledger.commit([], state=RefreshState.PUBLISHED, published_rows=1, snapshot_id=2**62)
    done = told(catalog)
    assert (done.state, done.percent, done.is_working) == (State.PUBLISHED, 100, False)
    assert done.sentence.startswith("Published 1 row, ")
    assert done.to_json()["snapshot_id"] == str(2**62)


def test_a_failure_is_told_while_the_next_attempt_works_and_after_it(catalog: Catalog) -> None:
    ledger = begun(catalog)
    read_page(ledger)
    ledger.end("SourceError: 503\nfrom the API")
    failed = told(catalog)
    assert failed.state is State.FAILED
    check_messages(failed.sentence)
    second = Ledger(LedgerTable.load_or_create(catalog, NAME))
    second.take_over("p", "k")
    again = told(catalog)
    assert again.state is State.READING
    check_messages(again.sentence)
    assert again.header is not None
    assert (again.header.found_pages, again.header.found_partitions, again.header.outcome) == (1, 1, None)
    second.end("RefreshStoppedError: stopped", "stopped")
    assert told(catalog).state is State.STOPPED
    check_messages(told(catalog, later=90_000).sentence)


def test_the_newest_error_is_told_whole_and_those_before_it_by_their_beginning(catalog: Catalog) -> None:
    error = "SourceError: " + "the API answered at length; " * 20
    ledger = begun(catalog)
    read_page(ledger)
    ledger.end(error)
    found = told(catalog)
    assert [found.history[0].error, found.attempts[0].error] == [error, error]
    second = Ledger(LedgerTable.load_or_create(catalog, NAME))
    second.take_over("p", "k")
    assert told(catalog).attempts[1].error == f"{error[:200]}..."


def test_an_attempt_that_was_killed_is_told_by_its_silence(catalog: Catalog) -> None:
    begun(catalog, silence=30.0)
    found = told(catalog, later=7200)
    assert found.state is State.INTERRUPTED
    check_messages(found.sentence)


def test_an_end_that_only_the_object_store_took_is_told(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = begun(catalog)

    def away(*_: object) -> None:
        raise CatalogError("the catalog does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(LedgerTable, "commit", away)
        broken.setattr(LedgerTable, "reload", away)
        with pytest.raises(CatalogError):
            ledger.end("CatalogError: the catalog does not answer")
    found = told(catalog)
    assert found.state is State.FAILED
    check_messages(found.sentence)


def test_a_publish_whose_driver_died_before_it_was_marked_is_published(catalog: Catalog) -> None:
    ledger = begun(catalog, partitions=1)
    read_page(ledger)
    target = TargetTable(catalog, NAME)
    planned = target.prepare(pa.schema([pa.field("id", pa.int64())]), "evolve", inferred=False, rows_stay=False)
    rows = pa.table({"id": pa.array([1], pa.int64())})
    files = [stored.describe(planned.layout) for stored, _ in planned.write(rows)]
    target.commit(files, (ledger.id, 1), mode="replace", replace_where=None, summary={"rfr.rows": "1"})
    found = told(catalog, later=1e6)
    assert found.state is State.PUBLISHED
    assert found.to_json()["published_rows"] == 1


def test_history_has_what_became_of_each_generation(catalog: Catalog) -> None:
    first = begun(catalog)
    first.commit([], state=RefreshState.PUBLISHED, published_rows=7, snapshot_id=1)
    second = begun(catalog)
    second.end("TypeMismatchError: no number", refused_under="rules")
    begun(catalog).end("SourceError: 503")
    begun(catalog)
    found = told(catalog).history
    assert [(past.generation, past.outcome) for past in found] == [
        (4, "reading"),
        (3, "abandoned"),
        (2, "refused"),
        (1, "published"),
    ]
    assert [past.rows for past in found] == [None, None, None, 7]
    assert found[2].error == "TypeMismatchError: no number"
    assert found[3].dag_run_id == "monday"
    assert told(catalog).header == read_header(told(catalog).header.to_summary())  # type: ignore[union-attr]


def test_an_attempt_is_kept_with_its_end_its_pages_and_the_try_of_its_task(catalog: Catalog) -> None:
    first = begun(catalog, try_number=1)
    read_page(first)
    first.end("SourceError: 503")
    second = Ledger(LedgerTable.load(catalog, NAME))  # type: ignore[arg-type]
    second.take_over("p", "k", {**TASK, "try_number": 2})
    read_page(second, 1, "page-2.parquet")
    # Killed: it says nothing.
    third = Ledger(LedgerTable.load(catalog, NAME))  # type: ignore[arg-type]
    third.take_over("p", "k", {**TASK, "dag_run_id": "tuesday", "try_number": 1})
    assert [
        (attempt.epoch, attempt.outcome, attempt.pages, attempt.error, attempt.dag_run_id, attempt.try_number)
        for attempt in told(catalog).attempts
    ] == [
        (3, "reading", 0, None, "tuesday", 1),
        (2, "interrupted", 1, None, "monday", 2),
        (1, "failed", 1, "SourceError: 503", "monday", 1),
    ]
    third.end("RefreshStoppedError: stopped", "stopped")
    assert told(catalog).attempts[0].outcome == "stopped"
    third.commit([], state=RefreshState.PUBLISHED, published_rows=2)
    assert told(catalog).attempts[0].outcome == "published"
    assert told(catalog).header == read_header(told(catalog).header.to_summary())  # type: ignore[union-attr]
    assert begun(catalog).held.earlier == ()


def test_history_stays_small_however_long_it_goes_on() -> None:
    kept = header(error="x" * 5000)
    for _ in range(50):
        kept = header(error="x" * 5000, past=kept.with_past)
    for _ in range(50):
        kept = kept.taken_over(epoch=kept.epoch + 1)
    assert len(kept.past) == len(kept.earlier) == 20
    assert len(json.dumps(kept.to_summary())) < 20_000


def test_those_in_trouble_come_first_and_one_that_can_not_be_read_hides_no_other(
    catalog: Catalog, tmp_path: Path
) -> None:
    begun(catalog, "raw.a").commit([], state=RefreshState.PUBLISHED, published_rows=1)
    begun(catalog, "raw.b")
    begun(catalog, "raw.c").end("SourceError: 503")
    begun(catalog, "deep.down", "day = '2026-01-01'")
    begun(catalog, "raw.torn")
    for file in (tmp_path / "warehouse").rglob("torn__rfr_ledger/metadata/*.metadata.json"):
        file.write_text("{")
    catalog.create_table("raw.mine__rfr_ledger", pa.schema([pa.field("id", pa.int64())]))
    found = [(status.table, status.state.value) for status in statuses(catalog)]
    assert found == [
        ("raw.torn", "unreadable"),
        ("raw.c", "failed"),
        ("deep.down", "reading"),
        ("raw.b", "reading"),
        ("raw.a", "published"),
    ]
    assert [status.table for status in statuses(catalog, ["raw.a", "raw.nope"])] == ["raw.a"]


def test_parts_are_told_by_the_filter_that_names_them(catalog: Catalog) -> None:
    where = "day = '2026-01-01'"
    begun(catalog, where=where)
    assert status_of(catalog, NAME) is None
    assert told(catalog, where).to_json()["replace_where"] == where


def test_a_fenced_attempt_does_not_tell_its_end_as_the_newer_one_s(catalog: Catalog) -> None:
    old = begun(catalog)
    Ledger(LedgerTable.load_or_create(catalog, NAME)).take_over("p", "k2")
    with pytest.raises(FencedError):
        old.end("SourceError: 503")
    assert told(catalog).state is State.READING


@pytest.mark.parametrize(
    ("per_second", "told"), [(1234.5, "1,234"), (9.94, "9.9"), (0.14, "0.1"), (1 / 7, "0.1"), (0.025, "0.03"), (0, "0")]
)
def test_a_slow_rate_is_not_told_as_none(per_second: float, told: str) -> None:
    assert rate_in_words(per_second) == told


@pytest.mark.test
def test_a_catalog_that_never_answers_does_not_keep_python_from_ending() -> None:
    program = (
        "import os, signal, threading\n"
        "from airflow_provider_rfr.timeouts import in_threads\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "in_threads(lambda _: threading.Event().wait(), range(30))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
