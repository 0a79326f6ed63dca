"""ROTATE KEYS: the other side always knows one of the two keys, whoever else rotates, and whoever dies."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from airflow_provider_rfr.connections import parse_statement
from airflow_provider_rfr.connections.alteration import Outcome, execute
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import ConnectionConflictError
from airflow_provider_rfr.store.engine import open_store
from tests.unit.connections.worlds import Bench
from tests.unit.messages import check_messages, raises

ROTATE = "ALTER CONNECTION bastion ROTATE KEYS"
A_WHILE = 61


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, Definition("bastion", "ssh", host="b", login="me", extra={"private_key": "first"}))


def keys(bench: Bench) -> dict[str, str]:
    return dict(bench.shelf.connections["bastion"].extra)


def public_of(private: str) -> str:
    key = load_ssh_private_key(private.encode(), None).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_rotating_keys_leaves_the_other_side_one_that_it_knows(bench: Bench) -> None:
    first = bench.alter(ROTATE)
    after_first = keys(bench)
    assert after_first["private_key"] == "first"
    assert after_first["public_keys"] in first.notice
    # At once, before restarts are waited for.
    assert any(after_first["public_keys"] in line for line in bench.said)
    bench.later(A_WHILE)
    second = bench.alter(ROTATE)
    after_second = keys(bench)
    assert after_second["private_key"] == after_first["next_private_key"]
    assert len(after_second["public_keys"].splitlines()) == 2
    for outcome in (first, second):
        told = f"{outcome.to_json()} {bench.audit()} {bench.said}"
        assert "PRIVATE KEY" not in told


def test_a_second_rotation_waits_until_the_other_side_can_know_the_key_that_it_takes_into_use(bench: Bench) -> None:
    bench.alter(ROTATE)
    before = keys(bench)
    with raises(ConnectionConflictError) as caught:
        bench.alter("ALTER CONNECTION IF EXISTS bastion ROTATE KEYS")
    assert caught.value.retryable
    assert keys(bench) == before
    assert [row.state for row in bench.audit()] == ["conflict", "applied"]
    bench.alter("ALTER CONNECTION bastion SET (port = 2222)")
    bench.later(A_WHILE)
    bench.alter(ROTATE)
    assert keys(bench)["private_key"] == before["next_private_key"]


@pytest.mark.parametrize("attempt", range(3))
def test_of_two_rotations_at_once_one_gets_a_conflict(bench: Bench, tmp_path: Path, attempt: int) -> None:
    together = threading.Barrier(2)
    made: list[Outcome] = []
    refused: list[ConnectionConflictError] = []

    def rotate() -> None:
        store = open_store(f"sqlite:///{tmp_path}/control.db")
        together.wait()
        try:
            made.append(execute(replace(bench.world, store=store), parse_statement(ROTATE), actor="somebody"))
        except ConnectionConflictError as error:
            refused.append(error)
        store.close()

    threads = [threading.Thread(target=rotate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 1)
    assert refused[0].retryable
    stored = keys(bench)
    assert stored["private_key"] == "first"
    assert stored["public_keys"] in made[0].notice
    assert stored["public_keys"].startswith(public_of(stored["next_private_key"]))


def test_a_rotation_that_died_before_its_keys_were_stored_is_made_by_the_next_one(bench: Bench) -> None:
    with bench.killed("before", "commit"):
        bench.alter(ROTATE)
    assert keys(bench) == {"private_key": "first"}
    outcome = bench.alter(ROTATE)
    assert outcome.result == "applied"
    assert keys(bench)["public_keys"] in outcome.notice


def test_a_rotation_that_died_after_its_keys_were_stored_is_finished_and_not_repeated(bench: Bench) -> None:
    bench.run("load", "bastion")
    bench.obey("load")
    with bench.killed("after", "commit"):
        bench.alter(ROTATE)
    stored = keys(bench)
    outcome = bench.alter(ROTATE)
    assert keys(bench) == stored
    assert (outcome.result, outcome.to_json()["restarted"]) == ("unchanged", 1)
    check_messages(outcome.notice, stored["public_keys"])
    with pytest.raises(ConnectionConflictError):
        bench.alter(ROTATE)
    bench.later(A_WHILE)
    bench.alter(ROTATE)
    assert keys(bench)["private_key"] == stored["next_private_key"]


def test_a_dry_run_shows_no_key_that_nobody_will_have(bench: Bench) -> None:
    outcome = bench.alter(ROTATE, dry_run=True)
    assert outcome.result == "planned"
    assert "ssh-" not in outcome.notice


def test_rotating_the_key_of_a_file_keeps_it_until_the_other_side_knows_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Definition("bastion", "ssh", host="b", extra={"key_file": "/k"}))
    bench.shelf.secrets = {"env:PW": "pw"}
    bench.alter("ALTER CONNECTION bastion SET (password = SECRET 'env:PW')")
    bench.alter(ROTATE)
    first = keys(bench)
    assert (first["key_file"], "private_key" in first) == ("/k", False)
    bench.later(A_WHILE)
    bench.alter(ROTATE)
    second = keys(bench)
    assert (second["private_key"], "key_file" in second) == (first["next_private_key"], False)
    assert bench.references("bastion") == {"password": "env:PW"}
