from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr.exceptions import FencedError, RateLimitedError, ReconciliationError, RefreshFailedError
from airflow_provider_rfr.operators.outcome import (
    _decisive,
    _failure_of,
    _silent_failure,
    figures_by_table,
    figures_of_commit,
    figures_of_ledger,
    result_of,
    result_of_ledger,
)
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState

FIGURES = {
    "stream": "orders",
    "target": "raw.orders",
    "generation": 3,
    "snapshot_id": 99,
    "pages": 10,
    "rows": 1000,
    "pages_refetched": 1,
    "attempts": 2,
    "seconds": {"total": 1.5},
    "epoch": 4,
}


def header(**fields: Any) -> LedgerHeader:
    now = datetime.now(timezone.utc)
    whole = {"generation": 3, "epoch": 4, "state": RefreshState.PUBLISHED, "read_fingerprint": "a"}
    whole |= {"publish_fingerprint": "b", "opened_at": now, "committed_at": now, **fields}
    return LedgerHeader(**whole)


def test_one_streams_figures_are_the_tasks_result() -> None:
    result = result_of(FIGURES)
    assert result == {key: value for key, value in FIGURES.items() if key != "epoch"} | {"snapshot_id": "99"}
    assert figures_by_table(result)["raw.orders"] == {
        key: value for key, value in result.items() if key not in ("target", "seconds")
    }


def test_several_streams_are_totalled_and_kept_apart() -> None:
    other = {**FIGURES, "stream": "items", "target": "raw.items", "generation": 7}
    result = result_of({**FIGURES, "pages": 20, "rows": 2000, "streams": [FIGURES, other]})
    assert (result["pages"], result["rows"]) == (20, 2000)
    assert "generation" not in result
    assert result["streams"]["items"]["generation"] == 7
    assert set(figures_by_table(result)) == {"raw.orders", "raw.items"}


def test_where_the_driver_ran_elsewhere_the_ledger_gives_the_result() -> None:
    status = header(snapshot_id=99, pages=10, published_rows=1000, pages_refetched=1, attempts=2)
    result = result_of_ledger({"orders": "raw.orders"}, {"raw.orders": figures_of_ledger("raw.orders", status)})
    assert (result["stream"], result["target"]) == ("orders", "raw.orders")
    assert {key: result[key] for key in ("generation", "snapshot_id", "rows", "attempts")} == {
        "generation": 3,
        "snapshot_id": "99",
        "rows": 1000,
        "attempts": 2,
    }


def test_where_the_ledger_has_gone_on_the_targets_commit_gives_the_result() -> None:
    summary = {
        "snapshot-id": "7",
        "rfr.generation": "3",
        "rfr.pages": "10",
        "rfr.rows": "90",
        "rfr.run-key": "d/r/t/-1/0",
    }
    found = {"raw.orders": figures_of_commit("raw.orders", summary), "raw.items": {"rows": 1, "pages": 2}}
    result = result_of_ledger({"orders": "raw.orders", "items": "raw.items"}, found)
    assert (result["rows"], result["pages"], result["pages_refetched"]) == (91, 12, 0)
    expected = {
        "stream": "orders",
        "target": "raw.orders",
        "snapshot_id": "7",
        "generation": 3,
        "pages": 10,
        "rows": 90,
    }
    assert result["streams"]["orders"] == expected


@pytest.mark.parametrize(
    "kind", ["ConfigurationError", "AuthenticationError", "TypeMismatchError", "PublishRefusedError", "FencedError"]
)
def test_an_error_that_a_retry_would_meet_again_ends_the_retries(kind: str) -> None:
    error = _failure_of({"type": kind, "message": "it is so", "stream": "orders"})
    assert isinstance(error, AirflowFailException)
    assert str(error).startswith("orders: it is so; ")


def test_the_cause_decides_over_failed_partitions() -> None:
    told = {"type": "RefreshFailedError", "message": "orders: 1 of 2 partitions", "stream": "orders"}
    assert isinstance(_failure_of({**told, "cause": "AuthenticationError"}), AirflowFailException)
    retryable = _failure_of({**told, "cause": "SourceError"})
    assert type(retryable) is RefreshFailedError
    assert str(retryable) == "orders: 1 of 2 partitions"


def test_a_rate_limit_carries_the_wait_that_the_api_asked_for() -> None:
    error = _failure_of({"type": "RefreshFailedError", "cause": "RateLimitedError", "message": "m", "retry_after": 90})
    assert isinstance(error, RateLimitedError)
    assert error.retry_after == 90


def test_errors_keep_their_class_for_retry_policies() -> None:
    assert type(_failure_of({"type": "ReconciliationError", "message": "m"})) is ReconciliationError
    assert type(_failure_of({"type": "SomethingNew", "message": "m"})) is RefreshFailedError
    assert not isinstance(_failure_of({"type": "FencedError", "message": "m"}), FencedError)


def test_an_error_is_one_line() -> None:
    assert str(_failure_of({"type": "LedgerError", "message": "a\n  b\n\tc"}, more=2)) == "a b c (and 2 more)"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "ended by SIGKILL (often for its memory)"),
        (137, "ended by SIGKILL"),
        (143, "ended by SIGTERM"),
        (7, "code 7"),
    ],
)
def test_a_driver_without_a_last_word_is_told_by_its_exit_code(code: int, words: str) -> None:
    error = _silent_failure(code, [])
    assert words in str(error)
    assert "kept for the next attempt" in str(error)


def test_a_submit_that_failed_is_told_by_its_innermost_cause() -> None:
    lines = ["noise", "Exception in thread main java.lang.X: outer", "at a.b", "Caused by: java.net.Y: refused", "at c"]
    assert "Caused by: java.net.Y: refused" in str(_silent_failure(1, lines))
    assert "outer" in str(_silent_failure(1, lines[:3]))


def test_one_error_that_no_retry_helps_does_not_end_the_retries_of_the_others() -> None:
    refused = {"type": "PublishRefusedError", "message": "no rows", "stream": "a"}
    broken = {"type": "RefreshFailedError", "cause": "SourceError", "message": "503", "stream": "b"}
    assert _decisive([refused, broken]) is broken
    assert _decisive([refused, refused]) is refused
