"""What templates can print of a commit, and the ids that follow from it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent, merge
from airflow_provider_rfr.webhooks import render
from airflow_provider_rfr.webhooks.outbox import delivery_id, merged_id
from airflow_provider_rfr.webhooks.validation import template_variables

NOON = datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1)))
EVENT = CommitEvent(
    commit_id="c-1",
    target="raw.orders",
    lake="prod",
    target_name="acme/orders",
    run_id="r-1",
    sequence=7,
    snapshot_id=2**62 + 1,
    committed_at=NOON + timedelta(milliseconds=250),
    generation=3,
    collection_names=("orders",),
    producer="image:1",
    fetched_at_min=NOON,
    fetched_at_max=NOON + timedelta(minutes=1),
    bindings=(Binding("raw.orders", "orders", 10, 2048), Binding("raw.orders", "refunds", 0, 0)),
    dag_id="dag",
    dag_run_id="run",
    task_id="task",
    map_index=-1,
    logical_date="2026-03-01T00:00:00Z",
)
NAMES = {
    *(
        "target_name",
        "producer",
        "fetched_at_min",
        "fetched_at_max",
        "materialization_name",
        "collection_names",
        "connector_image",
        "flow_published_at_min",
        "flow_published_at_max",
    ),
    *("flow_run_id", "run_id", "headers", "delivery_id", "commit_id", "generation", "snapshot_id", "committed_at"),
    *("sequence", "attempt", "trigger_name", "bindings", "totals", "dag_id", "dag_run_id", "task_id", "map_index"),
    *("logical_date", "target", "lake", "merged_commits"),
}


def variables(event: CommitEvent) -> dict[str, object]:
    return template_variables(event, delivery_id="d-1", attempt=2, trigger_name="slack", headers={"X": "y"})


def test_every_variable_is_there_with_its_meaning() -> None:
    names = variables(EVENT)
    assert set(names) == NAMES
    assert (names["target_name"], names["producer"], names["run_id"]) == ("acme/orders", "image:1", "r-1")
    assert (names["delivery_id"], names["attempt"], names["trigger_name"], names["headers"]) == (
        "d-1",
        2,
        "slack",
        {"X": "y"},
    )
    assert (names["sequence"], names["snapshot_id"], names["generation"]) == (7, 2**62 + 1, 3)
    assert names["bindings"] == [
        {"table": "raw.orders", "collection": "orders", "documents": 10, "bytes": 2048},
        {"table": "raw.orders", "collection": "refunds", "documents": 0, "bytes": 0},
    ]
    assert names["totals"] == {"documents": 10, "bytes": 2048, "tables": 1}
    assert names["map_index"] == -1


def test_estuary_flow_s_names_are_aliases_of_ours() -> None:
    found = variables(EVENT)
    names = ("materialization_name", "connector_image", "flow_run_id", "flow_published_at_min", "flow_published_at_max")
    ours = ("target_name", "producer", "run_id", "fetched_at_min", "fetched_at_max")
    assert [found[name] for name in names] == [found[name] for name in ours]
    for name in (*names, *ours):
        assert render(f"{{{{{name}}}}}", found) == found[name] != ""


def test_times_are_in_utc_with_z() -> None:
    names = variables(EVENT)
    assert names["fetched_at_min"] == "2026-03-01T12:00:00Z"
    assert names["committed_at"] == "2026-03-01T12:00:00.250000Z"


def test_what_there_is_none_of_is_empty_text() -> None:
    bare = CommitEvent(commit_id="c", target="t", lake="l", target_name="m", run_id="r")
    found = variables(bare)
    names = ("fetched_at_min", "fetched_at_max", "dag_id", "dag_run_id", "task_id", "map_index")
    assert [found[name] for name in (*names, "logical_date", "producer")] == [""] * 8
    assert (found["collection_names"], found["bindings"]) == ([], [])
    assert found["totals"] == {"documents": 0, "bytes": 0, "tables": 0}


def test_a_merged_event_tells_how_many_commits_it_is() -> None:
    names = variables(merge(EVENT, replace(EVENT, commit_id="c-2")))
    assert (names["merged_commits"], names["totals"]) == (2, {"documents": 20, "bytes": 4096, "tables": 1})


def test_what_is_printed_is_no_part_of_the_event() -> None:
    names = variables(EVENT)
    names["collection_names"].append("other")
    assert EVENT.collection_names == ("orders",)


def test_delivery_ids_follow_from_commit_and_endpoint_alone() -> None:
    assert delivery_id("c-1", "slack") == "666b6fa34f39cd808613989cd689646a"
    ids = {delivery_id(commit, name) for commit in ("c-1", "c-2") for name in ("slack", "airflow")}
    ids |= {delivery_id("a", "b-c"), delivery_id("a-b", "c"), delivery_id('a", "b', "c"), delivery_id("a", 'b", "c')}
    assert len(ids) == 8
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in ids)


def test_merged_ids_tell_windows_apart() -> None:
    ids = {merged_id("slack", "c-1", "c-2"), merged_id("slack", "c-1", "c-3"), merged_id("x", "c-1", "c-2")}
    ids |= {delivery_id("c-1", "c-2"), delivery_id("slack", "c-1")}
    assert len(ids) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in ids)
