"""The list of refreshes: its order, its pages, its filters, and the words around it."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session
from fastapi import FastAPI
from pyiceberg.catalog import Catalog
from sqlalchemy import delete

from airflow_provider_rfr.hooks import task_states
from airflow_provider_rfr.lake import LakeSettings
from airflow_provider_rfr.lake.catalog import create_table
from airflow_provider_rfr.refresh.inspection import status_of
from airflow_provider_rfr.refresh.state import RefreshState, State, TableStatus
from airflow_provider_rfr.web import charts, display, terms
from tests.soon import soon
from tests.unit.web.conftest import Login
from tests.unit.web.ledgers import CANARY, REFRESH, TASK, begun, read_page
from tests.unit.web.managers import PickyManager

ROOT = Path(charts.__file__).parents[2]


def published(catalog: Catalog, name: str, rows: int, **labels: Any) -> None:
    ledger = begun(catalog, name, **{**TASK, **labels})
    ledger.commit([], state=RefreshState.PUBLISHED, snapshot_id=7, published_rows=rows)


def names(text: str) -> list[str]:
    return re.findall(r'<td class="name">\s*<a href="[^"]*">([^<]*)</a>', text)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", "failed open big small"),
        ("table", "big failed open small"),
        ("-table", "small open failed big"),
        ("-rows", "big small failed open"),
        ("rows", "small big failed open"),
        ("progress", "failed open big small"),
        ("nonsense", "failed open big small"),
    ],
)
def test_the_list_is_sorted_by_a_column_and_what_has_no_value_is_last(
    login: Login, catalog: Catalog, sort: str, order: str
) -> None:
    published(catalog, "raw.small", 5)
    published(catalog, "raw.big", 1000)
    begun(catalog, "raw.open", **TASK)
    begun(catalog, "raw.failed", **TASK).end("SourceError: 503")
    text = login("owner").get("/rfr/", params={"sort": sort}).text
    assert names(text) == [f"raw.{name}" for name in order.split()]


def test_a_column_s_link_turns_its_order_and_then_ends_it(login: Login, catalog: Catalog) -> None:
    published(catalog, "raw.orders", 5)
    owner, address, followed = login("owner"), "/rfr/?q=raw", []
    for _ in range(3):
        [address] = re.findall('href="([^"]*)"[^>]*>Rows', owner.get(address).text)
        address = html.unescape(address)
        followed.append(address)
    assert followed == ["/rfr/?q=raw&sort=-rows", "/rfr/?q=raw&sort=rows", "/rfr/?q=raw"]
    assert 'aria-sort="ascending"' in owner.get(followed[1]).text


def test_two_thousand_tables_are_twenty_pages_and_no_viewer_waits_for_the_catalog(
    login: Login, pages: FastAPI, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders", **TASK)
    asked: list[str] = []
    status = status_of(catalog, "raw.orders")
    assert status is not None
    many = tuple(replace(status, table=f"raw.copy_{number:04}", ledger=str(number)) for number in range(2000))

    def read(lake: str) -> tuple[TableStatus, ...]:
        asked.append(lake)
        return many

    monkeypatch.setattr(pages.state.lakes, "_read_statuses", read)
    assert "2,000 tables" in login("owner").get("/rfr/").text
    monkeypatch.setattr(pages.state.lakes._statuses["rfr_lake_default"], "_pause", math.inf)
    viewer = login("viewer")
    with soon():
        first = viewer.get("/rfr/", params={"sort": "table"}).text
    assert len(names(first)) == 100
    assert "1 to 100 of 2,000" in first
    [onward] = re.findall(r'rel="next" href="([^"]*)"', first)
    second = viewer.get(html.unescape(onward)).text
    assert names(second)[0] == "raw.copy_0100"
    last = viewer.get("/rfr/", params={"sort": "table", "page": "99"}).text
    assert "1,901 to 2,000 of 2,000" in last
    assert 'rel="next"' not in last
    assert "1 to 100" in viewer.get("/rfr/", params={"page": "²"}).text
    found = viewer.get("/rfr/", params={"q": "copy_1234"}).text
    assert names(found) == ["raw.copy_1234"]
    assert "Pages of the list" not in found
    assert asked == ["rfr_lake_default"]


def test_the_last_outcomes_are_told_in_words_too(login: Login, catalog: Catalog) -> None:
    for rows in range(12):
        published(catalog, "raw.orders", rows)
    begun(catalog, "raw.orders", **TASK).end("SourceError: 503")
    text = login("owner").get("/rfr/").text
    assert f'aria-label="Last outcomes, the newest at the end: {"published, " * 9}failed"' in text
    assert text.count('<i class="published">') == 9


def test_a_dag_s_tab_has_no_navigation_of_its_own_and_the_way_back_stays_in_it(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.orders", **TASK)
    owner = login("owner")
    assert '<nav aria-label="Pages">' in owner.get("/rfr/").text
    tab = owner.get("/rfr/", params={"dag_id": "shop"}).text
    assert "<nav" not in tab
    [address] = re.findall(r'<td class="name">\s*<a href="([^"]*)"', tab)
    one = owner.get(html.unescape(address)).text
    assert "<nav" not in one
    assert '<a href="/rfr/?dag_id=shop">All refreshes of shop</a>' in one


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "None has begun, or none that you may see."),
        ("?dag_id=shop", "No run of this DAG has loaded a table yet"),
        ("?dag_id=shop&run_id=r&task_id=t", "No run of this task has loaded a table yet"),
        ("?q=orders", "No refresh matches."),
    ],
)
def test_an_empty_list_says_what_it_is_and_what_to_do(login: Login, catalog: Catalog, query: str, words: str) -> None:
    text = login("owner").get(f"/rfr/{query}").text
    assert words in text
    assert text.count("<li>") == (0 if "q=" in query else 3)


def test_every_page_has_a_heading_a_sentence_and_help_and_explains_its_words(login: Login, catalog: Catalog) -> None:
    read_page(begun(catalog, "raw.orders", partitions=1, **TASK))
    owner = login("owner")
    anchors = set(re.findall(r'<dt id="([^"]*)">', owner.get("/rfr/help").text))
    for path in ("", "deliveries", "migrations", "connections", REFRESH.removeprefix("/rfr/")):
        text = owner.get(f"/rfr/{path}").text
        assert text.count("<h1>") == 1, path
        [anchor] = re.findall(r'<p class="lead">[^<]+<a class="help" href="/rfr/help#([^"]*)">Help</a>', text)
        assert anchor in anchors
    meaning = html.escape(terms.explain("ledger"))
    assert meaning in html.unescape(owner.get(REFRESH).text)
    assert meaning in (ROOT / "docs" / "glossary.md").read_text()


def test_each_state_has_an_explanation() -> None:
    assert [state.value for state in State if not terms.explain_state(state.value)] == []
    assert terms.explain_state("paused", "endpoint") and not terms.explain_state("paused")
    assert not terms.explain_state("failed", "deploy"), "its meaning is that of a refresh"


def test_the_glossary_has_each_word_once() -> None:
    words = [name for row in (*terms.glossary(), *terms.states()) for name in row.name.split(", ")]
    assert {word for word in words if words.count(word) > 1} == set()


def test_a_word_that_the_glossary_lacks_is_an_error() -> None:
    with pytest.raises(KeyError):
        terms.explain("gizmo")


@pytest.fixture
def dag() -> Iterator[Callable[..., None]]:
    """Adds the DAG ``shop`` to Airflow's database, with these fields."""

    def add(**fields: Any) -> None:
        with create_session() as session:
            session.merge(DagBundleModel(name="here"))
            session.flush()
            session.add(DagModel(dag_id="shop", bundle_name="here", fileloc="shop.py", is_stale=False, **fields))

    yield add
    with create_session() as session:
        session.execute(delete(DagModel).where(DagModel.dag_id == "shop"))


