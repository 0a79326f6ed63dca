"""An API that moved: the refresh that was begun at the old address is the same one, at the new address."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from airflow_provider_rfr.refresh.chains import Cursor, OverlapCheck
from airflow_provider_rfr.refresh.config import _Address
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.refresh.resume import Relocations, fingerprints_of
from airflow_provider_rfr.streams.loader import load_stream

DEFINITION: dict[str, Any] = {
    "version": 1,
    "base_url": "{{ config.base_url }}/v1",
    "streams": {"orders": {"request": {"path": "/orders"}, "records": {"path": "data"}, "primary_key": "id"}},
}
ONE, TWO, THREE = "http://127.0.0.1:5001", "http://127.0.0.1:5002", "https://api.example.com"


def read_print(config: dict[str, Any], *moved: _Address) -> str:
    stream = load_stream({"definition": DEFINITION, "config": config}, "orders")
    return fingerprints_of(stream, Relocations.of(moved)).read


def test_a_refresh_is_the_same_one_wherever_its_api_moved() -> None:
    begun = read_print({"base_url": ONE, "login": "old", "page": 5})
    chain = [_Address(base_url=ONE, login="old"), _Address(base_url=TWO, login="old")]
    assert read_print({"base_url": TWO, "login": "old", "page": 5}, *chain) == begun
    chain.append(_Address(base_url=THREE, login="new"))
    assert read_print({"base_url": THREE, "login": "new", "page": 5}, *chain) == begun


def test_an_address_that_nobody_vouches_for_is_another_refresh() -> None:
    begun = read_print({"base_url": ONE})
    assert read_print({"base_url": TWO}) != begun
    assert read_print({"base_url": THREE}, _Address(base_url=ONE), _Address(base_url=TWO)) != begun
    assert read_print({"base_url": TWO, "page": 6}, _Address(base_url=ONE), _Address(base_url=TWO)) != begun


def test_another_upstream_is_another_refresh_even_at_the_same_address() -> None:
    assert read_print({"base_url": ONE}, _Address(upstream="2"), _Address(base_url=ONE)) != read_print(
        {"base_url": ONE}
    )


@pytest.mark.parametrize(
    ("token", "moved"),
    [
        (f"{ONE}/orders?page=2", f"{THREE}/orders?page=2"),
        (f"{TWO}/orders?page=2", f"{THREE}/orders?page=2"),
        (f"{ONE}?page=2", f"{THREE}?page=2"),
        (f"{ONE}0/orders", f"{ONE}0/orders"),
        ("abc", "abc"),
        (17, 17),
        ({"next": 3}, {"next": 3}),
    ],
)
def test_page_tokens_that_are_addresses_lead_to_the_present_place(token: Any, moved: Any) -> None:
    moves = Relocations.of([_Address(base_url=ONE), _Address(base_url=f"{TWO}/"), _Address(base_url=THREE)])
    text = moves.token(orjson.dumps(token).decode())
    assert text is not None
    assert orjson.loads(text) == moved
    assert moves.token(None) is None


def test_an_address_that_begins_with_another_one_is_not_moved_twice() -> None:
    moves = Relocations.of([_Address(base_url=ONE), _Address(base_url=f"{ONE}/v2")])
    for token in (f"{ONE}/v2/orders", f"{ONE}/orders"):
        assert moves.token(f'"{token}"') == f'"{ONE}/v2/orders"'


def test_cursors_and_overlap_checks_of_a_resumed_refresh_move_along() -> None:
    book = PartitionBook(["a", "b"], ["{}", "{}"])
    book.cursors = {0: Cursor(pages=1, token=f'"{ONE}/2"', records=5), 1: Cursor(pages=9, complete=True)}
    book.overlaps = {0: OverlapCheck(f'"{ONE}/1"', "sum")}
    Relocations.of([_Address(base_url=ONE), _Address(base_url=TWO)]).follow(book)
    assert book.cursors[0] == Cursor(pages=1, token=f'"{TWO}/2"', records=5)
    assert book.cursors[1].token is None
    assert book.overlaps[0] == OverlapCheck(f'"{TWO}/1"', "sum")
