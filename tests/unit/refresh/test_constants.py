"""Columns with one value in all rows of a refresh."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, PublishRefusedError, SchemaEvolutionError
from airflow_provider_rfr.refresh.config import RefreshOptions, parse_options
from airflow_provider_rfr.refresh.resume import fingerprints_of
from tests.unit.messages import raises
from tests.unit.refresh.test_failed_publish import ASKED, MONDAY, NUMBER, TUESDAY, Orders, Shop, shop, source_gives

__all__ = ["shop"]


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
