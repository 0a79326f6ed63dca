"""States of Airbyte and dlt as states of ours: real exports of both, and the forms that their documentation shows."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, SyncStateError
from airflow_provider_rfr.refresh.foreign_states import ForeignState, choose, converted, states_in
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.moments import write_moment
from airflow_provider_rfr.streams.paged import PagedStream, as_paged
from tests.unit.messages import raises
from tests.unit.refresh import python_sources

EXPORTS = Path(__file__).with_name("foreign_states")
SINCE = {"cursor_field": "updated_at", "start": "2024-01-01", "send_as": {"query": "since"}}
MOMENT = "2024-01-25T03:00:00.000000Z"


def stream(incremental: dict[str, Any] | None = None, **more: Any) -> PagedStream:
    """Return a stream of ours."""
    declared = {"request": {"path": "/"}, "incremental": {**SINCE, **(incremental or {})}, **more}
    definition = {"base_url": "https://api.example.com", "streams": {"orders": declared}}
    return as_paged(load_stream({"definition": definition}, "orders"))


DIVIDED = {"partitions": {"type": "list", "field": "pid", "values": [0, 1, 2]}}


def exported(name: str) -> dict[str, ForeignState]:
    return states_in((EXPORTS / name).read_text())


def values(state: ForeignState, of: PagedStream) -> dict[str, str]:
    return dict(converted(state, of).values)


def airbyte(content: Any) -> ForeignState:
    return ForeignState("airbyte", content)


class TestAirbyte:
    def test_of_a_connectors_messages_the_last_of_each_stream_counts(self) -> None:
        states = exported("airbyte.jsonl")
        assert set(states) == {"orders", "items"}
        assert values(states["orders"], stream()) == {"{}": MOMENT}
        assert values(states["items"], stream(**DIVIDED)) == {
            '{"pid":0}': "2024-01-28T00:00:00.000000Z",
            '{"pid":1}': "2024-01-26T00:00:00.000000Z",
            '{"pid":2}': "2024-01-27T00:00:00.000000Z",
        }

    @pytest.mark.parametrize(
        "document",
        [
            [
                {
                    "type": "STREAM",
                    "stream": {"stream_descriptor": {"name": "orders"}, "stream_state": {"updated_at": MOMENT}},
                }
            ],
            # As the UI shows the state of a connection, and as its API gives it.
            [{"streamDescriptor": {"name": "orders"}, "streamState": {"updated_at": MOMENT}}],
            {
                "stateType": "stream",
                "connectionId": "c",
                "state": None,
                "streamState": [{"streamDescriptor": {"name": "orders"}, "streamState": {"updated_at": MOMENT}}],
            },
            {
                "stateType": "global",
                "globalState": {
                    "streamStates": [{"streamDescriptor": {"name": "orders"}, "streamState": {"updated_at": MOMENT}}]
                },
            },
            {
                "type": "GLOBAL",
                "global": {
                    "stream_states": [{"stream_descriptor": {"name": "orders"}, "stream_state": {"updated_at": MOMENT}}]
                },
            },
            {"type": "LEGACY", "data": {"orders": {"updated_at": MOMENT}}},
            {"stateType": "legacy", "state": {"orders": {"updated_at": MOMENT}}},
            {"orders": {"updated_at": MOMENT}},
        ],
    )
    def test_every_form_of_a_state_is_read(self, document: Any) -> None:
        states = states_in(json.dumps(document))
        assert states == {"orders": airbyte({"updated_at": MOMENT})}
        assert values(choose(states, None)[1], stream()) == {"{}": MOMENT}

    def test_a_stream_with_a_namespace_is_called_by_both(self) -> None:
        entry = {"stream_descriptor": {"name": "orders", "namespace": "eu"}, "stream_state": {"updated_at": MOMENT}}
        assert set(states_in(json.dumps([entry]))) == {"eu.orders"}

    def test_slices_count_until_the_first_gap(self) -> None:
        slices = [
            {
                "start": "2024-03-01T00:00:00Z",
                "end": "2024-03-05T00:00:00Z",
                "most_recent_cursor_value": "2024-03-04T00:00:00Z",
            },
            {"start": "2024-01-01T00:00:00Z", "end": "2024-02-01T00:00:00Z", "most_recent_cursor_value": MOMENT},
        ]
        assert values(airbyte({"slices": slices, "state_type": "date-range"}), stream()) == {"{}": MOMENT}

    @pytest.mark.parametrize(
        ("form", "starts", "expected"),
        [
            ("epoch", [946684800, 1700000000], "2000-01-01T00:00:00.000000Z"),
            ("%d/%m/%Y", ["05/03/2024", "01/06/2024"], "2024-03-05T00:00:00.000000Z"),
        ],
    )
    def test_slices_are_ordered_as_moments(self, form: str, starts: list[Any], expected: str) -> None:
        state = airbyte({"slices": [{"start": start} for start in starts], "state_type": "date-range"})
        assert values(state, stream({**SINCE, "format": form})) == {"{}": expected}

    def test_one_cursor_for_all_partitions_is_taken_with_its_lookback(self) -> None:
        content = {"use_global_cursor": True, "state": {"updated_at": MOMENT}, "lookback_window": 3600}
        assert values(airbyte(content), stream()) == {"{}": "2024-01-25T02:00:00.000000Z"}

    @pytest.mark.parametrize(
        ("value", "declared"),
        [
            ("2024-01-25", {}),
            ("2024-01-25T00:00:00.000+0000", {}),
            (1706140800, {"format": "epoch"}),
            ("1706140800000", {"format": "epoch_ms"}),
            ("20240125", {"format": "%Y%m%d"}),
            ("2024-01-25T01:00:00", {"timezone": "Europe/Zurich"}),
        ],
    )
    def test_values_are_read_in_the_form_of_the_cursor(self, value: Any, declared: dict[str, Any]) -> None:
        assert values(airbyte({"updated_at": value}), stream(declared)) == {"{}": "2024-01-25T00:00:00.000000Z"}

    def test_numbers_and_texts_stay_such(self) -> None:
        assert values(airbyte({"updated_at": 2**60}), stream({"type": "integer", "start": 0})) == {"{}": str(2**60)}
        assert values(airbyte({"updated_at": "b"}), stream({"type": "text", "start": "a"})) == {"{}": "b"}

    @pytest.mark.parametrize("name", ["updatedAt", "UPDATED_AT", "$.updated.at", "updated__at"])
    def test_the_cursor_may_be_written_in_another_way(self, name: str) -> None:
        assert values(airbyte({name: MOMENT, "id": 7}), stream()) == {"{}": MOMENT}

    def test_a_stream_in_python_gets_the_state_as_it_is(self) -> None:
        source = {"class": f"{python_sources.__name__}:Sliced"}
        of = as_paged(load_stream(source, "sliced"))
        assert converted(airbyte({"version": 7}), of).of_source == {"{}": {"version": 7}}
        states = [{"partition": {"shop": "a", "parent_slice": {}}, "cursor": {"version": 7}}]
        assert converted(airbyte({"states": states}), of).of_source == {'{"shop":"a"}': {"version": 7}}


class TestDlt:
    def test_the_state_of_a_pipeline_is_read(self) -> None:
        states = exported("dlt.json")
        assert set(states) == {"shipments", "orders", "events", "days", "small"}
        assert values(states["shipments"], stream()) == {"{}": "2026-03-05T06:00:00.500000Z"}
        assert values(states["orders"], stream({"cursor_field": "meta_changed"})) == {
            "{}": "2026-03-05T06:00:00.123456Z"
        }
        assert values(states["days"], stream({"cursor_field": "day"})) == {"{}": "2026-03-04T00:00:00.000000Z"}
        number = stream({"cursor_field": "number", "type": "integer", "start": 0})
        assert values(states["events"], number) == {"{}": str(2**60 + 4)}

    def test_a_row_of_its_table_says_the_same_and_so_does_the_rows_column(self) -> None:
        row = (EXPORTS / "dlt_row.json").read_text()
        assert exported("dlt_row.json") == exported("dlt.json") == states_in(json.loads(row)["state"])

    def test_a_resource_of_two_sources_is_called_by_both(self) -> None:
        resources = {"resources": {"orders": {"incremental": {"at": {"last_value": 1}}}, "full": {}}}
        assert set(states_in(json.dumps({"sources": {"a": resources, "b": resources}}))) == {"a.orders", "b.orders"}

    def test_a_stream_in_python_gets_the_last_value(self) -> None:
        of = as_paged(load_stream({"class": f"{python_sources.__name__}:Sliced"}, "sliced"))
        assert converted(ForeignState("dlt", {"version": 7}), of).of_source == {"{}": {"version": 7}}
        with raises(ConfigurationError):
            converted(ForeignState("dlt", {"number": 7}), of)


@pytest.mark.parametrize(
    "text",
    [
        "no state",
        "[1]",
        "{}",
        "[]",
        '{"sources": {"a": {"resources": {"b": {}}}}}',
        '{"sources": 3}',
        '{"sources": {"a": 5}}',
        '{"sources": {"a": {"resources": {"b": null}}}}',
        '{"sources": {"a": {"resources": {"b": {"incremental": [1]}}}}}',
        '{"sources": {"a": {"resources": {"b": {"incremental": {"at": null}}}}}}',
        '{"engine_version": 4, "state": "eJyLNowFAAHTAOo="}',
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"state":' * 900 + "1" + "}" * 900, id="deep and closed"),
        '[{"stream_descriptor": {"name": "a", "namespace": 5}, "stream_state": {}}]',
        '{"orders": 3}',
        '{"type": "GLOBAL", "global": {"shared_state": {"lsn": 1}, "stream_states": []}}',
        '[{"stream_descriptor": {}, "stream_state": {}}]',
    ],
)
def test_a_file_without_a_state_is_refused(text: str) -> None:
    with raises(ConfigurationError):
        states_in(text)


@pytest.mark.parametrize(
    ("content", "of"),
    [
        ({}, stream()),
        ({"updated_at": "soon"}, stream()),
        ({"updated_at": None}, stream()),
        ({"updated_at": "\ud800"}, stream()),
        ({"updated_at": 1706140800}, stream()),
        ({"a": 1, "b": 2}, stream()),
        ({"created_at": MOMENT}, stream()),
        ({"updatedAt": MOMENT, "updated.at": MOMENT}, stream()),
        ({"updated_at": "x"}, stream({"type": "integer", "start": 0})),
        ({"__ab_full_refresh_sync_complete": True}, stream()),
        ({"updated_at": MOMENT}, stream(**DIVIDED)),
        ({"states": [{"partition": {"pid": 1}, "cursor": {"updated_at": MOMENT}}]}, stream()),
        ({"states": [{"partition": {"id": 1}, "cursor": {"updated_at": MOMENT}}]}, stream(**DIVIDED)),
        ({"slices": [], "state_type": "date-range"}, stream()),
    ],
)
def test_a_state_that_does_not_fit_the_stream_is_refused(content: dict[str, Any], of: PagedStream) -> None:
    with raises(ConfigurationError):
        converted(airbyte(content), of)


@pytest.mark.parametrize(
    ("state", "of"),
    [
        (airbyte({"updated_at": "2900-01-01"}), stream()),
        (airbyte({"states": [{"partition": {"pid": 1}, "cursor": {"updated_at": "2900-01-01"}}]}), stream(**DIVIDED)),
        (ForeignState("dlt", {"updated_at": "2900-01-01T00:00:00Z"}), stream()),
    ],
)
def test_a_state_that_has_not_come_yet_is_refused(state: ForeignState, of: PagedStream) -> None:
    with pytest.raises(SyncStateError, match="not come yet"):
        converted(state, of)


def test_of_partitions_that_differ_in_their_parents_alone_the_one_behind_counts() -> None:
    entries = [
        {"partition": {"pid": 1, "parent_slice": {"org": org}}, "cursor": {"updated_at": at}}
        for org, at in enumerate(("2024-01-06", MOMENT, "2024-01-05", "2024-03-01"))
    ]
    assert values(airbyte({"states": entries}), stream(**DIVIDED)) == {'{"pid":1}': "2024-01-05T00:00:00.000000Z"}
    of = as_paged(load_stream({"class": f"{python_sources.__name__}:Sliced"}, "sliced"))
    with raises(ConfigurationError):
        converted(airbyte({"states": entries}), of)


@pytest.mark.parametrize("lookback", [-1, "PT1H", True, 10**18, float("nan"), float("inf"), []])
def test_a_lookback_that_is_no_length_of_time_is_refused(lookback: Any) -> None:
    with pytest.raises(ConfigurationError, match="lookback_window"):
        values(airbyte({"updated_at": MOMENT, "lookback_window": lookback}), stream())


def test_the_clock_of_the_other_tool_may_be_a_little_ahead() -> None:
    ahead = write_moment(datetime.now(timezone.utc) + timedelta(minutes=50))
    assert values(airbyte({"updated_at": ahead}), stream()) == {"{}": ahead}


def test_a_stream_that_is_not_in_the_file_is_named_with_those_that_are() -> None:
    states = exported("dlt.json")
    for name in (None, "customers"):
        with raises(ConfigurationError):
            choose(states, name)
