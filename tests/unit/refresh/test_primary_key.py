"""A wrong primary key is found before all pages are read for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.refresh.pages import check_key_of_page
from airflow_provider_rfr.streams import NextPage, Page
from tests.unit.messages import raises
from tests.unit.refresh.test_failed_publish import ASKED, MONDAY, NUMBER, RECORDS, Orders, Shop, shop, source_gives

__all__ = ["shop"]


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pages of the source's records."""

    def read_page(self: Orders, stream_slice: Any, token: Any) -> Page:
        ASKED.append(self.name)
        number = (token or 1) + 1
        return Page([{**record, "page": number} for record in RECORDS], NextPage(number) if number <= 10 else None)

    monkeypatch.setattr(Orders, "read_page", read_page)


@pytest.mark.usefixtures("endless")
def test_a_key_that_no_record_of_the_first_page_has_ends_the_refresh_there(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Orders, "primary_key", "order_id", raising=False)
    source_gives(orderid=1, amount=5)
    with raises(ConfigurationError):
        shop.run(MONDAY)
    assert len(ASKED) == 1


@pytest.mark.parametrize("small", [[{"id": 3}], [{"id": 3}, {"id": 4}]])
def test_a_single_page_may_lack_a_part_of_the_key_that_other_partitions_have(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, small: list[dict[str, Any]]
) -> None:
    pages = {"large": [{"id": 1, "version": 1}, {"id": 2}], "small": small}
    monkeypatch.setattr(Orders, "primary_key", ["id", "version"], raising=False)
    monkeypatch.setattr(Orders, "stream_slices", lambda self: [{"group": group} for group in pages])
    monkeypatch.setattr(Orders, "read_page", lambda self, stream_slice, token: Page(pages[stream_slice["group"]], None))
    shop.run(MONDAY)
    assert sorted(shop.rows["id"].to_pylist()) == list(range(1, 3 + len(small)))


def test_a_wrong_key_of_a_single_page_fails_the_publish_and_nothing_is_fetched_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Orders, "primary_key", "order_id", raising=False)
    with raises(ConfigurationError):
        shop.run(MONDAY)
    monkeypatch.setattr(Orders, "primary_key", "id")
    shop.run(MONDAY)
    assert (shop.rows["id"].to_pylist(), len(ASKED)) == ([1], 1)


def test_a_key_that_the_declared_schema_lacks_is_refused_before_a_request(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Orders, "primary_key", ["ID"], raising=False)
    with raises(ConfigurationError):
        shop.run(MONDAY, NUMBER)
    assert ASKED == []


@pytest.mark.parametrize(
    ("key", "records"),
    [
        (None, [{"a": 1}]),
        ("id", []),
        ("id", [{"a": 1}, {"id": None}]),
        (["id", ["user", "no"]], [{"id": 1}, {"user": {"no": 1}}]),
    ],
)
def test_a_key_that_some_record_has_is_accepted(key: Any, records: list[dict[str, Any]]) -> None:
    check_key_of_page(key, records)


@pytest.mark.parametrize("key", ["id", [["user", "no"]], ["a", ["a", "b"]]])
def test_a_key_that_no_record_has_is_named_by_its_path(key: Any) -> None:
    with raises(ConfigurationError):
        check_key_of_page(key, [{"a": 1, "user": {"id": 1}}, {"user": None}])
