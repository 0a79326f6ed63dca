"""Which columns rows get: declared, given a type by name, or inferred; and their order, whoever read what."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, TypeMismatchError
from airflow_provider_rfr.refresh import pages as module
from airflow_provider_rfr.refresh.pages import SeenColumns, encode_records, see_columns
from airflow_provider_rfr.refresh.typed_rows import LedgerPage
from tests.unit.messages import raises
from tests.unit.refresh.test_failed_publish import ASKED, MONDAY, TABLE, TUESDAY, Orders, Shop, shop, source_gives

__all__ = ["shop"]

RECORD = {"zip": "1", "id": 7, "amount": "10.10", "created_at": "2026-01-02T03:04:05Z", "note": None}
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "created_at": {"type": "string"}}}


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Any:
    def attributes(**values: Any) -> None:
        for name, value in values.items():
            monkeypatch.setattr(Orders, name, value)

    return attributes


def types_of(shop: Shop) -> dict[str, str]:
    columns = shop.catalog.load_table(TABLE).schema().fields
    return {column.name: str(column.field_type) for column in columns if not column.name.startswith("_rfr_")}


def test_a_type_by_name_comes_before_what_is_inferred_and_columns_are_in_the_order_of_the_source(
    declare: Any, shop: Shop
) -> None:
    declare(columns={"created_at": "timestamp", "amount": "decimal(10, 2)", "note": "date"})
    source_gives(**RECORD)
    shop.run(MONDAY)
    assert list(types_of(shop).items()) == [
        ("zip", "string"), ("id", "long"), ("amount", "decimal(10, 2)"), ("created_at", "timestamptz"), ("note", "date")
    ]  # fmt: skip
    assert shop.rows["created_at"].to_pylist() == [MOMENT]
    assert shop.rows["amount"].to_pylist() == [Decimal("10.10")]


def test_a_type_by_name_replaces_the_table_s_string_and_the_pages_are_not_read_again(declare: Any, shop: Shop) -> None:
    source_gives(**RECORD)
    shop.run(MONDAY)
    declare(columns={"created_at": "timestamp"})
    assert shop.run(TUESDAY).schema_changes == "replace created_at string by timestamptz"
    assert types_of(shop)["zip"] == "string"
    assert len(ASKED) == 2


def test_a_type_by_name_comes_before_the_declared_one(declare: Any, shop: Shop) -> None:
    declare(columns={"created_at": "timestamp", "zip": "long"})
    source_gives(**{**RECORD, "zip": 1})
    shop.run(MONDAY, SCHEMA)
    assert list(types_of(shop).items()) == [("id", "long"), ("created_at", "timestamptz"), ("zip", "long")]


def test_additional_fields_are_kept_behind_the_declared_ones_in_the_order_of_the_source(
    declare: Any, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    declare(additional_fields="keep", columns={"amount": "double"})
    source_gives(**{**RECORD, "amount": 5})
    shop.run(MONDAY, SCHEMA)
    assert list(types_of(shop)) == ["id", "created_at", "amount", "zip"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_type_for_a_field_that_no_record_has_is_a_warning(
    schema: Any, declare: Any, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    declare(columns={"creatd_at": "timestamp", "id": "long"})
    source_gives(id=7, created_at="x")
    shop.run(MONDAY, schema)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"{TABLE}: no record has these fields, which are named in columns: creatd_at"
    ]
    assert list(types_of(shop)) == ["id", "created_at"] + ([] if schema is None else ["creatd_at"])


def test_an_unknown_type_is_refused_before_a_page_is_read(declare: Any, shop: Shop) -> None:
    declare(columns={"created_at": "datetime"})
    with raises(ConfigurationError):
        shop.run(MONDAY)
    assert ASKED == []


def test_fingerprints_change_only_with_a_type_that_is_used(declare: Any) -> None:
    from airflow_provider_rfr.refresh.resume import fingerprints_of

    plain = fingerprints_of(Orders({}))
    declare(columns={})
    assert fingerprints_of(Orders({})) == plain
    seen = [plain]
    for change in ({"columns": {"a": "long"}}, {"columns": {"a": "double"}}, {"additional_fields": "keep"}):
        declare(**change)
        prints = fingerprints_of(Orders({}))
        assert prints.read == plain.read
        assert prints.publish not in {one.publish for one in seen}
        seen.append(prints)


def page(ordinal: int, number: int, *records: dict[str, Any]) -> tuple[LedgerPage, int]:
    return LedgerPage(str(ordinal), number, encode_records(records), len(records), 0), ordinal


PAGES = [
    page(0, 1, {"z": 1, "user": {"b": 1}}, {"y": 1}),
    page(0, 2, {"x": 1, "user": {"a": 1, "b": 2}}),
    page(1, 1, {"w": 1, "x": 1, "tags": [{"k": 1}]}),
    page(2, 1, {"a": None, "tags": [{"v": 1, "k": 2}]}, {"A1": 1}),
    page(10, 1, {"a": 1, "late": True, 'l.ä"t': 1}),
]


def batch_of(pages: Sequence[tuple[LedgerPage, int]]) -> tuple[list[LedgerPage], list[int]]:
    return [each for each, _ in pages], [ordinal for _, ordinal in pages]


def test_the_order_of_columns_is_that_of_their_first_page_however_tasks_share_the_pages() -> None:
    shuffle = random.Random(4711)
    expected = ["z", "user", "y", "x", "w", "tags", "a", "A1", "late", 'l.ä"t']
    for _ in range(50):
        pages = shuffle.sample(PAGES, len(PAGES))
        cut, size = shuffle.randint(0, len(pages)), shuffle.randint(1, 3)
        shares = [
            see_columns(batch_of(share[start : start + size]) for start in range(0, len(share), size))
            for share in (pages[:cut], pages[cut:])
        ]
        rows = sum(shares, SeenColumns())
        schema = rows.schema.to_arrow(rows.places)
        assert schema.names == expected
        assert [inner.name for inner in schema.field("user").type] == ["b", "a"]
        assert [inner.name for inner in schema.field("tags").type.value_type] == ["k", "v"]


def test_only_pages_with_a_name_that_was_not_seen_yet_are_parsed_for_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = []

    def paths(value: Any, *_: Any) -> Iterator[str]:
        looked_at.append(value)
        return iter(value)

    monkeypatch.setattr(module, "_paths", paths)
    pages = [page(0, number, *({"b": 1, "a": 2} for _ in range(10))) for number in range(1, 20)]
    seen = see_columns([batch_of([*pages, page(0, 20, {"late": 3})])])
    assert seen.schema.to_arrow(seen.places).names == ["b", "a", "late"]
    assert looked_at == [*({"b": 1, "a": 2} for _ in range(10)), {"late": 3}]


def test_a_stream_that_casts_publishes_text_in_a_number_and_others_refuse_it(declare: Any, shop: Shop) -> None:
    source_gives(id="12", created_at={"at": 1})
    with pytest.raises(TypeMismatchError):
        shop.run(MONDAY, SCHEMA)
    declare(casts=True)
    assert shop.run(MONDAY, SCHEMA).resumed
    assert shop.rows.select(["id", "created_at"]).to_pylist() == [{"id": 12, "created_at": '{"at":1}'}]
