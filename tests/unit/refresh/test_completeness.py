"""A load is checked against what the API announced, and against the last load: from HTTP answers to the table."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.exceptions import PublishRefusedError, RefreshFailedError, SourceDefinitionError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.refresh.config import RefreshOptions, parse_config
from airflow_provider_rfr.refresh.inspection import read_details, statuses
from airflow_provider_rfr.refresh.partitions import Shortfall, shortfalls
from airflow_provider_rfr.refresh.publish import _check_guards
from tests.unit.messages import raises
from tests.unit.refresh.in_driver import refresh_of
from tests.unit.refresh.test_failed_publish import NobodyWaits

sys.path.append(str(Path(__file__).parents[1] / "streams"))
from rest_api import Api, Asked

TABLE = "raw.items"
BY_PAGE = {"type": "page_number", "page_size": 10, "size_as": {"query": "n"}, "total": {"path": "total"}}
BY_CURSOR = {"type": "cursor", "cursor": {"path": "paging.nextt"}}


class Shop:
    """A lake, an API, and loads of the API's items into the lake."""

    def __init__(self, folder: Path) -> None:
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.catalog = open_catalog(LakeSettings("rfr", self.properties))
        self.api = Api()

    def load(self, paginator: dict[str, Any], groups: list[str] | None = None, **options: Any) -> RefreshFigures:
        stream: dict[str, Any] = {"request": {"path": "/items"}, "records": {"path": "data"}, "paginator": paginator}
        if groups is not None:
            stream["partitions"] = {"type": "list", "field": "group", "values": groups}
            stream["request"] = {"path": "/{{ stream_slice.group }}"}
        document = {
            "source": {"definition": {"base_url": self.api.url, "streams": {"items": stream}}},
            "streams": ["items"],
            "target": TABLE,
            "lake": {"name": "rfr", "properties": self.properties},
            "options": {"concurrency": 2, **options},
        }
        return refresh_of(parse_config(document), self.catalog, NobodyWaits()).run()

    @property
    def ids(self) -> list[int]:
        return sorted(self.catalog.load_table(TABLE).scan().to_arrow()["id"].to_pylist())

    @property
    def is_published(self) -> bool:
        return self.catalog.table_exists(TABLE)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path)
    yield found
    found.api.close()


def capped(asked: Asked) -> Any:
    """An API that counts 3,289 items and shows the first 50."""
    numbers = range(asked.page * 10 - 9, asked.page * 10 + 1) if asked.page <= 5 else []
    return {"data": [{"id": number} for number in numbers], "total": 3289}


def test_records_that_the_api_promises_and_does_not_send_are_told(shop, caplog):
    shop.api.answer = capped
    with caplog.at_level(logging.WARNING):
        figures = shop.load(BY_PAGE)
    assert (figures.rows, figures.records_missing, shop.ids) == (50, 3239, list(range(1, 51)))
    assert "promises: 50 of 3,289 records" in caplog.text
    assert len(shop.api.asked) < 20
    summary = shop.catalog.load_table(TABLE).current_snapshot().summary
    assert summary["rfr.records-missing"] == "3239"
    details = read_details(shop.catalog, statuses(shop.catalog)[0])
    assert details is not None and details.missing == 3239


def test_they_are_refused_where_the_option_says_so(shop):
    shop.api.answer = capped
    with raises(PublishRefusedError):
        shop.load(BY_PAGE, on_missing_records="fail")
    assert not shop.is_published
    asked = len(shop.api.asked)
    assert shop.load(BY_PAGE).rows == 50
    assert len(shop.api.asked) == asked, "what was read is published without another request"


def test_a_wrong_path_of_the_cursor_publishes_nothing(shop):
    shop.api.answers({"data": [{"id": 1}, {"id": 2}], "paging": {"next": "2"}})
    with raises(SourceDefinitionError):
        shop.load(BY_CURSOR)
    assert not shop.is_published


def test_nor_does_it_where_each_partition_has_one_page(shop):
    shop.api.answers({"data": [{"id": 1}, {"id": 2}], "paging": {"next": "2"}})
    with raises(PublishRefusedError) as raised:
        shop.load(BY_CURSOR, ["a", "b", "c"])
    assert "did you mean paging.next?" in str(raised.value) and "on_missing: end" in str(raised.value)
    assert not shop.is_published


@pytest.mark.parametrize("paging", [{"nextt": None}, {"nextt": "2"}], ids=["null", "a next page"])
def test_one_partition_that_has_the_field_explains_the_others(shop, paging):
    def answer(asked: Asked) -> Any:
        if asked.path.startswith("/c"):
            last = "cursor" in asked.query
            return {"data": [{"id": 6 if last else 5}], "paging": {"nextt": None} if last else paging}
        return {"data": [{"id": 1 if asked.path == "/a" else 2}]}

    shop.api.answer = answer
    assert shop.load(BY_CURSOR, ["a", "b", "c"]).rows in (3, 4)
    assert set(shop.ids) >= {1, 2, 5}


def test_the_refusal_is_lifted_by_on_missing_without_another_request(shop):
    shop.api.answers({"data": [{"id": 1}, {"id": 2}], "paging": {"next": "2"}})
    with pytest.raises(PublishRefusedError):
        shop.load(BY_CURSOR, ["a", "b"])
    asked = len(shop.api.asked)
    assert shop.load({**BY_CURSOR, "on_missing": "end"}, ["a", "b"]).rows == 4
    assert len(shop.api.asked) == asked


