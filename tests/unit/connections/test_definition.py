"""A connection's content: options by name, and the hash that tells copies apart without telling what they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_rfr.connections import Verb, parse_statement
from airflow_provider_rfr.connections._draft import changes_between
from airflow_provider_rfr.connections.airflow.lookup import definition_of
from airflow_provider_rfr.connections.dependents import closure, paths_to
from airflow_provider_rfr.connections.types import MISSING, ContentHash, Definition, type_named
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store.connections import TaskRef, Use, UsedConnection
from tests.unit.connections.worlds import CANARY
from tests.unit.messages import raises

DOCS = Path(__file__).resolve().parents[3] / "docs" / "connections.md"
PG = Definition("pg", "postgres", "db", 5432, "me", CANARY, "main", "mine", {"a": {"b": 1}, "text": '{"c": 2}'})


def test_options_are_read_and_changed_by_name() -> None:
    assert [PG.get(name) for name in ("host", "extra.a.b", "extra.text.c", "extra.none.x")] == ["db", 1, 2, None]
    assert PG.having("extra.a.b", None).extra == {"text": '{"c": 2}'}
    assert PG.having("extra.text.d", 3).extra["text"] == {"c": 2, "d": 3}
    assert PG.having("extra.new.x.y", True).extra["new"] == {"x": {"y": True}}
    assert dict(PG.having("host", None).options()).keys() >= {"port", "login", "password", "extra.a.b"}
    assert PG.extra == {"a": {"b": 1}, "text": '{"c": 2}'}
    assert CANARY not in repr(PG)
    with raises(ConfigurationError) as caught:
        definition_of(SimpleNamespace(conn_id="pg", extra=f"[{CANARY}"))
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        *({"host": "db2"}, {"port": 5433}, {"login": "you"}, {"password": "x"}, {"schema": None}),
        *({"extra": {"a": {"b": 2}, "text": '{"c": 2}'}}, {"conn_type": "mysql"}),
    ],
)
def test_every_part_of_the_content_changes_the_hash(other: dict[str, object]) -> None:
    hashes = ContentHash(b"key", "salt")
    assert hashes.of(PG) != hashes.of(replace(PG, **other))  # type: ignore[arg-type]


def test_what_airflow_changes_by_itself_and_the_description_do_not_change_the_hash() -> None:
    hashes = ContentHash(b"key", "salt")
    stored = replace(PG, description="other", extra={"text": '{"c": 2}', "a": {"b": "1"}, "empty": ""})
    assert hashes.of(stored) == hashes.of(PG)
    assert hashes.of(None) == MISSING


@pytest.mark.parametrize(
    ("before", "after", "is_change"),
    [
        ({"verify": "True"}, {"verify": True}, True),
        ({"verify": "true"}, {"verify": True}, False),
        ({"sizes": ["1", ""]}, {"sizes": [1, None]}, False),
        ({"a": {"b": ""}}, {}, False),
        ({"a": {"b": "1"}}, {"a": {"b": 1, "c": None}}, False),
        ({"a": {"b": "1"}}, {"a.b": 1}, True),
    ],
)
def test_the_hash_differs_exactly_where_a_change_is_shown(
    before: dict[str, object], after: dict[str, object], is_change: bool
) -> None:
    hashes, stored, candidate = ContentHash(b"key", "salt"), replace(PG, extra=before), replace(PG, extra=after)
    assert (hashes.of(stored) != hashes.of(candidate)) is is_change
    assert bool(changes_between(stored, candidate)) is is_change


def test_without_the_key_nobody_makes_the_same_hash() -> None:
    made = {ContentHash(key, salt).of(PG) for key in (b"", b"key", b"other") for salt in ("a", "b")}
    assert len(made) == 6


def test_what_a_connection_needs_is_found_through_circles() -> None:
    a = Definition("a", "x", extra={"ssh_conn_id": "b"})
    b = Definition("b", "ssh", extra={"proxy_conn_id": "a"})
    find = {"a": a, "b": b}.get
    assert {name: reached.path for name, reached in closure(["a", "gone"], find).items()} == {
        "a": ("a",),
        "gone": ("gone",),
        "b": ("a", "b"),
    }
    user, other = (
        Use(TaskRef(name, "r", "t"), "refresh", "running", 1, (UsedConnection(name, name, "h"),))
        for name in ("a", "gone")
    )
    assert paths_to("b", [user, other], find) == {user.task.consumer: ("a", "b")}


def test_types_are_known_as_airflow_writes_them() -> None:
    assert type_named("rfr-api") is type_named("rfr_api")
    assert type_named("kafka").is_secret("extra.sasl_password")
    assert not type_named("kafka").is_secret("extra.topic")
    assert type_named("rfr_lake").is_secret("extra.properties.token")


def test_the_statements_of_the_documentation_are_read() -> None:
    text = DOCS.read_text(encoding="utf-8")
    examples = [line for line in text.splitlines() if line.startswith("ALTER CONNECTION shop")]
    assert [parse_statement(line).verb for line in examples] == [Verb.ALTER]
