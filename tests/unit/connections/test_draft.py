"""What is wrong with a change: everything at once, with its place, and with no secret in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import AlterationRefusedError, ConfigurationError, ConnectionConflictError
from tests.unit.connections.worlds import CANARY, Bench
from tests.unit.messages import check_messages, raises

PG = Definition("pg", "postgres", host="db1", login="app", password=CANARY, extra={"sslmode": "require"})
API = Definition("api", "rfr_api", host="https://api.example.com", password=CANARY, extra={"page_size": 20})
HTTP = Definition("http", "http", host="h")
LAKE = Definition("lake", "rfr_lake", host="sqlite:////c.db", extra={"warehouse": "file:///w"})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, PG, API, LAKE, HTTP)


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
        (f"pg SET (password = '{CANARY}2')", "password: is secret and must not be plain text"),
        (f"api SET (extra.secrets.pin = '{CANARY}')", "extra.secrets.pin: is secret"),
        (f"api SET (client_secret = '{CANARY}')", "extra.client_secret: is secret"),
        (f"lake SET (properties = '{CANARY}')", "extra.properties: is secret"),
        ("api SET (password = :missing)", "the parameter :missing is not given"),
        ("api SET (host = 'ftp://x')", "host: must be a web address"),
        ("api SET (host = 'nonsense')", "host: must be a web address"),
        ("lake SET (s3_endpoint = 'nonsense/path')", "extra.s3_endpoint: must be a web address"),
        (f"api SET (host = 'https://me:{CANARY}@x')", "host: holds credentials"),
        *[
            (f"lake SET (host = 'postgresql+psycopg2://me:pa{mark}{CANARY}@db/lake')", "host: holds credentials")
            for mark in "/#?"
        ],
        ("api RESET (host)", "host: must be set"),
        ("lake RESET (host)", "host: must be set for this catalog_type"),
        ("pg SET (ssh_conn_id = 'pg')", "extra.ssh_conn_id: refers to the connection itself"),
        ("pg SET (ssh_conn_id = 'none')", "there is no connection 'none'"),
        ("pg SET (password = SECRET 'env:NONE')", "password: SECRET 'env:NONE' is not there"),
        ("api DROP (extra.secrets), SET (extra.secrets.pin = SECRET 'env:PIN')", "is part of extra.secrets"),
        ("pg SET (extra.sslmode.x = 'y')", "extra.sslmode.x: connections of type 'postgres' have no such option"),
        ("lake RESET (extra.warehouse.x)", "extra.warehouse.x: connections of type 'rfr_lake' have no such option"),
        ("api RESET (extra.page_size.x)", "extra.page_size is not an object"),
        ("api SET (extra.page_size.x.y = 1)", "extra.page_size is not an object"),
        ("api SET (" + ".".join(["extra", *"a" * 2000]) + " = 1)", "have no such option"),
        ("http SET (timeout = '--5')", "extra.timeout: must be an integer"),
        ("http SET (host = 'me:pw@h')", "host: holds credentials"),
        (f"http SET (extra.keyfile_dict = '{CANARY}')", "extra.keyfile_dict: is secret"),
        (f"api SET (extra.pat = '{CANARY}')", "extra.pat: is secret"),
        (f"api SET (extra.key = '{CANARY}')", "extra.key: is secret"),
        (f"http SET (extra.deep.KEY = '{CANARY}')", "extra.deep.KEY: is secret"),
        ("http SET (host = 'javascript:alert(1)')", "host: must be a host or a web address"),
        ("http SET (host = 'ftp://h')", "host: must be a host or a web address"),
        ("http SET (host = 'h:9000', port = 8443)", "port: is not 9000, which the host names"),
        ("api SET (host = 'https://h:9000/v1', port = 8443)", "port: is not 9000, which the host names"),
        ("lake SET (port = 5433)", "port: connections of type 'rfr_lake' have no such option"),
        ("lake SET (schema = 'public')", "schema: connections of type 'rfr_lake' have no such option"),
        ("pg SET (ssh_conn_id = 'http')", "extra.ssh_conn_id: connection 'http' is of type 'http'"),
        ("pg RENAME TO pg", "has this name already"),
        ('pg RENAME TO "a b"', "invalid name 'a b'"),
        ("pg ROTATE KEYS", "is of type 'postgres', which has no keys"),
        ("api SET (host = 'https://two.example.com', port = 'abc')", "port: must be a port"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_changes(bench: Bench, text: str, said: str) -> None:
    problems = bench.refused(f"ALTER CONNECTION {text}")
    assert len(problems) == 1, problems
    assert said in problems[0]


def test_all_problems_come_at_once_each_with_its_place(bench: Bench) -> None:
    text = f"ALTER CONNECTION pg\n SET (port = 'abc', speed = 1),\n SET (password = '{CANARY}'), RESET (login)"
    assert [problem.split(":")[0] for problem in bench.refused(text)] == [
        "line 2, column 7",
        "line 2, column 21",
        "line 3, column 7",
        f"line 3, column {text.splitlines()[2].index('login') + 1}",
    ]


def test_an_option_that_progress_is_kept_by_is_fixed_while_something_uses_the_connection(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION lake SET (warehouse = 's3://first')")
    assert bench.shelf.connections["lake"].extra["warehouse"] == "s3://first"
    bench.run("load", "api", "lake")
    for change in ("SET (warehouse = 's3://other')", "SET (warehouse = 's3://first')", "RESET (extra.warehouse)"):
        check_messages(bench.refused(f"ALTER CONNECTION lake {change}"))


def test_a_circle_of_connections_is_refused(tmp_path: Path) -> None:
    a = Definition("a", "postgres", host="a", extra={"ssh_conn_id": "b"})
    b = Definition("b", "ssh", host="b")
    bench = Bench(tmp_path, a, b)
    check_messages(bench.refused("ALTER CONNECTION b SET (extra.jump_conn_id = 'a')"))


def test_two_at_once_cant_make_a_circle_together(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Definition("a", "ssh", host="a"), Definition("b", "ssh", host="b"))
    halves = {name: f"ALTER CONNECTION {name} SET (extra.next_conn_id = '{other}')" for name, other in ("ab", "ba")}
    tried = bench.conflicting(halves["b"], "a gets another reference just now")
    bench.alter(halves["a"])
    assert tried == ["b"]
    check_messages(bench.refused(halves["b"]))


def test_a_circle_of_which_one_half_was_stored_meanwhile_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Definition("a", "ssh", host="a"), Definition("b", "ssh", host="b"))

    def meanwhile(definition: Definition) -> None:
        b = bench.shelf.connections["b"]
        bench.shelf.connections["b"] = b.having("extra.next_conn_id", "a")

    bench.shelf.identify = meanwhile  # type: ignore[method-assign]
    with raises(AlterationRefusedError):
        bench.alter("ALTER CONNECTION a SET (extra.next_conn_id = 'b')")
    assert bench.shelf.connections["a"].extra == {}


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


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "\ud800", [{"a": object()}]])
def test_what_a_connection_cant_hold_is_refused(bench: Bench, value: object) -> None:
    with raises(AlterationRefusedError):
        bench.alter("ALTER CONNECTION api SET (extra.a = :a)", {"a": value})  # type: ignore[dict-item]
    with raises(AlterationRefusedError):
        bench.alter("ALTER CONNECTION api SET (login = :a)", {"a": "a\0b"})


@pytest.mark.parametrize("host", ["api.example.com", "api:8080", "localhost", "http://api", "[::1]/v1"])
def test_an_address_may_be_written_without_its_scheme_where_it_is_one(bench: Bench, host: str) -> None:
    bench.alter(f"ALTER CONNECTION api SET (host = '{host}')")
    assert bench.shelf.connections["api"].host == host


def test_a_field_may_have_a_dot_in_its_name(bench: Bench) -> None:
    outcome = bench.alter("ALTER CONNECTION api SET (extra.more.\"s3.region\" = 'eu')")
    assert bench.shelf.connections["api"].extra["more"] == {"s3.region": "eu"}
    assert [change.option for change in outcome.changes] == ['extra.more."s3.region"']
    bench.alter('ALTER CONNECTION api RESET (extra.more."s3.region")')
    assert "more" not in bench.shelf.connections["api"].extra


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:a/b@c@h/x", "https://me:***@h/x"),
        ("https://token@h", "https://***@h"),
        ("me:pw@h", "me:***@h"),
        ("https://h/?api_key=abc&page=2", "https://h/?api_key=***&page=2"),
        ("https://h:80/x me@example.com", "https://h:80/x me@example.com"),
    ],
)
def test_what_of_an_address_is_secret_is_not_shown(bench: Bench, address: str, shown: str) -> None:
    (change,) = bench.alter("ALTER CONNECTION api SET (extra.note = :note)", {"note": address}).changes
    assert change.after == shown


def test_a_secret_is_not_shown_whatever_option_it_is_put_into(bench: Bench) -> None:
    bench.shelf.secrets = {"env:S": CANARY, "env:T": f"{CANARY}2"}
    for key in "ST":
        for option in ("description", "login", "extra.sslcert"):
            assert CANARY not in str(bench.alter(f"ALTER CONNECTION api SET ({option} = SECRET 'env:{key}')").to_json())
    bench.alter("ALTER CONNECTION api SET (host = 'https://two.example.com', port = 1), RESET (login)")
    assert CANARY.encode() not in bench.stored_bytes()


def test_what_a_secret_holds_is_checked_with_all_the_rest(bench: Bench) -> None:
    bench.shelf.secrets = {"env:H": f"https://me:{CANARY}@h"}
    assert "host: holds credentials" in bench.refused("ALTER CONNECTION api SET (host = SECRET 'env:H')")[0]


def test_a_dry_run_of_a_rename_renames_nothing(bench: Bench) -> None:
    assert bench.alter("ALTER CONNECTION pg RENAME TO other", dry_run=True).result == "planned"
    assert "pg" in bench.shelf.connections
    with raises(ConnectionConflictError):
        bench.alter("ALTER CONNECTION pg RENAME TO api")


def test_a_connection_that_cant_be_read_keeps_nobody_from_altering_another(bench: Bench) -> None:
    def find(name: str) -> Definition | None:
        if name == "broken":
            raise ConfigurationError("connection broken: extra", "is not a JSON object")
        return bench.shelf.connections.get(name)

    bench.run("load", "broken")
    bench.shelf.find = find  # type: ignore[method-assign]
    bench.alter("ALTER CONNECTION pg SET (port = 5433)")
    check_messages(bench.refused("ALTER CONNECTION pg SET (ssh_conn_id = 'broken')"))
    with raises(ConfigurationError):
        bench.alter("VALIDATE CONNECTION broken")


@pytest.mark.parametrize("extra", [{"service": "shop"}, {}])
def test_what_was_stored_without_a_login_can_be_altered(bench: Bench, extra: dict[str, str]) -> None:
    host = None if extra else "db1"
    bench.shelf.connections["pg"] = Definition("pg", "postgres", host=host, password=CANARY, extra=extra)
    bench.alter("ALTER CONNECTION pg SET (sslmode = 'verify-full')")
    assert bench.shelf.connections["pg"].extra == {**extra, "sslmode": "verify-full"}
    bench.alter("ALTER CONNECTION pg SET (service = 'main'), RESET (login)")
    assert bench.shelf.connections["pg"].login is None, "a service may name the user"


def test_a_rule_that_was_broken_before_counts_for_what_is_changed(bench: Bench) -> None:
    bench.shelf.connections["api"] = replace(API, host=f"https://me:{CANARY}@one")
    bench.alter("ALTER CONNECTION api SET (test_path = '/ok')")
    (problem,) = bench.refused(f"ALTER CONNECTION api SET (host = 'https://me:{CANARY}@two')")
    assert "host: holds credentials" in problem
