"""Which columns rows get: declared, given a type by name, inferred or constant; their order; those without values."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    PublishRefusedError,
    SchemaEvolutionError,
    TypeMismatchError,
)
from airflow_provider_rfr.refresh import page_rows as module
from airflow_provider_rfr.refresh.config import RefreshOptions, parse_options
from airflow_provider_rfr.refresh.page_rows import SeenColumns, encode_records, see_columns
from airflow_provider_rfr.refresh.resume import fingerprints_of
from airflow_provider_rfr.refresh.typed_rows import LedgerPage
from tests.unit.messages import raises
from tests.unit.refresh.test_failed_publish import (
    ASKED,
    MONDAY,
    NUMBER,
    TABLE,
    TUESDAY,
    Orders,
    Shop,
    shop,
    source_gives,
)

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
    plain = fingerprints_of(Orders({}))
    declare(columns={})
    assert fingerprints_of(Orders({})) == plain
    seen = [plain]
    for change in ({"columns": {"a": "long"}}, {"columns": {"a": "double"}}, {"additional_fields": "keep"}):
        declare(**change)
        prints = fingerprints_of(Orders({}))
        assert prints.read == plain.read
        assert prints.publish not in {earlier.publish for earlier in seen}
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
    return [page for page, _ in pages], [ordinal for _, ordinal in pages]


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


def tenant(name: Any) -> dict[str, Any]:
    return {"constants": {"tenant": name}, "replace_where": f"tenant = '{name}'"}


@pytest.mark.parametrize("schema", [None, NUMBER])
def test_tenants_share_a_table_and_each_replaces_its_own_rows(shop: Shop, schema: Any) -> None:
    shop.run(MONDAY, schema, **tenant("a"))
    source_gives({"id": 1, "amount": 6}, {"id": 2, "amount": 7})
    shop.run(MONDAY, schema, **tenant("b"))
    source_gives(id=1, amount=8)
    shop.run(TUESDAY, schema, **tenant("a"))
    rows = shop.rows.select(["tenant", "id", "amount"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", 1, 8), ("b", 1, 6), ("b", 2, 7)]


def test_each_kind_of_value_has_its_type_and_null_makes_no_column(shop: Shop) -> None:
    constants = {"text": "x", "count": 7, "share": 0.5, "live": True, "none": None}
    shop.run(MONDAY, constants=constants)
    (row,) = shop.rows.select(["text", "count", "share", "live"]).to_pylist()
    assert row == {"text": "x", "count": 7, "share": 0.5, "live": True}
    types = [str(shop.rows.schema.field(name).type) for name in row]
    assert types == ["string", "int64", "double", "bool"]
    assert "none" not in shop.rows.column_names
    shop.run(TUESDAY, constants={**constants, "text": None}, mode="append")
    assert shop.rows["text"].to_pylist().count(None) == 1


def test_a_table_whose_column_can_t_take_the_value_refuses_it(shop: Shop) -> None:
    shop.run(MONDAY, constants={"tenant": 1})
    with raises(SchemaEvolutionError):
        shop.run(TUESDAY, constants={"tenant": "a"}, mode="append")


@pytest.mark.parametrize("value", ["a", None])
def test_a_name_that_the_stream_has_is_refused_before_a_page_is_read_where_that_is_known(
    shop: Shop, value: Any
) -> None:
    message = "options.constants.Amount: the stream has a column of that name; name the constant otherwise"
    with pytest.raises(ConfigurationError, match=message):
        shop.run(MONDAY, NUMBER, constants={"Amount": value})
    assert ASKED == []
    with pytest.raises(ConfigurationError, match=message):
        shop.run(MONDAY, constants={"Amount": value})
    assert ASKED == ["orders"]
    figures = shop.run(TUESDAY, constants={"tenant": value})
    assert (figures.resumed, ASKED) == (True, ["orders"]), "what was read is kept"


def test_rows_outside_of_the_part_are_refused(shop: Shop) -> None:
    with raises(PublishRefusedError):
        shop.run(MONDAY, constants={"tenant": "a"}, replace_where="tenant != 'a'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"constants": {"tenant": "a"}, "replace_where": "day = '1' AND (tenant = 'b' AND id > 3)"},
            "constants.tenant: is \"a\", and replace_where says 'b'; write one value",
        ),
        ({"constants": {"n": 1}, "replace_where": "n = 2"}, "constants.n: is 1, and replace_where says 2"),
        ({"constants": {"tenant": None}, "replace_where": "tenant = 'b'"}, "constants.tenant: is null, and"),
        ({"constants": {"a.b": 1}}, "constants: 'a.b' is no name for a column"),
        ({"constants": {"_rfr_meta": 1}}, "constants: '_rfr_meta' is no name for a column"),
        ({"constants": {"n": 2**63}}, "constants.n: is beyond 64 bits"),
        ({"constants": {"n": float("nan")}}, "constants.n: is not a finite number"),
        ({"constants": {"n": [1]}}, r"constants\.n"),
        ({"constants": {"n": 1}, "replace_where": "n ="}, "replace_where: 'n =' is not a row filter"),
    ],
)
def test_a_mistake_is_found_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_options(options)


def test_an_equality_that_agrees_and_a_filter_that_is_none_are_taken() -> None:
    parse_options({"constants": {"tenant": "a"}, "replace_where": "tenant = 'a' AND day = '1'"})
    parse_options({"constants": {"tenant": "a"}, "replace_where": "tenant = 'b' OR tenant = 'a'"})


def test_only_a_source_that_uses_constants_has_another_fingerprint() -> None:
    stream = Orders({})
    none, without, one, other = (
        fingerprints_of(stream, options=options)
        for options in (
            None,
            RefreshOptions(constants={}),
            RefreshOptions(constants={"tenant": "a"}),
            RefreshOptions(constants={"tenant": "b"}),
        )
    )
    assert none == without
    assert len({none.publish, one.publish, other.publish}) == 3
    assert "constants" not in RefreshOptions(constants={"tenant": "a"}).publish_rules()


WEDNESDAY = "shop/wednesday/refresh/-1/0"
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
