from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_rfr.exceptions import FencedError, RateLimitedError, ReconciliationError, RefreshFailedError
from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.operators._outcome import (
    failure_of_driver,
    figures_by_table,
    result_of,
    result_of_ledger,
    sentence_of,
)
from airflow_provider_rfr.refresh.follow import LedgerFollower
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from tests.headers import header_of
from tests.unit.messages import check_messages

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


class Reader(LedgerFollower):
    """Of a ledger whose header a test gives."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(lambda: LakeSettings("rfr", {}), ("raw.orders",), show=lambda line: None)
        self.header = header_of(generation=3, epoch=4, state=RefreshState.PUBLISHED, **fields)

    def _header(self, table: str) -> LedgerHeader:
        return self.header


def failure_of(error: dict[str, Any], *more: dict[str, Any]) -> Exception | None:
    return failure_of_driver({"error": error, "errors": [error, *more]})


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


def test_the_last_line_says_rows_pages_tables_and_seconds() -> None:
    check_messages(sentence_of(result_of(FIGURES)))


def test_the_last_line_tells_tables_that_were_published_already_from_those_that_were_read() -> None:
    old = {**FIGURES, "stream": "items", "target": "raw.items", "already_published": True}
    check_messages(sentence_of(result_of(old)))
    both = result_of({**FIGURES, "pages": 20, "rows": 2000, "already_published": True, "streams": [old, FIGURES]})
    assert "already_published" not in both
    check_messages(sentence_of(both))


def commits_are(monkeypatch: pytest.MonkeyPatch, **by_run_key: dict[str, str]) -> None:
    """Give the target commits of runs."""
    monkeypatch.setattr("airflow_provider_rfr.lake.catalog.open_catalog", lambda settings: settings)
    monkeypatch.setattr("airflow_provider_rfr.lake.catalog.load_table", lambda catalog, table: table)
    monkeypatch.setattr(
        "airflow_provider_rfr.lake.commits.newest_summary_with", lambda table, key, value: by_run_key.get(value)
    )


def test_where_the_driver_ran_elsewhere_the_ledger_gives_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    commits_are(monkeypatch, **{"d/r/t/-1/0": {"snapshot-id": "99", "rfr.schema-changes": "add note string"}})
    reader = Reader(snapshot_id=99, pages=10, published_rows=1000, pages_refetched=1, attempts=2, run_key="d/r/t/-1/0")
    found = reader.published("raw.orders", "d/r/t/-1/0")
    assert found is not None
    result = result_of_ledger({"orders": "raw.orders"}, {"raw.orders": found})
    names = ("stream", "target", "generation", "snapshot_id", "rows", "attempts", "schema_changes")
    assert [result[name] for name in names] == ["orders", "raw.orders", 3, "99", 1000, 2, "add note string"]


def test_where_the_ledger_has_a_newer_generation_the_targets_commit_gives_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary = {"snapshot-id": "7", "rfr.generation": "3", "rfr.pages": "10", "rfr.rows": "90"}
    summary["rfr.run-key"] = "d/r/t/-1/0"
    commits_are(monkeypatch, **{"d/r/t/-1/0": summary})
    reader = Reader(run_key="d/r2/t/-1/0")
    assert reader.published("raw.orders", "d/r3/t/-1/0") is None
    found = {"raw.orders": reader.published("raw.orders", "d/r/t/-1/0"), "raw.items": {"rows": 1, "pages": 2}}
    result = result_of_ledger({"orders": "raw.orders", "items": "raw.items"}, found)
    assert (result["rows"], result["pages"], result["pages_refetched"]) == (91, 12, 0)
    expected = {"stream": "orders", "target": "raw.orders", "snapshot_id": "7", "generation": 3}
    assert result["streams"]["orders"] == {**expected, "pages": 10, "rows": 90, "schema_changes": None}


@pytest.mark.parametrize(
    "kind", ["ConfigurationError", "AuthenticationError", "TypeMismatchError", "PublishRefusedError", "FencedError"]
)
def test_an_error_that_a_retry_would_meet_again_ends_the_retries(kind: str) -> None:
    error = failure_of({"type": kind, "message": "it is so", "stream": "orders"})
    assert isinstance(error, AirflowFailException)
    assert str(error).startswith("orders: it is so; ")


def test_the_cause_decides_over_failed_partitions() -> None:
    told = {"type": "RefreshFailedError", "message": "orders: 1 of 2 partitions", "stream": "orders"}
    assert isinstance(failure_of({**told, "cause": "AuthenticationError"}), AirflowFailException)
    retryable = failure_of({**told, "cause": "SourceError"})
    assert type(retryable) is RefreshFailedError
    assert str(retryable) == "orders: 1 of 2 partitions"


def test_a_rate_limit_carries_the_wait_that_the_api_asked_for() -> None:
    error = failure_of({"type": "RefreshFailedError", "cause": "RateLimitedError", "message": "m", "retry_after": 90})
    assert isinstance(error, RateLimitedError)
    assert error.retry_after == 90


def test_errors_keep_their_class_for_retry_policies() -> None:
    assert type(failure_of({"type": "ReconciliationError", "message": "m"})) is ReconciliationError
    assert type(failure_of({"type": "SomethingNew", "message": "m"})) is RefreshFailedError
    assert not isinstance(failure_of({"type": "FencedError", "message": "m"}), FencedError)


def test_an_error_is_one_line() -> None:
    error = {"type": "LedgerError", "message": "a\n  b\n\tc"}
    assert str(failure_of(error, error, error)) == "a b c (and 2 more)"


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "ended by SIGKILL (often for its memory)"), (137, "ended by SIGKILL"), (143, "by SIGTERM"), (7, "code 7")],
)
def test_a_driver_without_figures_is_described_by_its_exit_code(code: int, words: str) -> None:
    error = failure_of_driver(None, code)
    assert words in str(error)
    assert "kept for the next attempt" in str(error)


def test_a_submit_that_failed_is_described_by_its_innermost_cause() -> None:
    lines = ["noise", "Exception in thread main java.lang.X: outer", "at a.b", "Caused by: java.net.Y: refused", "at c"]
    assert "Caused by: java.net.Y: refused" in str(failure_of_driver(None, 1, lines))
    assert "outer" in str(failure_of_driver(None, 1, lines[:3]))


def test_one_error_that_no_retry_helps_does_not_end_the_retries_of_the_others() -> None:
    refused = {"type": "PublishRefusedError", "message": "no rows", "stream": "a"}
    broken = {"type": "RefreshFailedError", "cause": "SourceError", "message": "503", "stream": "b"}
    assert str(failure_of(refused, broken)) == "b: 503 (and 1 more)"
    assert isinstance(failure_of(refused, refused), AirflowFailException)


def test_a_sync_says_what_became_of_the_records() -> None:
    changes = {"inserted": 50, "updated": 600, "unchanged": 0, "unknown_deletions": 2}
    synced = result_of({**FIGURES, "rows": 2000, "changes": changes})
    assert synced["changes"] == changes
    assert sentence_of(synced) == "raw.orders: 50 inserted, 600 updated, 2 unknown deletions; it has 2000 rows"
    assert "raw.orders: no changes; it has" in sentence_of(result_of({**FIGURES, "changes": dict.fromkeys(changes, 0)}))
    assert "changes" not in result_of({**FIGURES, "changes": None})
