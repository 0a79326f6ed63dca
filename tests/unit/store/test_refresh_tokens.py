"""The newest refresh token of each grant, for all runs that share the control store."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.leases import RefreshTokens
from tests.unit.messages import raises

GRANT = "https://login.example.com/token configured-canary"


def test_the_newest_refresh_token_is_found_by_the_configured_one(store_url: str) -> None:
    tokens = RefreshTokens(store_url)
    assert tokens.load(GRANT) is None
    assert tokens.keep(GRANT, "first-canary")
    assert tokens.keep(GRANT, "second-canary")
    assert RefreshTokens(store_url).load(GRANT) == "second-canary"
    assert RefreshTokens(store_url).load(GRANT.replace("configured", "another")) is None


def test_the_database_alone_reveals_no_refresh_token(store_url: str) -> None:
    RefreshTokens(store_url).keep(GRANT, "first-canary")
    with open_store(store_url).read() as connection:
        rows = connection.execute(text("SELECT * FROM rfr_refresh_tokens")).all()
    assert len(rows) == 1
    assert "canary" not in str(rows)


def test_one_process_at_a_time_redeems_a_grant(store_url: str) -> None:
    inside: list[int] = []

    def redeem(number: int) -> None:
        tokens = RefreshTokens(store_url)
        with tokens.turn(GRANT, lambda: None):
            newest = int(tokens.load(GRANT) or 0)
            inside.append(number)
            assert inside == [number]
            assert tokens.keep(GRANT, str(newest + 1))
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(redeem, range(8)))
    assert RefreshTokens(store_url).load(GRANT) == "8"


def test_whoever_waits_for_another_process_can_be_stopped(store_url: str) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    with RefreshTokens(store_url).turn(GRANT, lambda: None), pytest.raises(Stopped):
        with RefreshTokens(store_url).turn(GRANT, stop):
            pass


def test_a_row_that_is_not_ours_is_an_error_that_names_the_table(store_url: str) -> None:
    tokens = RefreshTokens(store_url)
    tokens.keep(GRANT, "first-canary")
    with open_store(store_url)._engine.begin() as connection:
        connection.execute(text("UPDATE rfr_refresh_tokens SET sealed = 'nonsense'"))
    with raises(SourceError):
        tokens.load(GRANT)


def test_a_refresh_token_that_cannot_be_kept_is_warned_of(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    tokens = RefreshTokens(store_url)
    assert tokens.load(GRANT) is None
    with open_store(store_url)._engine.begin() as connection:
        connection.execute(text("DROP TABLE rfr_refresh_tokens"))
    with caplog.at_level(logging.WARNING):
        assert not tokens.keep(GRANT, "first-canary")
    assert "could not be kept in the control store" in caplog.text
    assert "canary" not in caplog.text


def test_a_store_without_a_free_connection_is_as_one_that_is_away(
    store_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(store: ControlStore, work: object, **options: object) -> None:
        raise PoolTimeoutError("QueuePool limit of size 5 overflow 10 reached")

    tokens = RefreshTokens(store_url)
    with tokens.turn(GRANT, lambda: None):
        monkeypatch.setattr(ControlStore, "run", run)
        assert not tokens.keep(GRANT, "first-canary")
        with raises(SourceError):
            tokens.load(GRANT)
    assert "could not be kept in the control store (TimeoutError)" in caplog.text
    assert "canary" not in caplog.text
