"""Which generation an attempt works on."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.resume import Fingerprints, Opening, decide, fingerprints_of
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState, read_header
from airflow_provider_rfr.streams.loader import load_stream

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)
PRINTS = Fingerprints("read", "publish", "rules")
DEFINITION = {"version": 1, "base_url": "http://127.0.0.1:1", "streams": {"orders": {"request": {"path": "/orders"}}}}
STREAM = load_stream({"definition": DEFINITION}, "orders")


def header(**changes: Any) -> LedgerHeader:
    values: dict[str, Any] = {
        "generation": 4,
        "epoch": 2,
        "state": RefreshState.OPEN,
        "read_fingerprint": "read",
        "publish_fingerprint": "publish",
        "opened_at": NOW - timedelta(hours=3),
        "committed_at": NOW - timedelta(hours=1),
        "began_at": NOW - timedelta(hours=2),
        "progressed_at": NOW - timedelta(hours=1),
        "partitions": 10,
        "partitions_done": 6,
        "run_key": "run-1",
    }
    return LedgerHeader(**{**values, **changes})


def opening(
    found: LedgerHeader | None,
    prints: Fingerprints = PRINTS,
    *,
    run_key: str | None = "run-1",
    on_target: bool = False,
    **options: Any,
) -> Opening:
    return decide(found, prints, RefreshOptions(**options), run_key, on_target=on_target, now=NOW).opening


def test_the_first_refresh_opens_a_generation() -> None:
    assert opening(None) is Opening.NEW


def test_an_open_generation_is_resumed_by_a_retry_and_by_the_next_run() -> None:
    assert opening(header()) is Opening.RESUME
    assert opening(header(), run_key="run-2") is Opening.RESUME
    assert opening(header(), run_key=None) is Opening.RESUME


def test_a_retry_after_the_publish_returns_it_and_the_next_run_reads_anew() -> None:
    published = header(state=RefreshState.PUBLISHED, snapshot_id=7)
    assert opening(published) is Opening.PUBLISHED
    assert opening(published, run_key="run-2") is Opening.NEW
    assert opening(published, run_key=None) is Opening.NEW


def test_a_generation_that_is_on_the_target_but_not_marked_is_not_published_again() -> None:
    assert opening(header(), on_target=True) is Opening.PUBLISHED
    assert opening(header(), on_target=True, run_key=None) is Opening.PUBLISHED
    assert opening(header(), on_target=True, run_key="run-2") is Opening.NEW


@pytest.mark.parametrize("prints", [Fingerprints("other", "publish", "rules"), Fingerprints("read", "other", "others")])
def test_a_retry_with_another_source_or_schema_reads_anew_what_its_run_published(prints: Fingerprints) -> None:
    assert opening(header(state=RefreshState.PUBLISHED, snapshot_id=7), prints) is Opening.NEW
    assert opening(header(), prints, on_target=True) is Opening.NEW
    assert opening(header(run_key=None), prints, run_key=None, on_target=True) is Opening.NEW


def test_force_restart_reads_anew_what_a_killed_run_without_a_key_published() -> None:
    assert opening(header(run_key=None), run_key=None, on_target=True, force_restart=True) is Opening.NEW
    assert opening(header(), on_target=True, force_restart=True) is Opening.PUBLISHED, "this run restarted already"


def test_another_source_or_page_size_opens_a_new_generation() -> None:
    assert opening(header(), Fingerprints("other", "publish", "rules")) is Opening.NEW


def test_another_schema_opens_a_new_generation_unless_everything_was_read() -> None:
    changed = Fingerprints("read", "other", "others")
    assert opening(header(), changed) is Opening.NEW
    assert opening(header(partitions_done=10), changed) is Opening.RESUME


def test_a_generation_that_stood_still_too_long_is_abandoned() -> None:
    assert opening(header(), resume_within=3599) is Opening.NEW
    assert opening(header(), resume_within=3601) is Opening.RESUME


def test_force_restart_restarts_once_a_run_and_not_at_each_retry() -> None:
    assert opening(header(), run_key="run-2", force_restart=True) is Opening.NEW
    assert opening(header(run_key="run-2"), run_key="run-2", force_restart=True) is Opening.RESUME


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"run_key": None, "snapshot_id": 5, "published_rows": 0, "previous_rows": 12},
        {"refused_under": "rules", "ended_at": NOW, "error": "ValueError: no\nmore"},
    ],
)
def test_a_header_survives_its_summary(changes: dict[str, Any]) -> None:
    assert read_header(header(**changes).to_summary()) == header(**changes)


def test_a_take_over_is_no_progress() -> None:
    stuck = header(pages=5, progressed_at=NOW - timedelta(hours=2), committed_at=NOW)
    assert stuck.advanced(epoch=3).progressed_at == stuck.progressed_at
    assert stuck.advanced(pages=6).progressed_at != stuck.progressed_at
    assert opening(stuck, resume_within=7000) is Opening.NEW
    assert opening(stuck, resume_within=7300) is Opening.RESUME


def test_what_a_publish_refused_is_read_again_unless_something_changed_that_decides_about_it() -> None:
    key = "shop/monday/refresh/-1/0"
    refused = header(partitions_done=10, refused_under="rules", run_key=key)
    assert opening(refused, run_key=key) is Opening.RESUME, "a retry asks for nothing and ends as the try before"
    for other in ("shop/monday/refresh/-1/1", "shop/tuesday/refresh/-1/0", None):
        assert opening(refused, run_key=other) is Opening.NEW
        relaxed = Fingerprints("read", "publish", "relaxed")
        assert opening(refused, relaxed, run_key=other) is Opening.RESUME
        corrected = Fingerprints("read", "corrected", "corrected")
        assert opening(refused, corrected, run_key=other) is Opening.RESUME
    assert opening(header(partitions_done=10, refused_under="rules", run_key=None), run_key=None) is Opening.NEW


def test_what_decides_about_a_publish_is_told_from_what_decides_about_the_reading() -> None:
    def rules(table: str | None = None, **options: Any) -> str:
        return fingerprints_of(STREAM, None, RefreshOptions(**options), table).rules

    for options in ({"max_shrink": 0.9}, {"allow_empty": True}, {"on_type_error": "null"}, {"mode": "append"}):
        assert rules(**options) != rules()
    assert rules("a table") != rules()
    assert rules(concurrency=3, round_seconds=5, force_restart=True, on_busy="fail", max_offenders=3) == rules()


def test_a_commit_says_that_the_attempt_lives_and_only_the_last_that_it_ended() -> None:
    ended = header().advanced(ended_at=NOW, outcome="failed", error="it broke")
    assert (ended.ended_at, ended.outcome, ended.error) == (NOW, "failed", "it broke")
    again = ended.advanced(epoch=3)
    assert (again.ended_at, again.outcome) == (None, None)
    assert again.error == "it broke", "people want to know why the attempt before it ended"