@pytest.mark.parametrize(
    ("is_paused", "expected"), [(False, "2030-01-02 03:00:00 UTC"), (True, "none: the DAG is paused")]
)
def test_a_refresh_shows_the_schedule_of_its_dag_and_its_next_run(
    login: Login, catalog: Catalog, dag: Callable[..., None], is_paused: bool, expected: str
) -> None:
    dag(
        timetable_summary="0 3 * * *",
        next_dagrun_create_after=datetime(2030, 1, 2, 3, tzinfo=timezone.utc),
        is_paused=is_paused,
    )
    begun(catalog, "raw.orders", **TASK)
    text = login("viewer").get(REFRESH).text
    assert "<dt>Schedule</dt><dd>0 3 * * *</dd>" in text
    assert f"<dt>Next run</dt><dd>{expected}</dd>" in text


def test_a_refresh_of_a_dag_without_a_schedule_says_who_starts_it(
    login: Login, catalog: Catalog, dag: Callable[..., None]
) -> None:
    dag(timetable_summary="None", next_dagrun_create_after=None, is_paused=False)
    begun(catalog, "raw.orders", **TASK)
    assert "<dt>Schedule</dt><dd>none: runs are started by hand" in login("viewer").get(REFRESH).text


def test_a_refresh_that_airflow_tries_again_says_when(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders", **TASK).end("SourceError: 503")
    state = task_states._TaskState(
        "up_for_retry", None, datetime(2030, 1, 2, 17, 35, tzinfo=timezone(timedelta(hours=1)))
    )
    monkeypatch.setattr(task_states, "_states", lambda wanted: dict.fromkeys(wanted, state))
    text = login("viewer").get(REFRESH).text
    assert "Airflow tries the task again at 16:35:00 UTC" in text
    assert "<dt>Next retry</dt><dd>2030-01-02 16:35:00 UTC</dd>" in text


def test_the_code_for_pyiceberg_reads_the_table(
    login: Login, catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": pa.array([41], pa.int64())})
    create_table(catalog, "raw.orders", rows.schema).append(rows)
    read_page(begun(catalog, "raw.orders", partitions=1, **TASK))
    viewer = login("viewer")
    codes = [html.unescape(code) for code in re.findall(r"<pre[^>]*>(.*?)</pre>", viewer.get(REFRESH).text, re.DOTALL)]
    assert codes[2] == "SELECT * FROM `rfr`.`raw`.`orders` LIMIT 10"
    capsys.readouterr()
    exec(codes[0], {})
    assert "41" in capsys.readouterr().out
    compile(codes[1], "duckdb", "exec")
    monkeypatch.setattr(PickyManager, "is_authorized_asset", lambda *_args, **_values: False)
    assert "load_catalog" not in viewer.get(REFRESH).text


def test_the_code_that_reads_a_table_holds_no_secret_and_quotes_names() -> None:
    properties = {
        "type": "rest",
        "uri": f"https://me:{CANARY}@lake.example.com/v1?key={CANARY}",
        "token": CANARY,
        "s3.secret-access-key": CANARY,
    }
    shown = display.snippets("raw.it's `x`", LakeSettings("rfr", properties))
    assert CANARY not in repr(shown)
    assert "https://***@lake.example.com/v1" in shown[0][1]
    assert shown[2][1] == "SELECT * FROM `rfr`.`raw`.`it's ``x``` LIMIT 10"
    for _, code in shown[:2]:
        compile(code, "code", "exec")
    assert display.snippets("raw.orders", None) == ()


@pytest.mark.parametrize("mark", list("/#? "))
def test_the_code_that_reads_a_table_holds_no_password_of_a_database_however_it_is_written(mark: str) -> None:
    properties = {"type": "sql", "uri": f"postgresql+psycopg2://rfr:{CANARY}{mark}{CANARY}@db/cat"}
    [_, (_, code), _] = display.snippets("raw.orders", LakeSettings("rfr", properties))
    assert "uri='postgresql+psycopg2://***@db/cat'" in code
    assert CANARY not in code
