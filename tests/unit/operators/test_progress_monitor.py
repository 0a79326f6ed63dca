from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.operators._attempt import ProgressMonitor
from airflow_provider_rfr.refresh.follow import LedgerFollower
from airflow_provider_rfr.refresh.state import LedgerHeader, Progress, RefreshState
from tests.headers import NOON, header_of


def header(seconds: float = 0.0, **fields: Any) -> LedgerHeader:
    moment = NOON + timedelta(seconds=seconds)
    return header_of(**{"partitions": 8, "committed_at": moment, "progressed_at": moment, **fields})


class FakeLedgers(LedgerFollower):
    """Gives one state after another; the last one for ever."""

    def __init__(self, *states: LedgerHeader | Exception | None, lines: list[str] | None = None) -> None:
        super().__init__(lambda: LakeSettings("rfr", {}), ("raw.orders",), show=([] if lines is None else lines).append)
        self._states = list(states)
        self.exhausted = threading.Event()

    def _header(self, table: str) -> LedgerHeader | None:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if len(self._states) == 1:
            self.exhausted.set()
        if isinstance(state, Exception):
            raise state
        return state


class FakeStore:
    place = "a list"

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def read(self) -> Any:
        return None

    def write(self, content: dict[str, Any]) -> None:
        self.written.append(content)

    def clear(self) -> None:
        pass


class BrokenStore(FakeStore):
    def write(self, content: dict[str, Any]) -> None:
        raise RuntimeError("no store")


def follow(
    *states: LedgerHeader | Exception | None, store: FakeStore | None = None
) -> tuple[list[str], list[dict[str, Any]]]:
    store, lines = store or FakeStore(), []
    ledgers = FakeLedgers(*states, lines=lines)
    with ProgressMonitor(ledgers, store, "d/r/t/-1", is_first=True) as monitor:
        monitor.follow(0.01)
        assert ledgers.exhausted.wait(10)
    return lines, store.written


def test_each_round_is_one_line_and_one_checkpoint() -> None:
    lines, checkpoints = follow(
        None,
        header(),
        header(10, rounds=1, pages=100, records=1000, partitions_done=2),
        header(20, rounds=2, pages=300, records=3000, partitions_done=4),
    )
    assert lines == [
        "raw.orders: generation 1, round 1: 100 pages, 1,000 records, 2 of 8 partitions, 10 pages/s, about 30 s left",
        "raw.orders: generation 1, round 2: 300 pages, 3,000 records, 4 of 8 partitions, 15 pages/s, about 20 s left",
    ]
    assert len(checkpoints) == 3
    assert checkpoints[-1]["version"] == 1
    assert checkpoints[-1]["tables"]["raw.orders"]["pages"] == 300


def test_a_resumed_attempt_is_measured_from_its_own_start() -> None:
    before = header(0, rounds=3, pages=600, records=6000, partitions_done=4)
    second = {"epoch": 2, "attempts": 2, "began_at": NOON + timedelta(seconds=100)}
    second |= {"found_pages": 600, "found_records": 6000, "found_partitions": 4}
    lines, _ = follow(
        before,
        header(100, **second, rounds=3, pages=600, records=6000, partitions_done=4),
        header(110, **second, rounds=4, pages=700, records=7000, partitions_done=6),
    )
    assert lines == [
        "raw.orders: generation 1, round 4: 700 pages, 7,000 records, 6 of 8 partitions, 10 pages/s, about 10 s left"
    ]


def test_an_earlier_generation_is_not_shown_again() -> None:
    old = header(0, state=RefreshState.PUBLISHED, rounds=9, pages=900)
    assert follow(old, old, old) == ([], [])


@pytest.mark.parametrize(("total", "seconds"), [({"previous_rows": 4000}, 30), ({}, None)])
def test_a_single_chain_is_estimated_by_the_last_refreshs_rows(total: dict[str, int], seconds: int | None) -> None:
    now = header(10, partitions=1, pages=10, records=1000, rounds=1, **total)
    assert Progress.of(now).seconds_left == seconds


def test_a_ledger_that_cannot_be_read_now_is_asked_again_and_named_once_by_the_kind_of_its_error(caplog: Any) -> None:
    lines, _ = follow(None, OSError("me:s3cret@db"), OSError("me:s3cret@db"), header(1, rounds=1, pages=5))
    assert len(lines) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the ledger of raw.orders can't be read (OSError); the refresh continues"
    ]


def test_a_store_that_cannot_be_written_stops_nothing() -> None:
    lines, _ = follow(None, header(1, rounds=1, pages=1), header(2, rounds=2, pages=2), store=BrokenStore())
    assert len(lines) == 2