@pytest.mark.parametrize("policy", ["fail", "accept", "end"])
def test_an_api_that_begins_again_behind_its_last_page_doubles_nothing(shop, policy):
    def first_page_again(asked: Asked) -> Any:
        page = asked.page if asked.page <= 2 else 1
        return {"data": [{"id": number} for number in range(page * 10 - 9, page * 10 + 1)], "total": 20}

    shop.api.answer = first_page_again
    assert shop.load(BY_PAGE, on_repeated_page=policy).rows == 20
    assert shop.ids == list(range(1, 21))


def ignores_the_cursor(asked: Asked) -> Any:
    return {"data": [{"id": 1}, {"id": 2}], "paging": {"nextt": "2"}}


@pytest.mark.parametrize("size", [None, 2])
def test_an_api_that_ignores_the_cursor_does_not_publish_its_first_page(shop, size):
    shop.api.answer = ignores_the_cursor
    paginator = BY_CURSOR | ({"page_size": size} if size else {})
    with raises(RefreshFailedError):
        shop.load(paginator)
    with raises(PublishRefusedError):
        shop.load(paginator, on_repeated_page="end")
    assert not shop.is_published


def test_a_short_first_page_that_is_sent_again_is_the_only_one(shop):
    shop.api.answer = ignores_the_cursor
    assert shop.load({**BY_CURSOR, "page_size": 3}, on_repeated_page="end").rows == 2


def test_one_partition_that_obeys_the_cursor_explains_the_others(shop):
    def answer(asked: Asked) -> Any:
        if asked.path != "/b" or "cursor" not in asked.query:
            return {"data": [{"id": 1 if asked.path == "/a" else 2}], "paging": {"nextt": "2"}}
        return {"data": [{"id": 3}], "paging": {"nextt": None}}

    shop.api.answer = answer
    assert shop.load(BY_CURSOR, ["a", "b"], on_repeated_page="end").rows == 3


def test_empty_pages_are_counted_over_rounds(shop):
    shop.api.answer = lambda asked: {"data": [], "paging": {"nextt": f"{len(shop.api.asked)}"}}
    with raises(RefreshFailedError):
        shop.load(BY_CURSOR, round_seconds=0.05)
    assert len(shop.api.asked) <= 101


def test_a_ledger_that_lacks_the_newer_columns_is_read_on(shop):
    """A load that an older release began."""
    shop.api.answer = lambda asked: {"data": [{"id": asked.page}] if asked.page <= 3 else [], "total": 3}
    paginator = {"type": "page_number", "page_size": 1, "total": {"path": "total"}}
    shop.load(paginator)
    ledger = LedgerTable.load(shop.catalog, TABLE)
    assert ledger is not None
    with shop.catalog.load_table(ledger.name).update_schema() as update:
        for name in ("received", "promised", "absent"):
            update.delete_column(name)
    shop.load(paginator)
    names = shop.catalog.load_table(ledger.name).schema().column_names
    assert {"received", "promised", "absent"} <= set(names)


def pages_of(*rows: tuple[int, int, int, int | None, int | None]) -> pa.Table:
    names = ("partition_ordinal", "chain", "page", "received", "promised")
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    return pa.table(dict(zip(names, columns, strict=True)))


@pytest.mark.parametrize(
    ("rows", "short"),
    [
        ([(0, 0, 1, 10, 15), (0, 0, 2, 5, 15)], []),
        ([(0, 0, 1, 10, 15), (0, 0, 2, 4, 15)], [Shortfall(0, 14, 15)]),
        # Rows were deleted while they were read: the last page's count is the newest.
        ([(0, 0, 1, 10, 15), (0, 0, 2, 4, 14)], []),
        # The empty page at the end counts 0, or nothing at all.
        ([(0, 0, 1, 10, 15), (0, 0, 2, 0, 0)], [Shortfall(0, 10, 15)]),
        ([(0, 0, 1, 10, 15), (0, 0, 2, 0, None)], [Shortfall(0, 10, 15)]),
        ([(0, 0, 1, 0, 7)], [Shortfall(0, 0, 7)]),
        # Of two chains the newer one counts.
        ([(0, 0, 1, 10, 99), (0, 1, 1, 8, 8)], []),
        ([(0, 0, 1, 10, 10), (0, 1, 1, 8, 9)], [Shortfall(0, 8, 9)]),
        ([(3, 0, 1, 1, 1), (7, 0, 1, 1, 2), (9, 0, 1, 1, None)], [Shortfall(7, 1, 2)]),
        ([(0, 0, 1, 1, None)], []),
        # An older release wrote the first page.
        ([(0, 0, 1, None, None), (0, 0, 2, 10, 50)], []),
    ],
)
def test_the_promise_of_a_partition_is_that_of_its_last_page_with_records(rows, short):
    assert shortfalls(pages_of(*rows)) == short
    assert shortfalls(pages_of(*reversed(rows))) == short


@pytest.mark.parametrize(
    ("rows", "previous", "options"),
    [
        (50, 100, {}),
        (1, None, {}),
        (1, 0, {}),
        (49, 100, {"max_shrink": 0.6}),
        (1, 100, {"max_shrink": None}),
        (1, 100, {"mode": "append"}),
        (0, 100, {"allow_empty": True}),
    ],
)
def test_is_published(rows: int, previous: int | None, options: dict[str, Any]) -> None:
    _check_guards(RefreshOptions(**options), rows=rows, previous=previous)


def test_fewer_than_half_of_the_rows_are_refused_by_default_and_the_message_names_the_switch() -> None:
    with raises(PublishRefusedError):
        _check_guards(RefreshOptions(), rows=49, previous=100)


def test_no_rows_are_refused_whatever_may_vanish() -> None:
    with raises(PublishRefusedError):
        _check_guards(RefreshOptions(max_shrink=None), rows=0, previous=None)
