"""The event of a commit: into a snapshot's summary and back, and several in one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_rfr.lake.commit_event import (
    EVENT_KEY,
    Binding,
    CommitEvent,
    collections_of,
    merge,
    published_span,
    rfc3339,
)
from airflow_provider_rfr.lake.target import TargetTable

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
FULL = CommitEvent(
    commit_id="c-1",
    target="raw.orders",
    lake="prod",
    target_name="acme/orders",
    run_id="r-1",
    sequence=7,
    snapshot_id=2**62,
    committed_at=NOON,
    generation=3,
    collection_names=("orders",),
    producer="airflow-provider-rfr:1",
    fetched_at_min=NOON - timedelta(hours=1),
    fetched_at_max=NOON - timedelta(minutes=1, microseconds=5),
    bindings=(Binding("raw.orders", "orders", 10, 2048),),
    dag_id="dag",
    dag_run_id='manual__"x"',
    task_id="refresh",
    map_index=-1,
    logical_date="2026-03-01T00:00:00Z",
    merged_commits=1,
    changes={"inserted": 10, "deleted": 2},
)


def read(event: CommitEvent) -> CommitEvent | None:
    milliseconds = int(event.committed_at.timestamp() * 1000)
    return CommitEvent.from_summary(
        event.target, event.snapshot_id, event.sequence, milliseconds, {"operation": "append", **event.to_summary()}
    )


def test_an_event_comes_back_from_the_summary_as_it_went_there() -> None:
    assert read(FULL) == FULL
    assert read(replace(FULL, committed_at=NOON + timedelta(milliseconds=123))) is not None
    bare = CommitEvent(commit_id="c", target="t", lake="l", target_name="m", run_id="r")
    assert read(bare) == bare


def test_the_summary_has_one_compact_key_that_repeats_nothing_of_the_snapshot() -> None:
    summary = FULL.to_summary()
    assert list(summary) == [EVENT_KEY]
    document = json.loads(summary[EVENT_KEY])
    assert not {"target", "sequence", "snapshot_id", "committed_at"} & set(document)
    assert ": " not in summary[EVENT_KEY].replace('acme/orders", "', "")
    assert summary[EVENT_KEY].isascii()


def test_the_event_survives_the_control_store() -> None:
    assert CommitEvent.from_json(FULL.to_json()) == FULL
    merged = merge(FULL, replace(FULL, commit_id="c-2", sequence=8))
    assert CommitEvent.from_json(merged.to_json()) == merged


def test_names_of_any_alphabet_and_half_surrogates_survive() -> None:
    odd = replace(FULL, collection_names=("注文", '"\\\n\u2028', "\ud800"), target_name="😀")
    assert read(odd) == odd


def test_a_commit_of_somebody_else_owes_nothing() -> None:
    assert CommitEvent.from_summary("t", 1, 1, 0, {"operation": "append"}) is None
    assert CommitEvent.from_summary("t", 1, 1, 0, {"rfr.ledger": "x", "rfr.generation": "1"}) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "{}", "{", '{"commit_id": 5}', "[" * 100_000),
        *(
            json.dumps({**json.loads(FULL.to_json()), name: wrong})
            for name, wrong in (
                ("generation", True),
                *(("collection_names", wrong) for wrong in ("orders", 5)),
                *(("bindings", wrong) for wrong in ([["a"]], 5)),
                *(("fetched_at_min", wrong) for wrong in ("yesterday", "2026-01-01T00:00:00", 5)),
                ("fetched_at_min", "0001-01-01T00:00:00+14:00"),
            )
        ),
    ],
)
def test_an_event_that_can_t_be_read_is_told_and_owes_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert CommitEvent.from_summary("raw.t", 9, 1, 0, {EVENT_KEY: text}) is None
    assert "raw.t: snapshot 9 has an event that can't be read" in caplog.text


def test_what_a_later_version_adds_is_left_out() -> None:
    document = {**json.loads(FULL.to_json()), "backfill": {"x": 1}}
    assert CommitEvent.from_json(json.dumps(document)) == FULL


def test_the_reader_s_name_of_the_catalog_goes_before_the_writer_s() -> None:
    found = CommitEvent.from_summary("t", 1, 1, 0, FULL.to_summary(), lake="other")
    assert found is not None
    assert found.lake == "other"


def test_the_span_of_all_bindings_leaves_out_those_without_documents_and_clocks_at_zero() -> None:
    bindings = [Binding("t", "a", 0, 0), Binding("t", "b", 2, 9), Binding("u", "b", 1, 1)]
    assert collections_of(bindings) == ("b",)
    zero, one, two, three, four = (datetime.fromtimestamp(at, timezone.utc) for at in (0, 5, 10, 30, 40))
    assert published_span([(two, three), (one, four)]) == (one, four)
    assert published_span([(zero, zero), (None, None), (one, two)]) == (one, two)
    assert [rfc3339(at) for at in published_span([(zero, zero), (None, None)])] == ["", ""]
    assert rfc3339(four) == "1970-01-01T00:00:40Z"


def test_two_bindings_name_each_collection_once_and_span_from_the_first_to_the_last() -> None:
    bindings = [Binding("t", "a", 1, 1), Binding("t", "b", 2, 2), Binding("u", "a", 1, 1)]
    assert collections_of(bindings) == ("a", "b")
    spans = [
        (datetime.fromtimestamp(begin, timezone.utc), datetime.fromtimestamp(end, timezone.utc))
        for begin, end in ((1000, 3000), (500, 4000))
    ]
    assert [rfc3339(at) for at in published_span(spans)] == ["1970-01-01T00:08:20Z", "1970-01-01T01:06:40Z"]


def test_merged_events_join_collections_take_instants_and_keep_the_first_run_id() -> None:
    first = replace(FULL, run_id="A")
    second = replace(
        FULL,
        commit_id="c-2",
        run_id="B",
        sequence=8,
        snapshot_id=5,
        committed_at=NOON + timedelta(hours=1),
        collection_names=("items", "orders"),
        # The same day in text sorts after, the instant is before.
        fetched_at_min=datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=14))),
        fetched_at_max=NOON,
        bindings=(Binding("raw.orders", "orders", 1, 1), Binding("raw.items", "items", 5, 50)),
        dag_run_id="second",
    )
    merged = merge(first, second)
    assert merged.collection_names == ("items", "orders")
    assert merged.fetched_at_min == second.fetched_at_min
    assert merged.fetched_at_max == NOON
    assert merged.run_id == "A"
    assert (merged.commit_id, merged.sequence, merged.snapshot_id) == ("c-2", 8, 5)
    assert merged.committed_at == second.committed_at
    assert merged.bindings == (Binding("raw.orders", "orders", 11, 2049), Binding("raw.items", "items", 5, 50))
    assert (merged.documents, merged.bytes, merged.merged_commits) == (16, 2099, 2)
    assert merged.dag_run_id == "second"


def test_counts_of_merged_syncs_are_added_and_those_before_or_after_a_full_refresh_are_none() -> None:
    full = replace(FULL, changes=None)
    assert merge(FULL, FULL).changes == {"inserted": 20, "deleted": 4}
    assert merge(FULL, full).changes is merge(full, FULL).changes is None


@pytest.mark.parametrize("changes", [[1], {"inserted": "many"}, {"inserted": True}, 7])
def test_changes_that_are_no_counts_are_no_event(changes: Any) -> None:
    document = {**json.loads(FULL.to_json()), "changes": changes}
    with pytest.raises(ValueError, match="changes must be numbers by name"):
        CommitEvent.from_json(json.dumps(document))


def test_a_commit_without_times_does_not_win_the_minimum() -> None:
    without = replace(FULL, fetched_at_min=None, fetched_at_max=None)
    assert merge(without, FULL).fetched_at_min == FULL.fetched_at_min
    assert merge(FULL, without).fetched_at_max == FULL.fetched_at_max
    assert merge(without, without).fetched_at_min is None


def test_it_makes_no_difference_how_three_are_merged() -> None:
    one, two, three = (
        replace(FULL, commit_id=f"c-{n}", sequence=n, collection_names=(f"c{n}",), run_id=f"r{n}") for n in (1, 2, 3)
    )
    assert merge(merge(one, two), three) == merge(one, merge(two, three))


def test_of_the_snapshots_of_a_partial_replace_one_alone_tells_the_event(catalog: SqlCatalog) -> None:
    wanted = pa.schema([("day", pa.string()), ("n", pa.int64())])
    catalog.create_table("raw.t", wanted).append(pa.table({"day": ["a", "b"], "n": [1, 2]}, wanted))
    target = TargetTable(catalog, "raw.t")
    target.prepare(wanted, "evolve", inferred=False, rows_stay=True)
    summary = {"rfr.ledger": "l", "rfr.generation": "1", **FULL.to_summary()}
    last = target.commit([], ("l", 1), mode="replace", replace_where="day = 'a'", summary=summary)
    snapshots = catalog.load_table("raw.t").metadata.snapshots
    told = [snapshot.snapshot_id for snapshot in snapshots if EVENT_KEY in snapshot.summary.additional_properties]
    assert told == [last.snapshot_id]
    assert len(snapshots) > 2
