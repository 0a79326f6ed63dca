"""Every row of the table of column changes, the updates that do them, and what PyIceberg makes of those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType, NestedField, StringType

from airflow_provider_rfr.builtins.planning.diff import (
    Change,
    diff_columns,
    gentlest,
    pending_renames,
    rename_hints,
    schema_updates,
)
from airflow_provider_rfr.builtins.spec import Column, Strategy
from tests.profile import examples
from tests.unit.builtins.catalogs import column, run_updates


def columns(*texts: str) -> tuple[Column, ...]:
    return tuple(map(column, texts))


def changes(old: tuple[Column, ...], new: tuple[Column, ...]) -> tuple[list[str], Strategy | None]:
    found = diff_columns(old, new, pending_renames(old, new))
    return [str(each) for each in found], gentlest(found)


@pytest.mark.parametrize(
    ("old", "new", "said", "how"),
    [
        (["a int"], ["a int", "b string"], ["+ column b string"], Strategy.EVOLVE),
        (["a int"], ["b string", "a int"], ["+ column b string"], Strategy.EVOLVE),
        (["a int"], ["a int", "b string!"], ["+ column b string, required"], Strategy.REWRITE),
        (["a int", "b int"], ["a int"], ["- column b int (its values stay in older"], Strategy.EVOLVE),
        (["a int"], ["b int < a"], ["> column a -> b (rename)"], Strategy.EVOLVE),
        (["a int"], ["b int < a", "a int"], ["> column a -> b (rename)", "+ column a int"], Strategy.EVOLVE),
        (["a int", "b int"], ["b int < a", "a int < b"], ["> column a -> b", "> column b -> a"], Strategy.EVOLVE),
        (["a int", "b int"], ["b int", "a int"], ["~ column order: b, a"], Strategy.EVOLVE),
        (["a int"], ["a bigint"], ["^ a: int -> bigint (widen)"], Strategy.EVOLVE),
        (["a float"], ["a double"], ["^ a: float -> double (widen)"], Strategy.EVOLVE),
        (["a decimal(10,2)"], ["a decimal(12,2)"], ["^ a: decimal(10,2) -> decimal(12,2)"], Strategy.EVOLVE),
        (["a decimal(10,2)"], ["a decimal(20,4)"], ["! a: decimal(10,2) -> decimal(20,4)"], Strategy.REWRITE),
        (["a decimal(12,2)"], ["a decimal(10,2)"], ["! a: decimal(12,2) -> decimal(10,2)"], Strategy.REWRITE),
        (["a bigint"], ["a int"], ["! a: bigint -> int (incompatible)"], Strategy.REWRITE),
        (["a string"], ["a int"], ["! a: string -> int (incompatible)"], Strategy.REWRITE),
        (["a int"], ["a string"], ["! a: int -> string (incompatible)"], Strategy.REWRITE),
        (["a date"], ["a timestamp"], ["! a: date -> timestamp (incompatible)"], Strategy.REWRITE),
        (["a timestamp"], ["a timestamp_ntz"], ["! a: timestamp -> timestamp_ntz"], Strategy.REWRITE),
        (["a struct<x:int>"], ["a struct<x:bigint>"], ["^ a: struct<x:int> -> struct<x:bigint>"], Strategy.EVOLVE),
        (["a struct<x:int>"], ["a struct<y:int>"], ["! a: struct<x:int> -> struct<y:int>"], Strategy.REWRITE),
        (["a int!"], ["a int"], ["~ a: required -> optional"], Strategy.EVOLVE),
        (["a int"], ["a int!"], ["~ a: optional -> required (if no value is NULL)"], Strategy.EVOLVE),
        (["a int"], ["b bigint < a"], ["> column a -> b (rename)", "^ b: int -> bigint (widen)"], Strategy.EVOLVE),
        (["a int"], ["A int"], [], None),
        (["a int"], ["a int"], [], None),
    ],
)
def test_the_classes_of_column_changes(old: list[str], new: list[str], said: list[str], how: Strategy | None) -> None:
    words, found = changes(columns(*old), columns(*new))
    assert found is how
    assert len(words) == len(said) and all(word.startswith(start) for word, start in zip(words, said, strict=True))


def test_a_comment_is_metadata() -> None:
    found = diff_columns((Column("a", "int"),), (Column("a", "int", comment="an a"),))
    assert [each.what for each in found] == [Change.COMMENT] and gentlest(found) is Strategy.METADATA


def test_a_rename_that_was_done_is_not_done_again_though_it_is_still_declared() -> None:
    for texts in (["b int < a"], ["b int < a", "a int"], ["b int < a", "a int < b"]):
        assert pending_renames(columns(*texts), columns(*texts)) == {}


def test_columns_that_exchange_their_names_and_nothing_else_are_still_seen() -> None:
    """The contract is the same text before and after; what the columns hold is not."""
    old, new = columns("a int", "b int"), columns("a int < b", "b int < a")
    assert pending_renames(old, new) == {"a": "b", "b": "a"}
    assert changes(old, new)[0][:2] == ["> column b -> a (rename)", "> column a -> b (rename)"]


def test_where_nobody_wrote_down_what_a_column_was_called_its_new_name_means_that_it_was_renamed() -> None:
    live = columns("a int", "b int")
    assert pending_renames(live, columns("b int < a", "a int"), recorded=False) == {}
    assert pending_renames(columns("a int"), columns("b int < a"), recorded=False) == {"b": "a"}


def test_one_column_is_not_renamed_to_two() -> None:
    assert pending_renames(columns("a int"), columns("b int < a", "c int < a")) == {"b": "a"}


def test_a_column_that_comes_while_one_of_its_type_goes_may_be_the_same() -> None:
    found = diff_columns(columns("finished_at timestamp"), columns("ended_at timestamp"))
    assert rename_hints(found) == [
        "if ended_at is finished_at under a new name, declare it with renamed_from: finished_at"
    ]
    assert rename_hints(diff_columns(columns("a int"), columns("b string"))) == []


NAMES = "abcdef"
KINDS = ["int", "bigint", "string", "float", "double", "decimal(10,2)", "decimal(12,2)", "decimal(12,4)"]


@st.composite
def two_lists(draw: st.DrawFn) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    def one(name: str, before: str | None = None) -> Column:
        return Column(name, draw(st.sampled_from(KINDS)), draw(st.booleans()), None, before)

    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    old = tuple(one(name) for name in names)
    new = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    sources = draw(st.permutations(names))
    befores = [draw(st.sampled_from([None, source])) for source in [*sources, *[None] * len(new)]]
    return old, tuple(one(name, before) for name, before in zip(new, befores, strict=False))


@examples(400)
@given(two_lists())
def test_updates_lead_from_any_columns_to_any_others_and_carry_each_column_that_is_the_same(
    two: tuple[tuple[Column, ...], tuple[Column, ...]],
) -> None:
    """Columns know where they came from by a comment, which travels with them."""
    old, new = two
    old = tuple(Column(each.name, each.type, each.required, f"was {each.name}") for each in old)
    renames = pending_renames(old, new)
    result = run_updates(old, _without_comments(schema_updates(old, new, renames)))
    assert [(each.name, each.type, each.required) for each in result] == [
        (each.name, each.type, each.required) for each in new
    ]
    replaced = {each.column for each in diff_columns(old, new, renames) if each.what is Change.RETYPE}
    for each in result:
        source = renames.get(each.name) or (each.name if each.name not in renames.values() else None)
        kept = source in {column.name for column in old} and each.name not in replaced
        assert each.comment == (f"was {source}" if kept else None)


def _without_comments(found: dict[str, Any]) -> dict[str, Any]:
    batches = [[each for each in batch if each["op"] != "comment"] for batch in found.get("updates", [])]
    return {**found, "updates": batches}


ICEBERG = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "float": FloatType(),
    "double": DoubleType(),
    "decimal(10,2)": DecimalType(10, 2),
    "decimal(12,2)": DecimalType(12, 2),
}
TEXTS = {str(kind): text for text, kind in ICEBERG.items()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["a int", "b string"], ["x int", "b string", "a bigint", "y string"]),
        (["a int"], ["b int < a", "a string"]),
        (["a int", "b string"], ["a string < b", "b int < a"]),
        (["a int", "b int"], ["b bigint < a", "a bigint < b"]),
        (["a int", "b string", "c float"], ["c double", "a string"]),
        (["a int", "b string"], ["b int < a"]),
        (["a int!", "b decimal(10,2)"], ["b decimal(12,2)", "a int"]),
        (["a string"], ["a int"]),
        (["a int", "b int", "c int"], ["b int < a", "c int < b", "a int < c"]),
        (["a int", "b int", "c int", "d int"], ["d int", "c int", "b int", "a int"]),
    ],
)
def test_pyiceberg_does_the_updates_in_one_transaction(tmp_path: Path, old: list[str], new: list[str]) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("ops")
    before, after = columns(*old), columns(*new)
    fields = [
        NestedField(number, each.name, ICEBERG[each.type], required=each.required)
        for number, each in enumerate(before, 1)
    ]
    table = catalog.create_table("ops.t", Schema(*fields))
    renames = pending_renames(before, after)
    with table.transaction() as transaction:
        for batch in schema_updates(before, after, renames)["updates"]:
            with transaction.update_schema() as update:
                for operation in batch:
                    _update(update, operation)
    found = catalog.load_table("ops.t")
    assert [(each.name, TEXTS[str(each.field_type)]) for each in found.schema().fields] == [
        (each.name, each.type) for each in after
    ]
    ids = {each.name: number for number, each in enumerate(before, 1)}
    for new_name, source in renames.items():
        if not any(each["op"] == "drop" and each["column"] == source for each in _first(before, after, renames)):
            assert found.schema().find_field(new_name).field_id == ids[source]
    assert len(found.metadata.metadata_log) == 1


def _first(before: tuple[Column, ...], after: tuple[Column, ...], renames: dict[str, str]) -> list[Any]:
    return schema_updates(before, after, renames)["updates"][0]


def _update(update: Any, operation: dict[str, Any]) -> None:
    name = operation["column"]
    if operation["op"] == "add":
        update.add_column(name, ICEBERG[operation["type"]])
    elif operation["op"] == "drop":
        update.delete_column(name)
    elif operation["op"] == "rename":
        update.rename_column(name, operation["to"])
    elif operation["op"] == "widen":
        update.update_column(name, field_type=ICEBERG[operation["type"]])
    elif operation["op"] == "relax":
        update.make_column_optional(name)
    elif operation["op"] == "move":
        behind = operation["after"]
        update.move_first(name) if behind is None else update.move_after(name, behind)
    else:
        assert operation["op"] == "comment"
        update.update_column(name, doc=operation["comment"])
