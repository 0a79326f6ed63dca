"""Names of types: one text for each, and what Iceberg can make of one when it shall be another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.types import (
    _MAX_DEPTH,
    ColumnType,
    TypeChange,
    classify,
    has_same_fields,
    lost_fields,
    may_overflow,
    parse_transform,
    parse_type,
)
from tests.unit.builtins.declaring import PATIENT
from tests.unit.messages import raises

PRIMITIVES = ("boolean", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz", "string", "binary")
NAMES = st.one_of(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True), st.text("a B`:<>,é-.", min_size=1))


def decimals():
    return st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda scale: ColumnType("decimal", (p, scale))))


def structs(inner):
    fields = st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3, unique_by=lambda field: field[0].casefold())
    return fields.map(
        lambda found: ColumnType(
            "struct", inner=tuple(kind for _, kind in found), fields=tuple(name for name, _ in found)
        )
    )


TYPES = st.recursive(
    st.one_of(st.sampled_from(PRIMITIVES).map(ColumnType), decimals()),
    lambda inner: st.one_of(
        inner.map(lambda element: ColumnType("array", inner=(element,))),
        structs(inner),
        st.tuples(inner.filter(lambda key: not key.contains("map")), inner).map(
            lambda pair: ColumnType("map", inner=pair)
        ),
    ),
    max_leaves=6,
)


@PATIENT
@given(TYPES)
def test_a_type_is_read_back_from_its_text(kind: ColumnType) -> None:
    assert parse_type(str(kind)) == kind


@PATIENT
@given(TYPES, st.sampled_from([" ", "\n", "\t ", ""]))
def test_white_space_and_the_case_of_keywords_make_no_other_type(kind: ColumnType, space: str) -> None:
    text = str(kind)
    if "`" not in text:
        loose = "".join(f"{space}{character}{space}" if character in "<>(),:" else character for character in text)
        assert str(parse_type(loose)) == text
        assert parse_type(text.upper()).folded() == parse_type(text).folded()


@PATIENT
@given(TYPES)
def test_every_type_is_the_same_as_itself(kind: ColumnType) -> None:
    assert classify(str(kind), str(kind)) is TypeChange.SAME


@PATIENT
@given(TYPES, TYPES)
def test_what_widens_does_not_widen_back(old: ColumnType, new: ColumnType) -> None:
    there, back = classify(str(old), str(new)), classify(str(new), str(old))
    assert (there is TypeChange.SAME) == (back is TypeChange.SAME)
    reordered = TypeChange.WIDEN if "struct" in str(old) else None
    assert there is not TypeChange.WIDEN or back in (TypeChange.INCOMPATIBLE, reordered)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("INTEGER", "int"),
        ("smallint", "int"),
        ("Byte", "int"),
        ("long", "bigint"),
        ("REAL", "float"),
        ("varchar(20)", "string"),
        ("char( 3 )", "string"),
        ("dec(10)", "decimal(10,0)"),
        ("numeric", "decimal(10,0)"),
        ("timestamp_ltz", "timestamp"),
        ("struct<a int, b: struct<c:long>>", "struct<a:int,b:struct<c:bigint>>"),
        ("array<array<int>>", "array<array<int>>"),
        ("map<string, array<decimal(3,1)>>", "map<string,array<decimal(3,1)>>"),
        ("struct<`a b`:int,`x``y`:int,`z`:int>", "struct<`a b`:int,`x``y`:int,z:int>"),
    ],
)
def test_types_that_iceberg_does_not_tell_apart_have_one_name(written: str, canonical: str) -> None:
    assert str(parse_type(written)) == canonical


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a type is missing"),
        ("   ", "a type is missing"),
        ("strin", "did you mean string?"),
        ("bool", "write boolean"),
        ("uuid", "Spark SQL has no name for it"),
        ("variant", "not every engine"),
        ("int int", "unexpected 'int' (character 5)"),
        ("int;", "unexpected ';' (character 4)"),
        ("`int`", "is not a type"),
        ("array<int", "expected '>', found the end"),
        ("array", "expected '<', found the end"),
        ("map<int>", "expected ','"),
        ("map<map<int,int>,int>", "the key of a map must not contain a map"),
        ("map<array<map<int,int>>,int>", "the key of a map must not contain a map"),
        ("struct<>", "expected the name of a field"),
        ("struct<a>", "is not a type"),
        ("struct<a:int,A:int>", "duplicate field 'A' (character 14)"),
        ("struct<a:int NOT NULL>", "must be a name and a type only"),
        ("struct<a:int COMMENT 'x'>", "must be a name and a type only"),
        ("decimal(39,0)", "out of range"),
        ("decimal(3,4)", "out of range"),
        ("decimal(0,0)", "out of range"),
        ("decimal(99999999999999999999)", "expected a number"),
        ("decimal(٣)", "expected a number"),
        ("decimal(1,2,3)", "expected ')'"),
    ],
)
def test_what_names_no_type_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_type(text)
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["array<" * 100_000, "struct<a:" * 5_000 + "int", "array<" * (_MAX_DEPTH + 1) + "int"])
def test_a_type_nested_without_end_is_refused_and_exhausts_nothing(text: str) -> None:
    with raises(ConfigurationError) as refused:
        parse_type(text)
    assert len(str(refused.value)) < 300


def test_a_type_may_be_as_deep_as_is_sensible() -> None:
    text = "array<" * (_MAX_DEPTH - 1) + "int" + ">" * (_MAX_DEPTH - 1)
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("int", "bigint", TypeChange.WIDEN),
        ("float", "double", TypeChange.WIDEN),
        ("decimal(10,2)", "decimal(12,2)", TypeChange.WIDEN),
        ("struct<a:int>", "struct<a:int,b:string>", TypeChange.WIDEN),
        ("struct<a:int,b:int>", "struct<b:int,a:int>", TypeChange.WIDEN),
        ("array<struct<a:int>>", "array<struct<A:bigint>>", TypeChange.WIDEN),
        ("map<string,int>", "map<string,bigint>", TypeChange.WIDEN),
        ("struct<Rows:int>", "struct<rows:int>", TypeChange.SAME),
        ("smallint", "int", TypeChange.SAME),
        ("bigint", "int", TypeChange.INCOMPATIBLE),
        ("decimal(10,2)", "decimal(12,4)", TypeChange.INCOMPATIBLE),
        ("decimal(12,2)", "decimal(10,2)", TypeChange.INCOMPATIBLE),
        ("int", "string", TypeChange.INCOMPATIBLE),
        ("int", "double", TypeChange.INCOMPATIBLE),
        ("date", "timestamp", TypeChange.INCOMPATIBLE),
        ("timestamp", "timestamp_ntz", TypeChange.INCOMPATIBLE),
        ("struct<a:int,b:int>", "struct<a:int>", TypeChange.NARROW),
        ("struct<a:int,b:int>", "struct<c:int,b:bigint>", TypeChange.NARROW),
        ("array<struct<a:int,b:int>>", "array<struct<B:int>>", TypeChange.NARROW),
        ("map<string,struct<a:int,b:int>>", "map<string,struct<a:int>>", TypeChange.NARROW),
        ("struct<a:int,b:struct<x:int,y:int>>", "struct<a:int,b:struct<y:int>>", TypeChange.NARROW),
        ("struct<a:int>", "struct<b:int>", TypeChange.INCOMPATIBLE),
        ("struct<a:int,b:int>", "struct<a:string>", TypeChange.INCOMPATIBLE),
        ("struct<a:int,b:string>", "struct<a:bigint,b:int>", TypeChange.INCOMPATIBLE),
        ("map<int,string>", "map<bigint,string>", TypeChange.INCOMPATIBLE),
        ("array<int>", "int", TypeChange.INCOMPATIBLE),
    ],
)
def test_a_change_of_type_is_what_iceberg_makes_of_it(old: str, new: str, change: TypeChange) -> None:
    assert classify(old, new) is change


@pytest.mark.parametrize(
    ("old", "new", "lost", "same", "overflows"),
    [
        ("int", "string", [], True, False),
        ("bigint", "int", [], True, True),
        ("struct<a:int,b:int>", "struct<B:int,c:int>", ["a"], False, False),
        ("struct<a:int,b:int>", "struct<b:int,a:int>", [], False, False),
        ("struct<a:bigint,b:int>", "struct<A:int,b:int>", [], True, True),
        ("struct<a:struct<x:int,y:double>,b:int>", "struct<a:struct<y:float>>", ["a.x", "b"], False, True),
        ("array<struct<a:int,b:int>>", "array<struct<b:int>>", ["a"], False, False),
        ("map<struct<k:int>,struct<a:int>>", "map<struct<l:int>,struct<b:int>>", ["k", "a"], False, False),
        ("struct<a:int>", "string", [], False, False),
    ],
)
def test_what_a_change_of_type_does_to_fields_and_values(
    old: str, new: str, lost: list[str], same: bool, overflows: bool
) -> None:
    before, after = parse_type(old), parse_type(new)
    assert lost_fields(before, after) == lost
    assert has_same_fields(before, after) is same
    assert may_overflow(before, after) is overflows


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        (" region ", "region"),
        ("`a b`", "`a b`"),
        ("Day(at)", "days(at)"),
        ("date( `a,b` )", "days(`a,b`)"),
        ("bucket(id, 016)", "bucket(16, id)"),
        ("truncate(4, `x``y`)", "truncate(4, `x``y`)"),
    ],
)
def test_a_transform_has_one_text_and_is_read_back_from_it(written: str, canonical: str) -> None:
    assert str(parse_transform(written)) == canonical
    assert parse_transform(canonical) == parse_transform(written)
