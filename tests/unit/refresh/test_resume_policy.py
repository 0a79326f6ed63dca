"""Which generation an attempt works on, for whom it waits, and an API that moved meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import orjson
import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, RefreshBusyError
from airflow_provider_rfr.refresh.chains import ChainState, Cursor, OverlapCheck
from airflow_provider_rfr.refresh.config import RefreshOptions, _Address
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.refresh.resume import Fingerprints, Opening, OtherRun, Relocations, decide, fingerprints_of
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState, read_header
from airflow_provider_rfr.streams.loader import load_stream
from tests.headers import header_of
from tests.unit.messages import raises

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)
PRINTS = Fingerprints("read", "publish", "rules")
DEFINITION = {"version": 1, "base_url": "http://127.0.0.1:1", "streams": {"orders": {"request": {"path": "/orders"}}}}
STREAM = load_stream({"definition": DEFINITION}, "orders")


def header(**changes: Any) -> LedgerHeader:
    counts = {"generation": 4, "epoch": 2, "partitions": 10, "partitions_done": 6, "run_key": "run-1"}
    ages = {"opened_at": 3, "began_at": 2, "committed_at": 1, "progressed_at": 1}
    times = {name: NOW - timedelta(hours=hours) for name, hours in ages.items()}
    return header_of(**{**counts, **times, **changes})


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


PUBLISHED = header(state=RefreshState.PUBLISHED, snapshot_id=7)
KEYLESS = header(run_key=None)
SOURCE, SCHEMA = Fingerprints("other", "publish", "rules"), Fingerprints("read", "other", "others")


@pytest.mark.parametrize(
    ("found", "attempt", "expected"),
    [
        pytest.param(header(), {}, "resume", id="a retry resumes an open generation"),
        pytest.param(header(), {"run_key": "run-2"}, "resume", id="so does the next run"),
        pytest.param(header(), {"run_key": None}, "resume", id="so does a run outside of Airflow"),
        pytest.param(PUBLISHED, {}, "published", id="a retry after the publish returns it"),
        pytest.param(PUBLISHED, {"run_key": "run-2"}, "new", id="the next run reads again"),
        pytest.param(PUBLISHED, {"run_key": None}, "new", id="so does one outside of Airflow"),
        pytest.param(header(), {"on_target": True}, "published", id="on the target and not marked"),
        pytest.param(header(), {"on_target": True, "run_key": None}, "published", id="... by a killed run"),
        pytest.param(header(), {"on_target": True, "run_key": "run-2"}, "new", id="... for the next run"),
        *(
            pytest.param(found, {"prints": prints, **more}, "new", id=f"published ({name}), and another {what} since")
            for what, prints in (("source", SOURCE), ("schema", SCHEMA))
            for name, found, more in (
                ("marked", PUBLISHED, {}),
                ("on the target", header(), {"on_target": True}),
                ("without a key", KEYLESS, {"run_key": None, "on_target": True}),
            )
        ),
        pytest.param(
            *(KEYLESS, {"run_key": None, "on_target": True, "force_restart": True}, "new"),
            id="force_restart after a killed run without a key",
        ),
        pytest.param(header(), {"on_target": True, "force_restart": True}, "published", id="this run has restarted"),
        pytest.param(header(), {"run_key": "run-2", "force_restart": True}, "new", id="force_restart of the next run"),
        pytest.param(
            header(restarted_by="run-1"), {"force_restart": True}, "resume", id="force_restart in its retries"
        ),
        pytest.param(
            header(), {"force_restart": True}, "new", id="force_restart that the run's first try did not have"
        ),
        pytest.param(header(), {"prints": SOURCE}, "new", id="another source or page size"),
        pytest.param(header(), {"prints": SCHEMA}, "new", id="another schema"),
        pytest.param(header(partitions_done=10), {"prints": SCHEMA}, "resume", id="another schema, and all is read"),
        pytest.param(header(), {"resume_within": 3599}, "new", id="no progress for too long"),
        pytest.param(header(), {"resume_within": 3601}, "resume", id="progress in time"),
    ],
)
def test_an_attempt_resumes_the_newest_generation_or_opens_one_or_has_nothing_to_do(
    found: LedgerHeader, attempt: dict[str, Any], expected: str
) -> None:
    assert opening(found, **attempt) is Opening(expected)


REFUSED = header(partitions_done=10, refused_under="rules", ended_at=NOW)


@pytest.mark.parametrize(
    ("found", "attempt", "expected"),
    [
        pytest.param(REFUSED, {"prints": Fingerprints("read", "publish", "others")}, "resume", id="the refused one"),
        pytest.param(PUBLISHED, {}, "published", id="a retry after its publish"),
        pytest.param(PUBLISHED, {"run_key": "run-2"}, None, id="another run has published it"),
        pytest.param(header(generation=5), {}, None, id="another run has read again"),
        pytest.param(REFUSED, {"run_key": "run-2", "prints": SOURCE}, None, id="another source"),
        pytest.param(REFUSED, {"run_key": "run-2"}, None, id="the guard is still on"),
        pytest.param(REFUSED, {"resume_within": 3599}, None, id="too old"),
        pytest.param(None, {}, None, id="no generation"),
    ],
)
def test_an_attempt_for_one_generation_works_on_no_other(
    found: LedgerHeader | None, attempt: dict[str, Any], expected: str | None
) -> None:
    """A run that accepts refused rows has its guard off, so it must not read others."""
    if expected is not None:
        assert opening(found, only_generation=4, **attempt) is Opening(expected)
        return
    with raises(ConfigurationError) as error:
        opening(found, only_generation=4, **attempt)
    assert error.value.field == "options.only_generation"


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


START, LATER = "2026-11-20T06:00:00Z", "2026-11-20T09:30:00.5Z"
FIRST, SECOND = f"shop/scheduled-1/refresh/-1/{START}-0", f"shop/scheduled-2/refresh/-1/{START}-0"


@pytest.mark.parametrize(
    ("fields", "run_key", "expected"),
    [
        pytest.param({}, f"shop/scheduled-1/refresh/-1/{START}-1", "resume", id="a clear of the task"),
        pytest.param({}, f"shop/scheduled-1/refresh/-1/{LATER}-10", "resume", id="a clear of the run, which had ended"),
        pytest.param({"run_key": SECOND}, FIRST, "resume", id="the next run has taken it over meanwhile"),
        pytest.param({"restarted_by": None}, f"shop/scheduled-1/refresh/-1/{START}-1", "new", id="set before a clear"),
        pytest.param({}, f"shop/scheduled-1/refresh/-1/{LATER}-0", "new", id="the run was made again under its id"),
        pytest.param({}, f"shop/scheduled-2/refresh/-1/{START}-1", "new", id="another run"),
        pytest.param({}, f"shop/scheduled-1/refresh/3/{START}-1", "new", id="another mapped task"),
        pytest.param({"restarted_by": "shop/2026-11-20"}, "shop/2026-11-21", "new", id="keys of a user's own"),
    ],
)
def test_force_restart_discards_once_per_run(fields: dict[str, Any], run_key: str, expected: str) -> None:
    found = header(**{"run_key": FIRST, "restarted_by": FIRST, **fields})
    assert opening(found, run_key=run_key, force_restart=True) is Opening(expected)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


def other_run(run_key: str | None = SECOND, clock: Clock | None = None, **options: Any) -> OtherRun:
    return OtherRun("raw.orders", run_key, RefreshOptions(**options), clock or Clock())


def works() -> bool:
    return False


def busy(own: Mapping[str, Any] | None = None, **holder: Any) -> str | None:
    """Return what a run with these options is told of the run that holds the generation."""
    found = header(**{"run_key": FIRST, "committed_at": NOW, **holder})
    return other_run(**(own or {})).must_wait(found, lambda: found.ended_at is not None, NOW)


def test_another_run_that_commits_is_waited_for_and_named() -> None:
    told = busy()
    assert told is not None
    assert FIRST in told
    assert "6 of 10 partitions done" in told


@pytest.mark.parametrize("hours_apart", [-2, 0, 0.08])
def test_silence_counts_from_when_it_was_first_seen_whatever_the_holders_clock_says(hours_apart: float) -> None:
    clock = Clock()
    waiting = other_run(clock=clock)
    found = header(run_key=FIRST, committed_at=NOW - timedelta(hours=hours_apart))
    assert waiting.must_wait(found, works, NOW) is not None
    clock.now += 89
    assert waiting.must_wait(found, works, NOW) is not None
    clock.now += 2
    assert waiting.must_wait(found, works, NOW) is None


def test_each_new_commit_of_the_holder_begins_the_silence_anew() -> None:
    clock = Clock()
    waiting = other_run(clock=clock)
    for number in range(5):
        found = header(run_key=FIRST, committed_at=NOW + timedelta(hours=2, seconds=number))
        assert waiting.must_wait(found, works, NOW) is not None
        clock.now += 80


@pytest.mark.parametrize(
    ("own", "holder", "waits"),
    [
        pytest.param({}, {"committed_at": NOW - timedelta(hours=20)}, False, id="its last commit is of yesterday"),
        pytest.param({}, {"ended_at": NOW}, False, id="it said that it ended"),
        pytest.param({}, {"ended_at": NOW, "partitions_done": 10}, False, id="it ended at its publish"),
        pytest.param({"on_busy": "fail"}, {"ended_at": NOW}, False, id="it ended, and on_busy is fail"),
        pytest.param({}, {"state": RefreshState.PUBLISHED}, False, id="it has published"),
        pytest.param({"run_key": FIRST}, {}, False, id="a retry of the same task"),
        pytest.param({"run_key": f"shop/scheduled-1/refresh/-1/{START}-1"}, {}, False, id="a clear of the same task"),
        pytest.param({"run_key": f"shop/scheduled-1/refresh/-1/{LATER}-0"}, {}, False, id="the run began again"),
        pytest.param({"run_key": f"shop/scheduled-1/refresh/3/{START}-0"}, {}, True, id="another mapped task"),
        pytest.param({"run_key": "tuesday"}, {}, True, id="a user's own key"),
        pytest.param({"run_key": "tuesday"}, {"run_key": "monday"}, True, id="two keys of a user's own"),
        pytest.param({"run_key": "monday"}, {"run_key": "monday"}, False, id="the same key of a user's own"),
        pytest.param({"run_key": None}, {}, True, id="a laptop, and a run of Airflow"),
        pytest.param({"run_key": None}, {"run_key": None}, False, id="a laptop, and what it began"),
        pytest.param({"run_key": FIRST}, {"run_key": None}, True, id="a run of Airflow, and a laptop"),
    ],
)
def test_only_another_run_that_may_be_alive_is_waited_for(
    own: dict[str, Any], holder: dict[str, Any], waits: bool
) -> None:
    assert (busy(own, **holder) is not None) is waits


def test_nobody_is_at_a_refresh_that_was_never_opened() -> None:
    assert other_run(FIRST).must_wait(None, works, NOW) is None


def test_on_busy_says_fail_or_take_over() -> None:
    with raises(RefreshBusyError):
        busy({"on_busy": "fail"})
    assert busy({"on_busy": "take_over"}) is None


MOVED_API: dict[str, Any] = {
    "version": 1,
    "base_url": "{{ config.base_url }}/v1",
    "streams": {"orders": {"request": {"path": "/orders"}, "records": {"path": "data"}, "primary_key": "id"}},
}
ONE, TWO, THREE = "http://127.0.0.1:5001", "http://127.0.0.1:5002", "https://api.example.com"


def read_print(config: dict[str, Any], *moved: _Address) -> str:
    stream = load_stream({"definition": MOVED_API, "config": config}, "orders")
    return fingerprints_of(stream, Relocations.of(moved)).read


def test_a_refresh_is_the_same_one_wherever_its_api_moved() -> None:
    begun = read_print({"base_url": ONE, "login": "old", "page": 5})
    chain = [_Address(base_url=ONE, login="old"), _Address(base_url=TWO, login="old")]
    assert read_print({"base_url": TWO, "login": "old", "page": 5}, *chain) == begun
    chain.append(_Address(base_url=THREE, login="new"))
    assert read_print({"base_url": THREE, "login": "new", "page": 5}, *chain) == begun


def test_an_address_that_nobody_vouches_for_is_another_refresh() -> None:
    begun = read_print({"base_url": ONE})
    assert read_print({"base_url": TWO}) != begun
    assert read_print({"base_url": THREE}, _Address(base_url=ONE), _Address(base_url=TWO)) != begun
    assert read_print({"base_url": TWO, "page": 6}, _Address(base_url=ONE), _Address(base_url=TWO)) != begun


def test_another_upstream_is_another_refresh_even_at_the_same_address() -> None:
    assert read_print({"base_url": ONE}, _Address(upstream="2"), _Address(base_url=ONE)) != read_print(
        {"base_url": ONE}
    )


@pytest.mark.parametrize(
    ("token", "moved"),
    [
        (f"{ONE}/orders?page=2", f"{THREE}/orders?page=2"),
        (f"{TWO}/orders?page=2", f"{THREE}/orders?page=2"),
        (f"{ONE}?page=2", f"{THREE}?page=2"),
        (f"{ONE}0/orders", f"{ONE}0/orders"),
        ("abc", "abc"),
        (17, 17),
        ({"next": 3}, {"next": 3}),
    ],
)
def test_page_tokens_that_are_addresses_lead_to_the_present_place(token: Any, moved: Any) -> None:
    moves = Relocations.of([_Address(base_url=ONE), _Address(base_url=f"{TWO}/"), _Address(base_url=THREE)])
    text = moves.token(orjson.dumps(token).decode())
    assert text is not None
    assert orjson.loads(text) == moved
    assert moves.token(None) is None


def test_an_address_that_begins_with_another_one_is_not_moved_twice() -> None:
    moves = Relocations.of([_Address(base_url=ONE), _Address(base_url=f"{ONE}/v2")])
    for token in (f"{ONE}/v2/orders", f"{ONE}/orders"):
        assert moves.token(f'"{token}"') == f'"{ONE}/v2/orders"'


def test_cursors_and_overlap_checks_of_a_resumed_refresh_move_along() -> None:
    book = PartitionBook(["a", "b"], ["{}", "{}"])
    book.cursors = {0: Cursor(pages=1, token=f'"{ONE}/2"', records=5), 1: Cursor(pages=9, complete=True)}
    book.states = {0: ChainState(overlap=OverlapCheck(f'"{ONE}/1"', "sum")), 1: ChainState()}
    Relocations.of([_Address(base_url=ONE), _Address(base_url=TWO)]).follow(book)
    assert book.cursors[0] == Cursor(pages=1, token=f'"{TWO}/2"', records=5)
    assert book.cursors[1].token is None
    assert book.states == {0: ChainState(overlap=OverlapCheck(f'"{TWO}/1"', "sum")), 1: ChainState()}
