"""Casts of nested types by the names of their fields."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.builtins.sql import cast, columns_read
from airflow_provider_rfr.lake.types import parse_type


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("int", "int", "s"),
        ("string", "int", "CAST(s AS int)"),
        ("struct<a:int>", "struct<A:int>", "CAST(s AS struct<A:int>)"),
        ("array<struct<a:string>>", "array<struct<a:int>>", "CAST(s AS array<struct<a:int>>)"),
        (
            "struct<a:int,b:int>",
            "struct<b:bigint,c:int>",
            "if(s IS NULL, NULL, named_struct('b', CAST(s.b AS bigint), 'c', CAST(NULL AS int)))",
        ),
        (
            "struct<a:int,b:int>",
            "struct<B:int,a:int>",
            "if(s IS NULL, NULL, named_struct('B', s.b, 'a', s.a))",
        ),
        (
            "struct<`it's`:int,`group`:int>",
            "struct<`group`:int,`a\\b`:int>",
            "if(s IS NULL, NULL, named_struct('group', s.`group`, 'a\\\\b', CAST(NULL AS int)))",
        ),
        (
            "struct<a:struct<x:int,y:int>>",
            "struct<a:struct<y:int>>",
            "if(s IS NULL, NULL, named_struct('a', if(s.a IS NULL, NULL, named_struct('y', s.a.y))))",
        ),
        (
            "array<struct<a:int,b:array<struct<x:int,y:int>>>>",
            "array<struct<b:array<struct<y:int>>>>",
            "transform(s, x0 -> if(x0 IS NULL, NULL, named_struct('b', "
            "transform(x0.b, x1 -> if(x1 IS NULL, NULL, named_struct('y', x1.y))))))",
        ),
        (
            "map<string,struct<a:int,b:int>>",
            "map<string,struct<b:int>>",
            "transform_values(s, (k0, x0) -> if(x0 IS NULL, NULL, named_struct('b', x0.b)))",
        ),
        (
            "map<struct<a:int,b:int>,struct<c:int,d:int>>",
            "map<struct<b:int>,struct<d:int>>",
            "transform_values(transform_keys(s, (k0, x0) -> if(k0 IS NULL, NULL, named_struct('b', k0.b))), "
            "(k0, x0) -> if(x0 IS NULL, NULL, named_struct('d', x0.d)))",
        ),
        ("struct<a:int>", "string", "to_json(s)"),
        ("string", "struct<a:int>", None),
        ("int", "array<int>", None),
        ("struct<a:int,b:int>", "struct<a:array<int>>", None),
        ("array<struct<a:int,b:int>>", "array<struct<a:array<int>>>", None),
    ],
)
def test_values_are_cast_field_by_field(old: str, new: str, text: str | None) -> None:
    found = cast("s", parse_type(old), parse_type(new))
    assert found == text
    assert found is None or columns_read(found) == ("s",)


@pytest.mark.parametrize(
    ("old", "called", "new", "text"),
    [
        ("struct<a:int>", "struct<b:int>", "struct<b:int>", "named_struct('b', s.a)"),
        ("struct<a:int,b:int>", "struct<b:int,a:int>", "struct<a:int,b:int>", "named_struct('a', s.b, 'b', s.a)"),
        (
            "struct<a:int>",
            "struct<b:int>",
            "struct<b:bigint,c:int>",
            "named_struct('b', CAST(s.a AS bigint), 'c', CAST",
        ),
    ],
)
def test_fields_under_new_names_are_cast_to_themselves(old: str, called: str, new: str, text: str) -> None:
    found = cast("s", parse_type(old), parse_type(new), called=parse_type(called))
    assert found is not None and found.startswith(f"if(s IS NULL, NULL, {text}")
    maps = (parse_type(f"map<string,array<{kind}>>") for kind in (old, new, called))
    assert cast("s", next(maps), next(maps), called=next(maps)) == (
        f"transform_values(s, (k0, x0) -> transform(x0, x1 -> {found.replace('s.', 'x1.').replace('(s ', '(x1 ')}))"
    )
