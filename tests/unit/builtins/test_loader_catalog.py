"""What has to hold among objects: names, ids, reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, Column, Kind, stable_id
from airflow_provider_rfr.exceptions import DeclarationError
from tests.unit.builtins.declaring import load, loaded, problems
from tests.unit.messages import check_messages, raises

T = "kind: table\nname: ops.t\ncolumns: [{name: a, type: int}, {name: B, type: int}]"


def view(query: str, *more: str, name: str = "ops.v", kind: str = "view") -> str:
    lines = "\n".join(f"  {line}" for line in query.split("\n"))
    return "\n".join([f"kind: {kind}", f"name: {name}", *more, "query: |", lines])


def catalog(*documents: str) -> str:
    return "\n---\n".join(documents) + "\n"


def without_lines(found: list[str]) -> list[str]:
    return [item.split(": ", 1)[1] for item in found]


def test_a_name_is_unique_over_all_kinds_and_cases(tmp_path: Path) -> None:
    text = catalog(T, view("SELECT 1 AS a", "id: 00000000-0000-4000-8000-000000000000", name="OPS.T"))
    check_messages(problems(tmp_path, text))
    twice = catalog(T, T.replace("name: ops.t", "name: OPS.T"))
    check_messages(problems(tmp_path, twice))


def test_an_id_is_unique_and_an_old_name_given_away_asks_for_another_one(tmp_path: Path) -> None:
    renamed = T.replace("name: ops.t", f"name: ops.old_t\nid: {stable_id('acme', 'ops.t')}")
    found = problems(tmp_path, catalog(renamed, T))
    assert len(found) == 1
    assert "is that of ops.old_t" in found[0]
    assert "give the newer object an id of its own" in found[0]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("DROP TABLE ops.t", "ops.v: it begins with 'DROP'; a view is one SELECT, which creates and changes nothing"),
        (
            "SELECT a FROM ops.t;",
            "ops.v: it is more than one statement, or ends in a semicolon; write one query, and leave that out",
        ),
        (
            "SELECT a FROM ops.t WHERE",
            "ops.v: line 1, column 25: something is missing here; correct it; if Spark "
            "understands it, list what it reads in depends_on",
        ),
        ("SELECT a FROM t", "ops.v: t has no namespace, and Spark's own may be any; write ops.t"),
        (
            "SELECT a FROM ops.tt",
            "ops.v: it reads ops.tt, which is not declared; did you mean t? declare it, "
            "e.g. as a source; a view may have it in depends_on instead",
        ),
        (
            "SELECT a FROM lake.ops.t",
            "ops.v: it reads lake.ops.t with a catalog's name before it; write ops.t: each "
            "lake has a catalog of its own",
        ),
        ("SELECT x.a, x.c FROM ops.t x", "ops.v: ops.t has no column c; allowed: B, a"),
        (
            "SELECT a, count(*) FROM ops.t GROUP BY a",
            "ops.v: column 2 of a SELECT has no name; give it one: ... AS name",
        ),
        ("SELECT a, b AS A FROM ops.t", "ops.v: two of its columns are called a; give one another name: ... AS name"),
        (
            "SELECT * FROM ops.t x JOIN ops.t y USING (a)",
            "ops.v: two of its columns are called b; give one another name: ... AS name",
        ),
        (
            "SELECT a FROM ops.t NATURAL JOIN raw.x",
            "ops.v: NATURAL JOIN joins by whatever columns both sides happen to have; write USING (the columns)",
        ),
        (
            "SELECT * FROM raw.x",
            "ops.v: the columns of raw.x are not known here; write them out, or name them in its alias: AS t(a, b)",
        ),
        (
            "SELECT * FROM ops.t, raw.x",
            "ops.v: the columns of raw.x are not known here; write them out, or name them in its alias: AS t(a, b)",
        ),
        ("SELECT s.* FROM ops.t", "ops.v: s.* is not a table of this SELECT; write the fields out: s.field, ..."),
        ("SELECT a FROM ops.v", "ops.v: it reads itself: ops.v -> ops.v"),
    ],
)
def test_a_query_that_can_t_be_kept_up_to_date_is_refused(tmp_path: Path, query: str, told: str) -> None:
    assert told in without_lines(problems(tmp_path, catalog(T, view(query))))


@pytest.mark.parametrize(
    "query",
    [
        "|\n  SELECT a,\n    zz\n  FROM ops.t",
        "|-   # why\n\n    SELECT a\n      , x.zz\n    FROM ops.t x",
        "|2\n    SELECT a, zz\n  FROM ops.t",
        ">-\n  SELECT a,\n\n  zz\n  FROM ops.t",
        "SELECT a, zz FROM ops.t",
        "SELECT a,\n  b,\n  zz FROM ops.t",
        '"SELECT a, zz\n  FROM ops.t"',
        "'SELECT a, zz FROM ops.t'",
        "SELECT 'ü€\U0001f600' AS u, zz FROM ops.t",
        "|\n  SELECT 'ü€\U0001f600' AS u, -- zz\n    zz FROM ops.t",
    ],
)
def test_a_column_that_is_not_there_is_told_with_its_line_and_column(tmp_path: Path, query: str) -> None:
    text = catalog(T, f"kind: view\nname: ops.v\nquery: {query}")
    check_messages(problems(tmp_path, text))


@pytest.mark.parametrize("query", ["'SELECT ''x'' AS x, zz FROM ops.t'", '"SELECT \\x27x\\x27 AS x, zz FROM ops.t"'])
def test_where_the_text_is_escaped_the_place_is_that_in_the_query(tmp_path: Path, query: str) -> None:
    text = catalog(T, f"kind: view\nname: ops.v\nquery: {query}")
    check_messages(problems(tmp_path, text))


def test_a_column_that_a_view_does_not_give_is_told_and_problems_are_sorted_by_place(tmp_path: Path) -> None:
    text = catalog(T, view("SELECT a, q FROM ops.t"), view("SELECT v.a,\n v.x, v.b\nFROM ops.v", name="ops.w"))
    assert [problem.rpartition("; ")[0] for problem in problems(tmp_path, text)] == [
        ":8:13: ops.v: ops.t has no column q",
        ":14:6: ops.w: ops.v has no column x",
        ":14:11: ops.w: ops.v has no column b",
    ]


def test_a_column_in_the_query_of_an_object_of_python_has_its_place_in_the_query() -> None:
    table = BuiltinObject(Kind.TABLE, "ops.t", stable_id("p", "t"), (Column("a", "int"),))
    view = BuiltinObject(Kind.VIEW, "ops.v", stable_id("p", "v"), query="SELECT a\nFROM ops.t WHERE zz")
    with raises(DeclarationError):
        load([table, view])


def test_a_query_is_told_with_the_line_where_it_begins(tmp_path: Path) -> None:
    assert problems(tmp_path, catalog(T, view("SELECT a\nFROM ops.tt")))[0].startswith(":7: ops.v: ")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM ops.t",
        "SELECT a FROM raw.orders",
        "SELECT snapshot_id FROM ops.t.history",
        "SELECT x._file, x.a FROM ops.t x",
        "WITH tt AS (SELECT a FROM ops.t) SELECT tt.a FROM tt",
        "SELECT count(*) AS n FROM raw.orders WHERE EXISTS (SELECT * FROM raw.x)",
    ],
)
def test_a_query_that_can_be_kept_up_to_date_is_taken(tmp_path: Path, query: str) -> None:
    assert loaded(tmp_path, catalog(T, view(query)))["ops.v"].query == query + "\n"


def test_what_somebody_else_makes_in_our_namespace_is_named_in_depends_on(tmp_path: Path) -> None:
    assert loaded(tmp_path, catalog(T, view("SELECT a FROM ops.other", "depends_on: [OPS.Other]")))


def test_a_query_that_spark_alone_understands_needs_depends_on(tmp_path: Path) -> None:
    assert loaded(tmp_path, catalog(T, view("SELECT a FROM ops.t ??? b", "depends_on: [ops.t]")))


def test_a_missing_object_may_be_in_a_document_that_could_not_be_read(tmp_path: Path) -> None:
    found = problems(tmp_path, catalog(T.replace("kind: table", "kind: tabel"), view("SELECT * FROM ops.t")))
    assert [item for item in found if "kind: must be" in item]
    assert not [item for item in found if "not declared" in item]


def test_what_a_broken_object_promises_is_not_held_against_its_readers(tmp_path: Path) -> None:
    broken = T.replace("{name: B, type: int}", "{name: B}")
    found = problems(tmp_path, catalog(broken, view("SELECT x.b FROM ops.t x")))
    assert without_lines(found) == ["ops.t: columns.1.type: is missing"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            "[{name: a, type: int}, {name: z, type: int}]",
            "ops.v: its columns are a, z, and its query gives a, B; write them alike, in the same order",
        ),
        (
            "[{name: b, type: int}, {name: a, type: int}]",
            "ops.v: its columns are b, a, and its query gives a, B; write them alike, in the same order",
        ),
    ],
)
def test_declared_columns_are_those_of_the_query(tmp_path: Path, columns: str, told: str) -> None:
    text = view("SELECT * FROM ops.t", f"columns: {columns}", kind="materialized_view")
    assert told in without_lines(problems(tmp_path, catalog(T, text)))
    fine = view(
        "SELECT * FROM ops.t", "columns: [{name: A, type: int}, {name: b, type: int}]", kind="materialized_view"
    )
    assert loaded(tmp_path, catalog(T, fine))


def test_circles_are_told_once_each_in_the_direction_of_reading(tmp_path: Path) -> None:
    text = catalog(
        view("SELECT a FROM ops.b", name="ops.a"),
        view("SELECT a FROM ops.c", name="ops.b"),
        view("SELECT a FROM ops.a", name="ops.c"),
        view("SELECT a FROM ops.y", name="ops.x"),
        view("SELECT a FROM ops.x", name="ops.y"),
        view("SELECT a FROM ops.x", name="ops.outside"),
    )
    assert without_lines(problems(tmp_path, text)) == [
        "ops.a: it reads itself: ops.a -> ops.b -> ops.c -> ops.a",
        "ops.x: it reads itself: ops.x -> ops.y -> ops.x",
    ]


GONE = "kind: removed\nname: ops.t"


def test_a_view_may_not_read_what_is_removed(tmp_path: Path) -> None:
    """A document that says that something goes declares nothing."""
    assert without_lines(problems(tmp_path, catalog(GONE, view("SELECT a FROM ops.t")))) == [
        "ops.v: it reads ops.t, which is not declared; declare it, e.g. as a source; a view may have it in "
        "depends_on instead"
    ]


def test_what_may_go_can_be_read_as_long_as_it_is_declared(tmp_path: Path) -> None:
    assert len(loaded(tmp_path, catalog(T, GONE, view("SELECT a FROM ops.t")))) == 2


def test_a_view_reads_one_object_and_not_one_for_each_instance(tmp_path: Path) -> None:
    text = catalog(T + "\nper_instance: lake", view("SELECT a FROM ops.t"))
    assert without_lines(problems(tmp_path, text)) == [
        "ops.v: it reads ops.t, which is one object for each lake; read a single object"
    ]


def sink(source: str, name: str = "mine.k") -> str:
    return f"kind: sink\nname: {name}\nsink: {{source: {source}, to: files, settings: {{path: x}}}}"


def test_a_users_sink_asks_for_an_exportable_table(tmp_path: Path) -> None:
    assert without_lines(problems(tmp_path, catalog(T, sink("ops.t")))) == [
        "mine.k: ops.t is not exportable; send a materialized_view over it, or have it declare exportable: true"
    ]
    assert loaded(tmp_path, catalog(T + "\nexportable: true", sink("ops.T")))
    assert loaded(tmp_path, catalog(T, sink("ops.t", "ops.k")))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("ops.v", "ops.k: ops.v is a view, which has no history to send; make it a materialized_view"),
        (
            "ops.nothing",
            "ops.k: it reads ops.nothing, which is not declared; declare it, e.g. as a source; a view may have it in "
            "depends_on instead",
        ),
        ("ops.k", "ops.k: it reads ops.k, which is a sink; read what that one reads"),
    ],
)
def test_a_sink_sends_a_table_that_is_there(tmp_path: Path, source: str, told: str) -> None:
    text = catalog(T, view("SELECT a FROM ops.t"), sink(source, "ops.k"))
    assert told in without_lines(problems(tmp_path, text))


def test_a_query_of_python_is_looked_at_as_well() -> None:
    obj = BuiltinObject(Kind.VIEW, "ops.v", stable_id("p", "v"), query="SELECT a FROM t; DROP TABLE t")
    with raises(DeclarationError):
        load(obj)


def test_thousands_of_mistakes_are_told_soon(tmp_path: Path) -> None:
    views = [view(f"SELECT a FROM ops.missing{number}", name=f"ops.v{number}") for number in range(1_000)]
    assert len(problems(tmp_path, catalog(T, *views))) == 1_000


def test_a_wide_table_under_a_star_is_no_matter() -> None:
    columns = tuple(Column(f"c{number}", "int") for number in range(2_000))
    wide = BuiltinObject(Kind.TABLE, "ops.wide", stable_id("p", "wide"), columns)
    over = BuiltinObject(Kind.VIEW, "ops.v", stable_id("p", "v"), query="SELECT w.* FROM ops.wide w")
    assert len(load(wide, over).objects) == 2


def test_columns_of_a_star_may_be_those_that_were_there_when_it_was_written(tmp_path: Path) -> None:
    """What it reads may get more columns in a later version."""
    few = "kind: materialized_view\nname: ops.v\nquery: SELECT * FROM ops.t\ncolumns: [{name: a, type: int}]\n"
    assert loaded(tmp_path, catalog(T, few))
    told = "its columns are a, and its query gives a, B"
    assert told in problems(tmp_path, catalog(T, few.replace("*", "a, B")))[0]
