"""A column that loses its values is a change of the table like any other: said everywhere, and refused under fail."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import SchemaEvolutionError
from tests.unit.messages import raises
from tests.unit.refresh.test_failed_publish import TABLE, TUESDAY, Shop, shop, source_gives

__all__ = ["shop"]

MONDAY, WEDNESDAY = "shop/monday/refresh/-1/0", "shop/wednesday/refresh/-1/0"
TICKET = {"id": 1, "subject": "late", "open": True, "tags": ["a"], "user": {"id": 7, "name": "Ann"}, "amount": 5}
TWO_COLUMNS: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "subject": {"type": "string"}},
}
ALL_BUT_ID = "5 columns got no value: subject, open, tags, user, amount"


def changes_of(shop: Shop) -> str | None:
    summary = shop.catalog.load_table(TABLE).current_snapshot().summary
    assert summary is not None
    return summary.additional_properties.get("rfr.schema-changes")


def test_a_schema_that_does_not_name_columns_with_values_says_so_in_log_result_and_snapshot(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    source_gives(**TICKET)
    shop.run(MONDAY)
    figures = shop.run(TUESDAY, TWO_COLUMNS)
    expected = "4 columns got no value: open, tags, user, amount"
    assert figures.schema_changes == changes_of(shop) == expected
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"{TABLE}: json_schema drops 4 fields of the records that it does not name: amount, open, tags, user",
        f"{TABLE}: {expected}",
    ]
    assert shop.run(WEDNESDAY, TWO_COLUMNS).schema_changes is None, "they had no value before"


@pytest.mark.parametrize(("schema", "sent"), [(TWO_COLUMNS, TICKET), (None, {"id": 1, "subject": "late"})])
def test_under_fail_neither_a_schema_nor_a_source_empties_columns_and_evolve_publishes_what_was_read(
    schema: Any, sent: dict[str, Any], shop: Shop
) -> None:
    source_gives(**TICKET)
    shop.run(MONDAY)
    source_gives(**sent)
    columns = "4 columns of raw.orders would become empty: open, tags, user, amount; and on_schema_change is fail"
    with pytest.raises(SchemaEvolutionError, match=columns):
        shop.run(TUESDAY, schema, on_schema_change="fail")
    assert shop.rows["amount"].to_pylist() == [5]
    assert files_of(shop) == 1, "files of the refused publish are left"
    figures = shop.run(TUESDAY, schema)
    assert (figures.resumed, figures.schema_changes) == (True, "4 columns got no value: open, tags, user, amount")
    assert shop.rows["user"].to_pylist() == [None]
    assert shop.run(WEDNESDAY, schema, on_schema_change="fail").schema_changes is None


def files_of(shop: Shop) -> int:
    return len(list((shop.database.parent / "w" / "raw" / "orders" / "data").glob("*.parquet")))


@pytest.mark.parametrize(
    ("record", "lost"),
    [
        ({"id": 1}, ALL_BUT_ID),
        ({**TICKET, "tags": [], "open": None}, "2 columns got no value: open, tags"),
        ({**TICKET, "user": {"id": 7}}, "1 column got no value: user.name"),
        ({**TICKET, "user": {}}, "1 column got no value: user"),
        ({**TICKET, "amount": 0, "open": False, "subject": "", "tags": [""]}, None),
    ],
)
def test_a_field_that_is_gone_or_empty_in_all_records_of_a_full_replacement_is_said(
    record: dict[str, Any], lost: str | None, shop: Shop
) -> None:
    source_gives(**TICKET)
    shop.run(MONDAY)
    source_gives(**record)
    assert shop.run(TUESDAY).schema_changes == lost
    assert shop.run(WEDNESDAY).schema_changes is None


def test_one_row_with_a_value_is_enough(shop: Shop) -> None:
    source_gives(**TICKET)
    shop.run(MONDAY)
    source_gives({"id": 2}, {"id": 3}, TICKET)
    assert shop.run(TUESDAY, on_schema_change="fail").rows == 3


def test_an_append_says_which_fields_no_longer_come_and_null_in_a_few_rows_is_no_change(shop: Shop) -> None:
    source_gives(**TICKET)
    shop.run(MONDAY, mode="append")
    source_gives(id=2, subject=None, open=None, tags=[], user=None, amount=None)
    assert shop.run(TUESDAY, mode="append", on_schema_change="fail").schema_changes is None
    source_gives(id=3, subject="x", open=True)
    with raises(SchemaEvolutionError):
        shop.run(WEDNESDAY, mode="append", on_schema_change="fail")
    assert shop.run(WEDNESDAY, mode="append").schema_changes == "3 columns got no value: tags, user, amount"
    assert sorted(filter(None, shop.rows["amount"].to_pylist())) == [5]


def test_an_append_with_a_declared_schema_says_which_fields_no_longer_come(shop: Shop) -> None:
    schema = {"type": "object", "properties": {**TWO_COLUMNS["properties"], "amount": {"type": "integer"}}}
    source_gives(id=1, subject="late", amount=5)
    shop.run(MONDAY, schema, mode="append")
    source_gives(id=2, subject=None, amount=6)
    assert shop.run(TUESDAY, schema, mode="append").schema_changes is None
    source_gives(id=3, subject="x")
    assert shop.run(WEDNESDAY, schema, mode="append").schema_changes == "1 column got no value: amount"


def test_a_part_is_compared_with_its_own_files_alone(shop: Shop) -> None:
    source_gives(id=1, day="monday", note="x")
    shop.run(MONDAY, replace_where="day = 'monday'")
    source_gives(id=2, day="tuesday")
    assert shop.run(TUESDAY, replace_where="day = 'tuesday'", on_schema_change="fail").schema_changes is None
    source_gives(id=1, day="monday")
    with raises(SchemaEvolutionError):
        shop.run(WEDNESDAY, replace_where="day = 'monday'", on_schema_change="fail")


def test_a_column_whose_type_is_replaced_is_not_also_called_empty(shop: Shop) -> None:
    source_gives(id=1, amount=5)
    shop.run(MONDAY)
    source_gives(id=1, amount=5.5)
    assert shop.run(TUESDAY).schema_changes == "replace amount long by double"
