"""What the pages show, as values: details of a refresh, charts, what Airflow knows of a task, and the plugin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import StringType

from airflow_provider_rfr.hooks import task_states
from airflow_provider_rfr.lake.catalog import create_table
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.tables import table_facts
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh import inspection
from airflow_provider_rfr.refresh.inspection import read_again, read_details, status_of, statuses
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.past import PastGeneration
from airflow_provider_rfr.refresh.state import RefreshState, State, TableStatus
from airflow_provider_rfr.web import charts, display
from tests.unit.messages import check_messages
from tests.unit.web.ledgers import CANARY, TASK, begun, read_page


def told(catalog: Catalog) -> TableStatus:
    found = status_of(catalog, "raw.orders")
    assert found is not None
    return found


def test_the_details_count_what_attempts_and_partitions_read(catalog: Catalog) -> None:
    first = begun(catalog, "raw.orders", **TASK)
    read_page(first, 0)
    read_page(first, 1, complete=False)
    second = Ledger(LedgerTable.load(catalog, "raw.orders"))  # type: ignore[arg-type]
    second.take_over("p", "k", TASK)
    read_page(second, 1, page=2)
    found = read_details(catalog, told(catalog))
    assert found is not None
    assert [(attempt.epoch, attempt.pages) for attempt in found.attempts] == [(1, 2), (2, 1)]
    assert [pages for _, pages in found.points] == [1, 2, 3]
    assert {partition.key: (partition.pages, partition.is_complete) for partition in found.slowest} == {
        '{"n":0}': (1, True),
        '{"n":1}': (2, True),
    }
    assert (found.unfinished, found.files, found.files_read, found.target) == ((), 3, 3, None)
    curve = charts.pages_over_time(found, second.held.opened_at)
    assert curve is not None
    assert [mark.outcome for mark in curve.marks] == ["2"]
    assert curve.line.startswith(f"{charts.LEFT},{charts.BOTTOM} ")
    assert curve.line.endswith(f" {charts.RIGHT},{charts.TOP}")
    assert [tick.label for tick in curve.y_ticks] == ["0", "1", "2", "3"]
    assert [point.title.split(" after")[0] for point in curve.points] == ["1 page", "2 pages", "3 pages"]


def test_a_sample_of_the_files_stands_for_all_pages_and_calls_no_partition_unfinished(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = begun(catalog, "raw.orders", **TASK)
    for page in range(1, 5):
        read_page(ledger, 0, page, complete=page == 4)
    monkeypatch.setattr(inspection, "_MOST_FILES", 2)
    found = read_details(catalog, told(catalog))
    assert found is not None
    assert (found.files, found.files_read, found.unfinished) == (4, 2, ())
    assert [pages for _, pages in found.points] == [2, 4]


def test_a_table_s_columns_are_told_with_their_changes(catalog: Catalog) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "old": pa.array([1], pa.int32())})
    table = create_table(catalog, "raw.orders", rows.schema)
    table.append(rows)
    with table.update_schema() as change:
        change.rename_column("old", "new").add_column("note", StringType())
    facts = table_facts(catalog, "raw.orders")
    assert facts is not None
    assert (facts.rows, facts.files, facts.snapshot_id is not None) == (1, 1, True)
    assert (facts.snapshots, facts.max_copies) == (1, None)
    assert [column.name for column in facts.columns] == ["id", "new", "note"]
    assert [set(change.sentences) for change in facts.changes] == [
        {"old was renamed to new", "note was added (string)"}
    ]


def test_a_column_that_came_and_went_is_two_changes(catalog: Catalog) -> None:
    table = create_table(catalog, "raw.orders", pa.schema({"id": pa.int64()}))
    for row in ({"id": [1]}, {"id": [2], "note": ["x"]}, {"id": [3]}):
        with table.update_schema() as change:
            if "note" in row:
                change.add_column("note", StringType())
            elif "note" in table.schema().column_names:
                change.delete_column("note")
        table.append(pa.table({**row, "id": pa.array(row["id"], pa.int64())}))
    facts = table_facts(catalog, "raw.orders")
    assert facts is not None
    assert [change.sentences for change in facts.changes] == [("note was dropped",), ("note was added (string)",)]
    assert all(schema_change.at is not None for schema_change in facts.changes)


def test_a_replaced_column_and_one_without_values_are_one_sentence_each(catalog: Catalog) -> None:
    note = pa.array(["x"])
    publish(catalog, pa.table({"amount": pa.array([1.5]), "note": note}), 1)
    publish(catalog, pa.table({"amount": pa.array([Decimal("1.5")], pa.decimal128(10, 2))}), 2)
    facts = table_facts(catalog, "raw.orders")
    assert facts is not None
    (change,) = facts.changes
    assert change.sentences == ("amount: double -> decimal(10,2)", "1 column got no value: note")
    assert change.at is not None


def publish(catalog: Catalog, rows: pa.Table, generation: int) -> None:
    target = TargetTable(catalog, "raw.orders")
    planned = target.prepare(rows.schema, "evolve", inferred=False, rows_stay=False)
    files = [stored.describe(planned.layout) for stored, _ in planned.write(rows)]
    target.commit(files, ("ledger", generation), mode="replace", replace_where=None, summary={})


def test_bars_stand_for_rows_and_for_records_where_nothing_was_published(catalog: Catalog) -> None:
    read_page(begun(catalog, "raw.orders", **TASK))
    begun(catalog, "raw.orders", **TASK)
    rows, durations = charts.generations(told(catalog).history)
    assert [tick.label for tick in rows.x_ticks] == ["1", "2"]
    assert [bar.outcome for bar in rows.points] == ["abandoned", "reading"]
    assert rows.points[0].height > rows.points[1].height > 0
    assert rows.points[0].title.startswith("generation 1, abandoned: 1 record read, opened 20")
    assert durations.y_ticks[0].label == "0 s"
    assert charts.generations(()) == ()


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (0, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (52_000, ["0", "20,000", "40,000", "60,000"]),
        (10**12, ["0", "500,000,000,000", "1,000,000,000,000"]),
    ],
)
def test_an_axis_has_few_round_numbers_up_to_the_greatest_value(rows: int, labels: list[str]) -> None:
    moment = datetime(2026, 11, 24, tzinfo=timezone.utc)
    chart, _ = charts.generations(
        [PastGeneration(generation=1, outcome="published", opened_at=moment, ended_at=moment, rows=rows)]
    )
    assert [tick.label for tick in chart.y_ticks] == labels
    assert chart.y_ticks[-1].place == charts.TOP


@pytest.mark.parametrize(("days", "last"), [(0, "0.2 s"), (0.001, "90 s"), (0.5, "12 h"), (40, "40 d")])
def test_an_axis_of_time_has_few_round_times(days: float, last: str) -> None:
    moment = datetime(2026, 11, 24, tzinfo=timezone.utc)
    _, chart = charts.generations(
        [
            PastGeneration(
                generation=1, outcome="published", opened_at=moment, ended_at=moment + timedelta(days=days), rows=1
            )
        ]
    )
    assert chart.y_ticks[-1].label == last
    assert len(chart.y_ticks) <= 6


@pytest.mark.parametrize(
    ("state", "later", "expected"),
    [
        ("running", -60, State.READING),
        ("deferred", -60, State.READING),
        ("running", 60, State.WAITING),
        ("up_for_retry", -60, State.WAITING),
        ("queued", None, State.WAITING),
        ("failed", -60, State.INTERRUPTED),
        (None, None, State.INTERRUPTED),
    ],
)
def test_a_refresh_whose_task_is_not_at_it_waits_or_is_interrupted_before_its_ledger_is_silent(
    catalog: Catalog, airflow_says: Callable[..., None], state: str | None, later: int | None, expected: State
) -> None:
    begun(catalog, "raw.orders", **TASK)
    airflow_says(state, None if later is None else datetime.now(timezone.utc) + timedelta(seconds=later))
    [found] = task_states.with_tasks([told(catalog)], partial(read_again, catalog))
    assert found.state is expected
    if expected is not State.READING:
        check_messages(found.sentence)


@pytest.mark.parametrize(("state", "expected"), [("up_for_retry", State.WAITING), ("failed", State.FAILED)])
def test_a_failed_attempt_waits_while_airflow_tries_the_task_again(
    catalog: Catalog, airflow_says: Callable[..., None], state: str, expected: State
) -> None:
    begun(catalog, "raw.orders", **TASK).end("SourceError: 503")
    airflow_says(state)
    [found] = task_states.with_tasks([told(catalog)], partial(read_again, catalog))
    assert found.state is expected
    assert "SourceError: 503" in found.sentence


@pytest.mark.parametrize(("state", "expected"), [("up_for_retry", State.WAITING), ("failed", State.STOPPED)])
def test_a_stopped_attempt_waits_only_while_airflow_tries_the_task_again(
    catalog: Catalog, airflow_says: Callable[..., None], state: str, expected: State
) -> None:
    begun(catalog, "raw.orders", **TASK).end("RefreshStoppedError: stopped", "stopped")
    airflow_says(state)
    [found] = task_states.with_tasks([told(catalog)], partial(read_again, catalog))
    assert found.state is expected
    assert found.sentence.startswith("Attempt 1 was stopped")


def test_a_refused_publish_stays_refused(catalog: Catalog, airflow_says: Callable[..., None]) -> None:
    begun(catalog, "raw.orders", **TASK).end("TypeMismatchError: no number", refused_under="rules")
    airflow_says("up_for_retry")
    [found] = task_states.with_tasks([told(catalog)], partial(read_again, catalog))
    assert found.state is State.REFUSED


def test_a_task_that_airflow_does_not_know_changes_nothing(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(catalog, "raw.orders", **TASK)
    monkeypatch.setattr(task_states, "_states", lambda _: {})
    assert [task.state for task in task_states.with_tasks([told(catalog)], partial(read_again, catalog))] == [
        State.READING
    ]


def test_a_refresh_that_ended_before_airflow_was_asked_is_not_interrupted(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = begun(catalog, "raw.orders", **TASK)
    begun(catalog, "raw.lost", **TASK)

    def states(wanted: Any) -> dict[Any, Any]:
        ledger.commit([], state=RefreshState.PUBLISHED, snapshot_id=7, published_rows=1)
        return {task: task_states._TaskState("success", None) for task in wanted}

    monkeypatch.setattr(task_states, "_states", states)
    found = task_states.with_tasks(statuses(catalog), partial(read_again, catalog))
    assert {item.table: item.state for item in found} == {"raw.orders": State.PUBLISHED, "raw.lost": State.INTERRUPTED}


def test_an_attempt_that_went_on_before_airflow_was_asked_is_not_interrupted(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = begun(catalog, "raw.orders", **TASK)

    def states(wanted: Any) -> dict[Any, Any]:
        read_page(ledger)
        return {task: task_states._TaskState("queued", None) for task in wanted}

    monkeypatch.setattr(task_states, "_states", states)
    [found] = task_states.with_tasks(statuses(catalog), partial(read_again, catalog))
    assert (found.state, found.header and found.header.pages) == (State.READING, 1)


@pytest.mark.parametrize("dag_id", ["shop", "hidden_dag"])
def test_details_of_another_refresh_than_the_one_that_is_known_are_not_told(catalog: Catalog, dag_id: str) -> None:
    read_page(begun(catalog, "raw.orders", **TASK))
    known = told(catalog)
    assert read_details(catalog, known) is not None
    read_page(begun(catalog, "raw.orders", **TASK | {"dag_id": dag_id}))
    assert read_details(catalog, known) is None
    assert read_details(catalog, told(catalog)) is not None


def test_details_of_a_refresh_that_another_dag_goes_on_with_are_not_told(catalog: Catalog) -> None:
    read_page(begun(catalog, "raw.orders", **TASK))
    known = told(catalog)
    Ledger(LedgerTable.load(catalog, "raw.orders")).take_over("p", "k", TASK | {"dag_id": "hidden_dag"})  # type: ignore[arg-type]
    assert read_details(catalog, known) is None


def test_the_plugin_imports_no_page_until_the_application_is_asked_for() -> None:
    program = (
        "import sys, airflow_provider_rfr.plugin as p\n"
        "views = p.RfrPlugin().external_views\n"
        "print(*(each for each in sys.modules if each.startswith('airflow_provider_rfr')))\n"
        "print(*(each['href'] for each in views))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    modules, addresses = done.stdout.splitlines()[-2:]
    # Airflow itself loads the metadata; the buttons of tasks lead to a tab.
    names = ("plugin", "get_provider_info", "links")
    assert set(modules.split()) <= {"airflow_provider_rfr", *(f"airflow_provider_rfr.{name}" for name in names)}
    assert addresses.split()[:2] == ["/rfr/", "/rfr/?dag_id={DAG_ID}"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (f'page token "{{\\"after\\":\\"{CANARY}\\', "page token ***"),
        (f"page token '{CANARY}\\", "page token ***"),
        (f'page token "{CANARY}\\\n{CANARY}" came twice', "page token *** came twice"),
        (f'token {{"a":"x}} {CANARY}"}} came twice', "token *** came twice"),
        (f'token {{"a":[1] ,"b":"{CANARY}"}} came twice', "token *** came twice"),
        (f"token {{'a': [{{'b': '{CANARY} \\''}}]}} came twice", "token *** came twice"),
        (f'the page token {{"a":"\n{CANARY} came twice', "the page token ***"),
        ("token -17 is not there, token 18", "token *** is not there, token ***"),
        (f"GET HTTPS://api.example.com/a?after={CANARY}: 503", "GET HTTPS://api.example.com/a?***: 503"),
        (f"see https://api.example.com/a#{CANARY}.", "see https://api.example.com/a#***."),
        (f"see 'https://api.example.com?{CANARY}'", "see 'https://api.example.com?***'"),
        (f"503 [GET /orders?after={CANARY}]", "503 [GET /orders?***]"),
        (f"GET /orders?{CANARY} failed", "GET /orders?*** failed"),
        (f'GET orders?page[after]={{"a":"{CANARY}"}}: 503', "GET orders?***: 503"),
        (f"GET https://user:{CANARY}@host/a failed", "GET https://***@host/a failed"),
        (f"HTTPS://user:p@{CANARY}@host:99", "HTTPS://***@host:99"),
        *[(f"no postgresql://rfr:{mark}{CANARY}@db/cat: 1", "no postgresql://***@db/cat: 1") for mark in "/?#"],
    ],
)
def test_an_error_is_shown_without_tokens_queries_and_logins(error: str, shown: str) -> None:
    assert display.without_cursors(error) == shown


@pytest.mark.parametrize(
    "error",
    [
        "a token of 3 is and/or? Yes",
        "what? no: https://a.example/b, see docs/ui.md#this",
        "HTTP://a:8080/b@c and hdfs://a:8020/b@c fail",
    ],
)
def test_an_error_without_any_is_shown_as_it_is(error: str) -> None:
    assert display.without_cursors(error) == error


def test_a_time_that_no_calendar_has_is_not_shown() -> None:
    assert display.at(0) == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert [display.at(milliseconds) for milliseconds in (10**17, -(10**17), 10**30, 10**400)] == [None] * 4
