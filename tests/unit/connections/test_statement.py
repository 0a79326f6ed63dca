"""The text of a statement, and where its errors point."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest

from airflow_provider_rfr.connections import (
    ActionKind,
    Parameter,
    SecretReference,
    Statement,
    StatementError,
    Verb,
    parse_statement,
)
from tests.unit.connections.worlds import CANARY

WHOLE = """
-- the database moves
ALTER CONNECTION IF EXISTS pg_main
   SET (host = 'db2', port = 5433), set (extra.sslmode 'require'),
   SET (password = SECRET 'env:PG_PW', login = :who), RESET (schema), DROP (extra.a, "extra".B) /* away */
   WITH (VALIDATE = true, RESTART false, DRAIN_TIMEOUT = '10m', DRY_RUN = on);
"""


def test_a_whole_statement_is_read() -> None:
    statement = parse_statement(WHOLE)
    assert statement.verb is Verb.ALTER
    assert (statement.connection, statement.if_exists) == ("pg_main", True)
    assert statement.set == {
        "host": "db2",
        "port": 5433,
        "extra.sslmode": "require",
        "password": SecretReference("env", "PG_PW"),
        "login": Parameter("who"),
    }
    removed = [(action.kind, action.option) for action in statement.actions if action.removes]
    dropped = [(ActionKind.DROP, "extra.a"), (ActionKind.DROP, "extra.B")]
    assert removed == [(ActionKind.RESET, "schema"), *dropped]
    settings = statement.settings
    assert (settings.validate, settings.restart, settings.dry_run) == (True, False, True)
    assert settings.drain_timeout == 600


def test_a_statement_is_frozen_and_is_what_it_prints() -> None:
    statement = parse_statement(WHOLE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        statement.connection = "other"  # type: ignore[misc]
    again = parse_statement(str(statement))
    assert again == dataclasses.replace(statement, actions=again.actions)
    assert {action.option for action in again.actions} == {action.option for action in statement.actions}


@pytest.mark.parametrize(
    "text",
    [
        'ALTER CONNECTION "if" SET (a = 1)',
        'ALTER CONNECTION a SET (extra."s3.region" = 1, extra."a""b".c = 2)',
        "ALTER CONNECTION a SET (b = 1) WITH (DRAIN_TIMEOUT = 0.5)",
        "ALTER CONNECTION a SET (b = 5--3\n)",
        'DROP CONNECTION IF EXISTS "if"',
        "DROP CONNECTION c CASCADE",
        "COMMENT ON CONNECTION a.b IS 'it''s mine'",
        "COMMENT ON CONNECTION is IS NULL",
    ],
)
def test_odd_names_and_values_are_what_they_print(text: str) -> None:
    statement = parse_statement(text)
    again = parse_statement(str(statement))
    shown, expected = ([(action.option, action.value) for action in made.actions] for made in (again, statement))
    assert shown == expected
    assert (again.verb, again.connection, again.settings) == (statement.verb, statement.connection, statement.settings)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("'it''s'", "it's"), ("''", ""), ("-5", -5), ("1.5", 1.5), ("5-- a comment\n", 5)),
        *(("TRUE", True), ("off", False), ("null", None)),
    ],
)
def test_values_have_their_types(text: str, value: object) -> None:
    found = parse_statement(f"ALTER CONNECTION c SET (extra.a = {text})").set["extra.a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("name", ["c", "a.b-c_d", "2nd"])
def test_connections_have_the_names_that_airflow_allows(name: str) -> None:
    assert parse_statement(f"ALTER CONNECTION {name} DROP (host)").connection == name
    assert parse_statement(f'VALIDATE CONNECTION "{name}"') == Statement(Verb.VALIDATE, name)


def test_the_other_forms_are_read() -> None:
    assert parse_statement("alter connection c rotate keys").verb is Verb.ROTATE_KEYS
    renamed = parse_statement("ALTER CONNECTION c RENAME TO d")
    assert (renamed.verb, renamed.new_name) == (Verb.RENAME, "d")
    assert parse_statement("drop connection c;") == Statement(Verb.DROP, "c")
    assert parse_statement("DROP CONNECTION c cascade") == Statement(Verb.DROP, "c", cascade=True)
    assert parse_statement("DROP CONNECTION IF EXISTS c") == Statement(Verb.DROP, "c", if_exists=True)


def test_a_comment_is_the_description() -> None:
    made = parse_statement("COMMENT ON CONNECTION c\nIS 'it''s mine'")
    assert (made.verb, made.connection, made.set) == (Verb.COMMENT, "c", {"description": "it's mine"})
    assert (made.actions[0].line, made.actions[0].column) == (2, 4)
    for text in ("NULL", "null", "''"):
        (action,) = parse_statement(f"COMMENT ON CONNECTION c IS {text}").actions
        assert (action.option, action.removes) == ("description", True)


def test_a_switch_that_is_only_named_is_on() -> None:
    made = parse_statement("ALTER CONNECTION c DROP (a) WITH (DRY_RUN, NEW_IDENTITY, VALIDATE false)").settings
    assert (made.dry_run, made.new_identity, made.validate) == (True, True, False)


WITH = "ALTER CONNECTION c DROP (a) WITH"


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("", 1, 1, "expected ALTER or DROP or COMMENT or VALIDATE"),
        ("ALTER CONNECTION", 1, 17, "the connection's name"),
        ("ALTER CONNECTION c", 1, 19, "expected SET or DROP or RESET"),
        ("ALTER CONNECTION c\n  SET (host 'a' 'b')", 2, 17, "expected ')'"),
        ("ALTER CONNECTION c SET ()", 1, 25, "an option"),
        ("ALTER CONNECTION c SET (host)", 1, 29, "a value"),
        ("ALTER CONNECTION c DROP (host = 'a')", 1, 31, "names of options only"),
        ("ALTER CONNECTION c SET (host = 'a", 1, 32, "does not end"),
        ("ALTER CONNECTION c SET (host = 'a') WITH (SPEED = 1)", 1, 43, "no such setting"),
        ("ALTER CONNECTION c DROP (a) WITH (DRY_RUN = true, DRY_RUN = true)", 1, 51, "more than once"),
        (f"{WITH} (VALIDATE = 'perhaps')", 1, 46, "VALIDATE must be true or false; write e.g. VALIDATE = true"),
        (f"{WITH} (VALIDATE = maybe)", 1, 46, "VALIDATE must be true or false"),
        (f"{WITH} (DRY_RUN =)", 1, 44, "DRY_RUN must be true or false"),
        (f"{WITH} (DRY_RUN = :dry)", 1, 45, "DRY_RUN must be true or false"),
        (f"{WITH} (DRY_RUN", 1, 42, "expected ')', found the end"),
        (f"{WITH} (DRAIN_TIMEOUT)", 1, 48, "must be a duration; write e.g. DRAIN_TIMEOUT = '10m'"),
        (f"{WITH} (DRAIN_TIMEOUT = 'soon')", 1, 51, "must be a duration"),
        ("ALTER CONNECTION c SET (password = SECRET 'plain')", 1, 43, "no reference follows SECRET"),
        ("ALTER CONNECTION c ROTATE KEYS, SET (a = 1)", 1, 31, "combined with other actions"),
        ("ALTER CONNECTION c ROTATE KEYS ROTATE KEYS", 1, 32, "combined with other actions"),
        ("ALTER CONNECTION c SET (a = 1), ROTATE KEYS", 1, 33, "combined with other actions"),
        ("ALTER CONNECTION c ROTATE KEYS WITH (VALIDATE = false)", 1, 32, "combined with WITH"),
        ("ALTER CONNECTION c DROP (a); DROP", 1, 30, "the end of the statement"),
        ("ALTER CONNECTION c OWNER TO somebody", 1, 20, "found 'OWNER'"),
        ("DROP", 1, 5, "expected CONNECTION, found the end; write DROP CONNECTION name"),
        ("DROP CONNECTION", 1, 16, "expected the connection's name, found the end"),
        ("DROP CONNECTION IF c", 1, 20, "expected EXISTS, found a name; write DROP CONNECTION name"),
        ("DROP CONNECTION c\n RESTRICT", 2, 2, "expected the end of the statement"),
        ("DROP CONNECTION c, d", 1, 18, "found ','; write one statement at a time"),
        ("COMMENT CONNECTION c IS 'x'", 1, 9, "expected ON, found 'CONNECTION'; write COMMENT ON CONNECTION name IS"),
        ("COMMENT ON c IS 'x'", 1, 12, "expected CONNECTION, found a name"),
        ("COMMENT ON CONNECTION IF EXISTS c IS 'x'", 1, 26, "expected IS, found 'EXISTS'"),
        ("COMMENT ON CONNECTION c", 1, 24, "expected IS, found the end"),
        ("COMMENT ON CONNECTION c IS", 1, 27, "expected a text or NULL, found the end"),
        ("COMMENT ON CONNECTION c IS 5", 1, 28, "expected a text or NULL, found a number"),
        ("COMMENT ON CONNECTION c IS SECRET 'env:A'", 1, 28, "expected a text or NULL, found 'SECRET'"),
        ("COMMENT ON CONNECTION c IS NULL 'x'", 1, 33, "expected the end of the statement"),
        ("ALTER CONNECTION c SET (a = " + "9" * 5000 + ")", 1, 29, "too large"),
        ("ALTER CONNECTION c SET (a = 1e999)", 1, 29, "too large"),
        ("ALTER CONNECTION c DROP (a) WITH (DRAIN_TIMEOUT = 1e999)", 1, 51, "too large"),
        ("ALTER CONNECTION c\nSET (a = 'x\udcff')", 2, 12, "can't be stored"),
        ("ALTER CONNECTION c SET (a = '\0')", 1, 30, "can't be stored"),
        ("ALTER CONNECTION c SET (a = SECRET 'v:x')", 1, 36, "unknown backend after SECRET; use one of env, variable"),
    ],
)
def test_errors_point_at_their_place(text: str, line: int, column: int, said: str) -> None:
    with pytest.raises(StatementError, match=re.escape(said)) as caught:
        parse_statement(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.line, again.column) == (str(caught.value), line, column)


@pytest.mark.parametrize(
    "text",
    [
        f"ALTER CONNECTION c SET (password = {CANARY})",
        f"ALTER CONNECTION c SET (password '{CANARY}' {CANARY})",
        f"ALTER CONNECTION c SET (password '{CANARY})",
        f"ALTER CONNECTION c SET (password '{CANARY}'))",
        f"ALTER CONNECTION c SET (password = SECRET {CANARY})",
        f"ALTER CONNECTION c SET (password = SECRET '{CANARY}')",
        f"ALTER CONNECTION c SET (password = SECRET 'p4ss:{CANARY}')",
        f"ALTER CONNECTION c SET (a = 1) WITH ({CANARY} = 1)",
        f"{CANARY}",
        f"DROP CONNECTION c {CANARY}",
        f"COMMENT ON CONNECTION c IS {CANARY}",
        f"COMMENT ON CONNECTION c IS 'a' '{CANARY}'",
    ],
)
def test_an_error_never_repeats_what_may_be_a_secret(text: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_statement(text)
    assert CANARY not in f"{caught.value!r} {caught.value}"


def test_a_statement_is_shown_without_secrets() -> None:
    statement = parse_statement(f"ALTER CONNECTION c SET (password = '{CANARY}', extra.api_key = '{CANARY}')")
    assert CANARY not in f"{statement} {statement!r} {statement.outline()}"
    assert CANARY not in parse_statement(f"ALTER CONNECTION c SET (host = '{CANARY}')").outline()
    assert parse_statement(f"COMMENT ON CONNECTION c IS '{CANARY}'").outline() == "COMMENT ON CONNECTION c"
