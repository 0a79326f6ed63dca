"""Stars written out: nothing but the star is touched, and what can't be written out is refused with what to write."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.queries import declared_columns, dependencies, expand_stars, output_columns
from airflow_provider_rfr.builtins.sql import identifier
from airflow_provider_rfr.exceptions import QueryError
from tests.unit.builtins.catalogs import table, view
from tests.unit.builtins.declaring import PATIENT
from tests.unit.messages import raises

COLUMNS = {
    "ops.runs": ("run_id", "Pages", "job"),
    "ops.jobs": ("job", "owner name"),
    "ops.words": ("from", "date", "group"),
    "raw.other": ("job", "x"),
}


def expanded(query: str, **keywords) -> str:
    return expand_stars(query, COLUMNS.get, "ops", **keywords)


RUNS, JOBS = "run_id, Pages, job", "job, `owner name`"
OF_R, IN_RUNS = "r.run_id, r.Pages, r.job", "runs.run_id, runs.Pages, runs.job"
LATERAL = "LATERAL (SELECT Pages AS n FROM runs WHERE runs.job = jobs.job) l"
STARS = [
    ("SELECT {} FROM runs", "*", RUNS),
    ("SELECT {} FROM OPS.Runs", "*", RUNS),
    ("select/*+ X */ {}, 1 one from runs -- *", "*", RUNS),
    ("SELECT DISTINCT {} FROM runs", "*", RUNS),
    ("SELECT {} FROM runs r", "r.*", OF_R),
    ("SELECT {} FROM runs r", "R . /* why */ *", "R . /* why */ run_id, R.Pages, R.job"),
    ("SELECT {} FROM runs AS r", "`R`.*", OF_R.replace("r.", "`R`.")),
    ("SELECT {} FROM ops.runs", "ops.runs.*", "ops.runs.run_id, ops.runs.Pages, ops.runs.job"),
    ("SELECT {} FROM words", "*", "`from`, `date`, `group`"),
    ("SELECT {} FROM runs", "* EXCEPT (pages, JOB)", "run_id"),
    ("SELECT {}, 1 AS x FROM runs r", "r.* EXCEPT (run_id)", "r.Pages, r.job"),
    ("SELECT {} FROM runs r JOIN jobs b ON r.job = b.job", "*", f"{OF_R}, b.job, b.`owner name`"),
    ("SELECT {} FROM runs JOIN jobs USING (JOB)", "*", "job, runs.run_id, runs.Pages, jobs.`owner name`"),
    (
        "SELECT {} FROM runs FULL JOIN jobs USING (job) JOIN raw.other USING (job)", "*",
        "job, runs.run_id, runs.Pages, jobs.`owner name`, other.x",
    ),
    ("SELECT {} FROM runs LEFT SEMI JOIN jobs ON runs.job = jobs.job", "*", IN_RUNS),
    ("SELECT {} FROM runs LATERAL VIEW explode(m) e AS k, v", "*", f"{IN_RUNS}, e.k, e.v"),
    (f"SELECT {{}} FROM jobs, {LATERAL}", "*", "jobs.job, jobs.`owner name`, l.n"),
    ("SELECT {} FROM range(3) AS r(i)", "*", "i"),
    ("SELECT {} FROM VALUES (1, 2) AS q(x, Y)", "*", "x, Y"),
    ("SELECT {} FROM runs AS r(a, B, c)", "*", "a, B, c"),
    ("SELECT {0} FROM runs UNION ALL SELECT {0} FROM runs", "*", RUNS),
    ("WITH c(X, Y, Z) AS (SELECT run_id, Pages, job FROM runs) SELECT {} FROM c", "*", "X, Y, Z"),
    ("WITH runs AS (SELECT x FROM raw.other) SELECT {} FROM runs", "*", "x"),
    (f"SELECT {{}} FROM (SELECT {JOBS}, 1 AS One FROM (SELECT {JOBS} FROM jobs) a) b", "*", f"{JOBS}, One"),
    ("SELECT a FROM (SELECT {}, 1 AS One FROM (SELECT {} FROM jobs) a) b", "*", JOBS),
    ("SELECT struct({}) AS s FROM jobs", "*", JOBS),
    ("SELECT count(DISTINCT {}) AS n FROM jobs", "*", JOBS),
    ("SELECT a FROM raw.z WHERE b IN (SELECT {} FROM (SELECT job FROM jobs) q)", "*", "job"),
    ("(SELECT {} FROM jobs) LIMIT 3", "*", JOBS),
    ("FROM jobs SELECT {}", "*", JOBS),
]  # fmt: skip


@pytest.mark.parametrize(("query", "star", "names"), STARS)
def test_a_star_becomes_the_columns_that_it_stands_for(query: str, star: str, names: str) -> None:
    text = query.replace("{}", "{0}").format(names)
    assert expanded(query.replace("{}", "{0}").format(star)) == text
    assert expanded(text) == text


def test_stars_in_several_places_are_written_out_together() -> None:
    query = "WITH c(X, Y, Z) AS (SELECT * FROM runs) SELECT *, 1 AS One FROM (SELECT * FROM c) a"
    inner = f"WITH c(X, Y, Z) AS (SELECT {RUNS} FROM runs) SELECT X, Y, Z, 1 AS One FROM (SELECT X, Y, Z FROM c) a"
    assert expanded(query) == inner


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM runs",
        "SELECT count( * ) FILTER (WHERE job = 'x') AS n FROM raw.unknown",
        "SELECT a * b AS p, '*' AS s, \"*\" AS d, `*` AS i FROM raw.unknown -- *",
        "SELECT a FROM raw.z WHERE EXISTS (SELECT * FROM raw.y WHERE y.a = z.a)",
        "SELECT a FROM raw.unknown",
    ],
)
def test_what_is_no_star_for_columns_stays(query: str) -> None:
    assert expanded(query) == query


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM raw.unknown", "the columns of raw.unknown are not known here; write them out"),
        ("SELECT * FROM jobs JOIN raw.u ON 1 = 1", "the columns of raw.u are not known here; write them out"),
        ("SELECT u.* FROM jobs, raw.u", "the columns of raw.u are not known here"),
        ("SELECT * FROM (SELECT * FROM raw.u) q", "the columns of raw.u are not known here"),
        ("SELECT * FROM runs NATURAL JOIN jobs", "write USING (job)"),
        ("SELECT run_id FROM runs NATURAL LEFT JOIN jobs", "write USING (job)"),
        ("SELECT a FROM raw.u NATURAL JOIN raw.w", "write USING (the columns)"),
        ("SELECT s.* FROM runs", "write the fields out: s.field"),
        ("SELECT runs.* FROM runs r", "write the fields out: runs.field"),
        ("SELECT * FROM range(3)", "the columns of a function are not known here"),
        ("SELECT * FROM runs LATERAL VIEW explode(m) e", "name them in its alias"),
        ("SELECT * FROM runs PIVOT (sum(Pages) FOR job IN ('a'))", "a pivot"),
        ("SELECT * FROM (runs JOIN jobs ON 1 = 1)", "joins in brackets"),
        ("SELECT * FROM ((SELECT job FROM jobs) x CROSS JOIN (SELECT Pages FROM runs) y) q", "joins in brackets"),
        ("SELECT * FROM jobs JOIN (runs r JOIN raw.other o USING (job)) USING (job)", "joins in brackets"),
        ("SELECT * FROM runs, ops.runs", "give each an alias of its own"),
        ("SELECT * FROM runs VERSION AS OF 3", "the columns of ops.runs are not known here"),
        ("SELECT * FROM runs JOIN jobs USING (job) JOIN raw.other ON 1 = 1", "two columns of one name"),
        ("SELECT * EXCEPT (nothing) FROM runs", "EXCEPT names nothing"),
        ("SELECT * EXCEPT (run_id, pages, job) FROM runs", "expands to no column"),
        ("SELECT * FROM runs AS r(a)", "3 columns, and 1 names"),
        ("SELECT 1 AS one, *", "expands to no column"),
        ("FROM runs", "write SELECT and the columns"),
        ("FROM runs |> WHERE job = 'x'", "write SELECT and the columns"),
        ("SELECT * FROM (SELECT count(*) FROM runs) q", "column 1 of a SELECT has no name"),
    ],
)
def test_what_can_t_be_written_out_is_refused_with_what_to_write(query: str, said: str) -> None:
    with pytest.raises(QueryError) as refused:
        expanded(query)
    assert said in str(refused.value)


def test_a_column_that_comes_later_changes_no_view_whose_star_was_written_out() -> None:
    stored = expand_stars("SELECT *, count(*) OVER () AS n FROM ops.t", {"ops.t": ("a", "b")}.get)
    later = {"ops.t": ("a", "new", "b")}.get
    assert stored == "SELECT a, b, count(*) OVER () AS n FROM ops.t"
    assert expand_stars(stored, later) == stored
    assert output_columns(stored, later) == ("a", "b", "n")


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_ ]{0,6}[A-Za-z0-9_]", fullmatch=True)
TABLE = st.lists(NAMES, min_size=1, max_size=4, unique_by=str.casefold)
SPACE = st.sampled_from([" ", "\n", " /* it's a * */ ", " -- * ' \n", "\t"])
BEFORE = st.sampled_from(["", "1 AS one,", "count(*) AS n,", "'*' AS s,", "a.x * 2 AS `*`,"])
AFTER = st.sampled_from(["", "WHERE a.x > 1 * 2", "ORDER BY 1", "LIMIT 3"])


@PATIENT
@given(TABLE, BEFORE, AFTER, SPACE, SPACE, st.sampled_from(["", "a.", "A .", "`a`."]))
def test_nothing_but_the_star_is_touched(columns, before, after, one, two, qualifier) -> None:
    head, tail = f"SELECT{one}{before}{two}{qualifier}", f"{one}FROM{two}ops.t AS a{one}{after}"
    text = expand_stars(f"{head}*{tail}", {"ops.t": tuple(columns)}.get)
    assert text.startswith(head)
    assert text.endswith(tail)
    middle = text[len(head) : len(text) - len(tail)]
    between = f", {qualifier.rstrip(' .')}." if qualifier else ", "
    assert middle == between.join(map(identifier, columns))


@PATIENT
@given(TABLE, TABLE, st.booleans())
def test_without_stars_a_query_gives_the_same_columns_and_reads_the_same_tables(left, right, qualified) -> None:
    known = {"ops.t": tuple(left), "ops.u": tuple(right)}.get
    query = f"SELECT {'a.*, b.*' if qualified else '*'} FROM ops.t a JOIN ops.u b ON 1 = 1"
    text = expand_stars(query, known)
    assert output_columns(text, known) == output_columns(query, known) == (*left, *right)
    assert {dependency.name for dependency in dependencies(text, "")} == {
        dependency.name for dependency in dependencies(query, "")
    }
    used = {dependency.name: set(dependency.columns or ()) for dependency in dependencies(text, "")}
    assert used == {"ops.t": {n.lower() for n in left}, "ops.u": {n.lower() for n in right}}


@PATIENT
@given(TABLE, st.data())
def test_except_leaves_out_what_it_names(columns, data) -> None:
    assume(len(columns) > 1)
    left_out = data.draw(st.sets(st.sampled_from(columns), min_size=1, max_size=len(columns) - 1))
    listed = ", ".join(identifier(item.upper()) for item in left_out)
    text = expand_stars(f"SELECT * EXCEPT ({listed}) FROM ops.t", {"ops.t": tuple(columns)}.get)
    assert text == f"SELECT {', '.join(identifier(column) for column in columns if column not in left_out)} FROM ops.t"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT a, B AS Bee, s.f.g, r.x FROM ops.runs r", ("a", "Bee", "g", "x")),
        ("SELECT posexplode(a) AS (p, Q) FROM ops.runs", ("p", "Q")),
        ("SELECT a AS x FROM t UNION SELECT b AS y FROM u", ("x",)),
        ("WITH c AS (SELECT Pages FROM ops.runs) SELECT * FROM c", ("Pages",)),
        ("SELECT * FROM ops.runs", ("run_id", "Pages", "job")),
    ],
)
def test_the_columns_of_a_query_are_named_as_their_author_wrote_them(query: str, names: tuple[str, ...]) -> None:
    assert output_columns(query, COLUMNS.get) == names


@pytest.mark.parametrize("query", ["SELECT a, a + 1 FROM t", "SELECT count(*) FROM t", "SELECT CAST(a AS int) FROM t"])
def test_a_column_without_a_name_is_refused(query: str) -> None:
    with raises(QueryError):
        output_columns(query, COLUMNS.get)


def test_a_union_of_hundreds_has_columns() -> None:
    query = " UNION ALL ".join(["SELECT a AS x FROM t"] * 300)
    assert output_columns(query, COLUMNS.get) == ("x",)


def test_views_over_views_have_the_columns_of_their_queries() -> None:
    views = view("ops.w", "SELECT * FROM v"), view("ops.v", "SELECT *, 1 AS c FROM OPS.t")
    found = declared_columns([*views, table("ops.T", "A int", "b int")])
    assert (found("ops.w"), found("OPS.V"), found("ops.x")) == (("A", "b", "c"), ("A", "b", "c"), None)


def test_views_in_a_circle_have_no_columns_and_end() -> None:
    found = declared_columns([view("ops.a", "SELECT * FROM ops.b"), view("ops.b", "SELECT * FROM ops.a")])
    assert found("ops.a") is None
