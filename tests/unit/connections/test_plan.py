"""What is wrong with a change: everything at once, with its place, and with no secret in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_rfr.connections.definition import Definition
from airflow_provider_rfr.exceptions import AlterationRefusedError
from tests.unit.connections.worlds import CANARY, Bench

PG = Definition("pg", "postgres", host="db1", login="app", password=CANARY, extra={"sslmode": "require"})
API = Definition("api", "rfr_api", host="https://api.example.com", password=CANARY, extra={"page_size": 20})
LAKE = Definition("lake", "rfr_lake", host="sqlite:////c.db", extra={"warehouse": "file:///w"})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, PG, API, LAKE)


def refused(bench: Bench, text: str) -> list[str]:
    before = dict(bench.shelf.connections)
    with pytest.raises(AlterationRefusedError) as caught:
        bench.alter(text)
    assert bench.shelf.connections == before
    assert CANARY not in str(caught.value)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pg SET (speed = 1)", "speed: connections of type 'postgres' have no such option"),
        ("pg SET (conn_type = 'mysql')", "the type of a connection never changes"),
        ("pg SET (host = 'a', host = 'b')", "host: is specified more than once"),
        ("pg SET (host = 'a'), SET (host = 'b'), SET (host = 'c')", "host: is specified more than once"),
        ("pg DROP (schema), RESET (schema)", "schema: is specified more than once"),
        ("pg SET (host = 'a'), RESET (host)", "host: cannot both SET and DROP/RESET it"),
        ("pg SET (extra.service = 'a', host = 'b')", "only one of extra.service, host can be set"),
        ("pg SET (host = 'a'), DROP (extra.service)", "mutually exclusive"),
        ("pg DROP (host), SET (service = 'a')", "mutually exclusive"),
        ("pg RESET (host), RESET (extra.service)", "one of host, extra.service must be set"),
        ("pg SET (port = 'abc')", "port: must be a port"),
        ("pg SET (port = 70000)", "port: must be a port"),
        ("pg SET (sslmode = 'much')", "extra.sslmode: must be one of disable"),
        ("pg RESET (login)", "login: must be set, since password is"),
        ("pg SET (sslcert = '/c.pem')", "extra.sslkey: must be set"),
        (f"pg SET (password = '{CANARY}2')", "password: is secret and stands here in plain text"),
        (f"api SET (extra.secrets.pin = '{CANARY}')", "extra.secrets.pin: is secret"),
        (f"api SET (client_secret = '{CANARY}')", "extra.client_secret: is secret"),
        (f"lake SET (properties = '{CANARY}')", "extra.properties: is secret"),
        ("api SET (password = :missing)", "the parameter :missing is not given"),
        ("api SET (host = 'ftp://x')", "host: must be a web address"),
        (f"api SET (host = 'https://me:{CANARY}@x')", "host: holds credentials"),
        ("api RESET (host)", "host: must be set"),
        ("lake RESET (host)", "host: must be set for this catalog_type"),
        ("pg SET (ssh_conn_id = 'pg')", "extra.ssh_conn_id: refers to the connection itself"),
        ("pg SET (ssh_conn_id = 'none')", "there is no connection 'none'"),
        ("pg SET (password = SECRET 'env:NONE')", "password: SECRET 'env:NONE' is not there"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_changes(bench: Bench, text: str, said: str) -> None:
    problems = refused(bench, f"ALTER CONNECTION {text}")
    assert len(problems) == 1, problems
    assert said in problems[0]


def test_all_problems_come_at_once_each_with_its_place(bench: Bench) -> None:
    text = f"ALTER CONNECTION pg\n SET (port = 'abc', speed = 1),\n SET (password = '{CANARY}'), RESET (login)"
    assert [problem.split(":")[0] for problem in refused(bench, text)] == [
        "line 2, column 7",
        "line 2, column 21",
        "line 3, column 7",
        f"line 3, column {text.splitlines()[2].index('login') + 1}",
    ]


def test_an_option_that_progress_is_kept_by_is_fixed_while_something_uses_the_connection(bench: Bench) -> None:
    bench.run("load", "api", "lake")
    for change in ("SET (warehouse = 's3://other')", "SET (warehouse = 'file:///w')", "RESET (extra.warehouse)"):
        assert "extra.warehouse: can't be altered while" in refused(bench, f"ALTER CONNECTION lake {change}")[0]


def test_an_option_that_progress_is_kept_by_may_change_while_nobody_uses_the_connection(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION lake SET (warehouse = 's3://other')")
    assert bench.shelf.connections["lake"].extra["warehouse"] == "s3://other"


def test_a_circle_of_connections_is_refused(tmp_path: Path) -> None:
    a = Definition("a", "postgres", host="a", extra={"ssh_conn_id": "b"})
    b = Definition("b", "ssh", host="b")
    bench = Bench(tmp_path, a, b)
    assert "makes a cycle: b > a > b" in refused(bench, "ALTER CONNECTION b SET (extra.ssh_conn_id = 'a')")[0]


def test_setting_one_of_an_exclusive_group_takes_the_other_away(bench: Bench) -> None:
    outcome = bench.alter("ALTER CONNECTION pg SET (service = 'main')")
    assert bench.shelf.connections["pg"].host is None
    assert bench.shelf.connections["pg"].extra == {"sslmode": "require", "service": "main"}
    assert {change.option for change in outcome.changes} == {"host", "extra.service"}


def test_what_a_statement_does_not_name_stays(bench: Bench) -> None:
    bench.alter(
        "ALTER CONNECTION api SET (host = 'https://two.example.com', extra.more.deep = 1), RESET (extra.page_size)"
    )
    made = bench.shelf.connections["api"]
    assert (made.host, made.password) == ("https://two.example.com", CANARY)
    assert made.extra == {"more": {"deep": 1}}


def test_only_keys_of_ssh_connections_are_rotated(bench: Bench) -> None:
    assert "has no keys" in refused(bench, "ALTER CONNECTION pg ROTATE KEYS")[0]


def test_rotating_keys_leaves_the_other_side_one_that_it_knows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Definition("bastion", "ssh", host="b", login="me", extra={"private_key": "first"}))
    first = bench.alter("ALTER CONNECTION bastion ROTATE KEYS")
    after_first = bench.shelf.connections["bastion"].extra
    assert after_first["private_key"] == "first"
    assert after_first["public_keys"] in first.notice
    second = bench.alter("ALTER CONNECTION bastion ROTATE KEYS")
    after_second = bench.shelf.connections["bastion"].extra
    assert after_second["private_key"] == after_first["next_private_key"]
    assert len(after_second["public_keys"].splitlines()) == 2
    for outcome in (first, second):
        told = f"{outcome.to_json()} {bench.audit()}"
        assert "PRIVATE KEY" not in told
