"""Incremental reads: slices with bounds that leave nothing out, whatever clocks and states say."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.documents import read_yaml
from airflow_provider_rfr.exceptions import SourceDefinitionError, SyncStateError
from airflow_provider_rfr.streams.core import canonical_json
from airflow_provider_rfr.streams.incremental import CursorColumn, CursorWindow
from airflow_provider_rfr.streams.loader import load_streams
from airflow_provider_rfr.streams.moments import read_moment, write_moment, zone_of
from airflow_provider_rfr.streams.rest import _incremental
from airflow_provider_rfr.streams.rest._partitions import TimeFormat
from airflow_provider_rfr.streams.rest.definition import whole_definition
from airflow_provider_rfr.streams.rest.stream import build_stream
from tests.profile import examples
from tests.unit.messages import check_messages, raises

NOW = datetime(2026, 3, 10, 12, 0, 0, 250_000, tzinfo=timezone.utc)
SINCE = {"cursor_field": "updated_at", "start": "2026-01-01", "send_as": {"query": "since"}}
UNTIL = {**SINCE, "end_as": {"query": "until"}}
WEEKS = {**UNTIL, "step": "P1W"}


def bounds(stream, value=None, opened_at=NOW):
    """The bounds of a stream without partitions."""
    slices = stream.incremental.slices({} if value is None else {"{}": value}, opened_at)
    return [tuple(stream_slice.values()) for stream_slice in slices]


def test_without_a_value_everything_from_the_start_is_asked_for(make):
    assert bounds(make(incremental=SINCE)) == [("2026-01-01T00:00:00Z",)]
    assert bounds(make(incremental=UNTIL)) == [("2026-01-01T00:00:00Z", "2026-03-10T12:00:01Z")]
    weeks = bounds(make(incremental=WEEKS))
    assert weeks[:2] == [
        ("2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z"),
        ("2026-01-08T00:00:00Z", "2026-01-15T00:00:00Z"),
    ]
    assert weeks[-1] == ("2026-03-05T00:00:00Z", "2026-03-10T12:00:01Z")


@pytest.mark.parametrize("place", [{"query": "until"}, {"header": "X-Until"}, {"json": "until.at"}, {"form": "until"}])
def test_a_full_refresh_asks_for_what_changes_while_it_runs_too(api, make, place):
    stream = make(incremental={**WEEKS, "end_as": place}, request={"path": "/items", "method": "POST"})
    *weeks, last = stream.stream_slices()
    assert last["window_end"] is None
    assert [week["window_end"] for week in weeks] == [week["window_start"] for week in [*weeks[1:], last]]
    api.answers({"data": []})
    for stream_slice in (weeks[0], last):
        stream.read_page(stream_slice, None)
    sent = [f"{asked.query} {dict(asked.headers)} {asked.body!r}".lower() for asked in api.asked]
    assert ["until" in text for text in sent] == [True, False]


@pytest.mark.parametrize(
    "named",
    [
        {"request": {"path": "/items", "query": {"until": "{{ stream_slice.window_end }}"}}},
        {"request": {"path": "/items/{{ stream_slice['window_end'] }}"}},
        {"transformations": [{"type": "add", "fields": {"end": '{{ stream_slice.get("window_end") }}'}}]},
        {"source": {"defaults": {"request": {"headers": {"X-Until": "{{ stream_slice.window_end }}"}}}}},
    ],
)
def test_a_full_refresh_ends_at_its_opening_where_a_template_names_the_end(api, make, named):
    before = datetime.now(timezone.utc)
    stream = make(incremental=UNTIL, **named)
    [only] = stream.stream_slices()
    assert before <= read_moment(only["window_end"]) <= datetime.now(timezone.utc) + timedelta(seconds=1)
    api.answers({"data": []})
    stream.read_page(only, None)
    assert api.asked[0].query["until"] == only["window_end"]


def test_the_lower_bound_is_the_value_less_the_lookback_rounded_down_and_never_before_the_start(make):
    value = "2026-03-01T06:30:00.700000Z"
    assert bounds(make(incremental=SINCE), value) == [("2026-03-01T06:30:00Z",)]
    assert bounds(make(incremental={**SINCE, "lookback": "PT1H"}), value) == [("2026-03-01T05:30:00Z",)]
    days = {**UNTIL, "lookback": "P1D", "format": "%Y-%m-%d"}
    assert bounds(make(incremental=days), value) == [("2026-02-28", "2026-03-11")]
    for lookback in ("P1Y", "P9999Y"):
        assert bounds(make(incremental={**SINCE, "lookback": lookback}), value) == [("2026-01-01T00:00:00Z",)]
    # The start may have been moved since the last sync.
    assert bounds(make(incremental={**SINCE, "start": "2026-03-05"}), value) == [("2026-03-05T00:00:00Z",)]
    milliseconds = {**UNTIL, "format": "epoch_ms"}
    assert bounds(make(incremental=milliseconds), value) == [(1772346600700, 1773144000250)]


@pytest.mark.parametrize("opened_at", [NOW, NOW.replace(microsecond=0), datetime(2026, 3, 10, tzinfo=timezone.utc)])
@pytest.mark.parametrize("ahead", [timedelta(), timedelta(microseconds=1), timedelta(minutes=5), None])
@pytest.mark.parametrize("form", ["iso", "%Y-%m-%d", "epoch_ms"])
def test_a_value_of_a_clock_that_is_ahead_leaves_one_window_before_the_opening(make, opened_at, ahead, form):
    value = "9999-12-31T23:59:59.999999Z" if ahead is None else write_moment(opened_at + ahead)
    for declared in (UNTIL, {**UNTIL, "step": "P1D"}):
        stream = make(incremental={**declared, "format": form})
        [(lower, upper)] = bounds(stream, value, opened_at)
        written = TimeFormat(form, timezone.utc)
        assert written.read(lower) < opened_at <= written.read(upper)
        assert lower < upper


def test_numbers_and_texts_are_compared_as_such(make):
    number = make(incremental={**SINCE, "type": "integer", "start": 5})
    assert bounds(number) == [(5,)]
    assert bounds(number, "4") == [(5,)]
    assert bounds(number, "9007199254740993") == [(9007199254740993,)]
    text = make(incremental={**SINCE, "type": "text", "start": "b"})
    # By their bytes in UTF-8: in UTF-16 the second would be the smaller one.
    for value, lower in ((None, "b"), ("a", "b"), ("Z", "b"), ("\uffff", "\uffff"), ("\U0001f600", "\U0001f600")):
        assert bounds(text, value) == [(lower,)]
    moved = make(incremental={**SINCE, "type": "text", "start": "\uffff"})
    assert bounds(moved, "\U0001f600") == [("\U0001f600",)]


def test_each_partition_goes_on_from_its_own_value_and_a_new_one_from_the_start(api):
    shops = {"request": {"path": "/shops"}, "primary_key": "id"}
    orders = {
        "request": {"path": "/{{ stream_slice.shop }}/orders"},
        "partitions": {
            "type": "substream",
            "parent": "shops",
            "parent_key": "id",
            "field": "shop",
            "extra_fields": {"name": "name"},
        },
        "incremental": UNTIL,
    }
    loaded = load_streams({"definition": {"base_url": api.url, "streams": {"shops": shops, "orders": orders}}})
    api.answer = lambda asked: [{"id": 1, "name": "old"}, {"id": 2}, {"id": 1, "name": "new"}]
    stream = loaded["orders"]
    read = stream.incremental
    slices = list(read.slices({'{"shop":1}': "2026-03-01T00:00:00.000000Z"}, NOW))
    assert slices[:2] == [
        {"shop": 1, "name": "old", "window_start": "2026-03-01T00:00:00Z", "window_end": "2026-03-10T12:00:01Z"},
        {"shop": 2, "name": None, "window_start": "2026-01-01T00:00:00Z", "window_end": "2026-03-10T12:00:01Z"},
    ]
    # A window that is frozen is a partition of its own; the value belongs to the shop, whatever else it carries.
    assert stream.partition_key(slices[0]) == (
        '{"shop":1,"window_end":"2026-03-10T12:00:01Z","window_start":"2026-03-01T00:00:00Z"}'
    )
    assert read.partition_of(slices[0]) == read.partition_of(slices[2]) == '{"shop":1}'
    # The shop that came twice is read once.
    assert [stream_slice["shop"] for stream_slice in stream.stream_slices()] == [1, 2]


def test_each_page_is_asked_for_with_the_bounds_in_another_process_too(api, make):
    api.answer = lambda asked: {"data": [{"id": 1}], "next": None if "cursor" in asked.query else "b"}
    stream = make(
        incremental={**SINCE, "format": "epoch", "end_as": {"header": "X-Until"}},
        paginator={"type": "cursor", "cursor": {"path": "next"}},
        transformations=[{"type": "add", "fields": {"since": "{{ stream_slice.window_start }}"}}],
    )
    [frozen] = json.loads(json.dumps(list(stream.incremental.slices({}, NOW))))
    first = stream.read_page(frozen, None)
    assert first.records == [{"id": 1, "since": 1767225600}]
    again = pickle.loads(pickle.dumps(stream))
    again.read_page(frozen, first.next.token)
    assert [(asked.query["since"], asked.headers["X-Until"]) for asked in api.asked] == [
        ("1767225600", "1773144001")
    ] * 2
    assert again.incremental.column == CursorColumn("updated_at", "datetime", "epoch")
    assert list(again.incremental.slices({}, NOW)) == [frozen]


def test_numbers_stay_numbers_in_a_body(api, make):
    declared = {**SINCE, "type": "integer", "start": "{{ config.first }}", "send_as": {"json": "filter.version"}}
    stream = make(incremental=declared, request={"method": "POST", "json": {"filter": {"a": 1}}}, config={"first": 7})
    api.answers({"data": []})
    stream.read_page(next(iter(stream.stream_slices())), None)
    assert api.asked[0].json == {"filter": {"a": 1, "version": 7}}


def test_a_keyset_may_move_the_lower_bound_itself(api, make):
    def page(asked):
        first = int(asked.query["since"]) + 1
        return {"data": [{"id": number} for number in range(first, min(first + 2, 6))]}

    api.answer = page
    stream = make(
        incremental={**SINCE, "cursor_field": "id", "type": "integer", "start": 0},
        paginator={"type": "keyset", "field": "id", "send_as": {"query": "since"}},
    )
    [partition] = stream.incremental.slices({"{}": "1"}, NOW)
    assert [record["id"] for record in stream.read_records(partition)] == [2, 3, 4, 5]


class TestWindow:
    """A fixed window of the cursor, which a backfill reads."""

    WINDOW = CursorWindow.parse("2026-02-01/2026-02-11T00:00:00.5Z")

    def bounds(self, stream, window=WINDOW):
        return [tuple(stream_slice.values()) for stream_slice in stream.incremental.window_slices(window)]

    def test_the_bounds_are_those_of_the_window_wherever_they_are_sent(self, make):
        assert self.bounds(make(incremental=SINCE)) == [("2026-02-01T00:00:00Z",)]
        assert self.bounds(make(incremental=UNTIL)) == [("2026-02-01T00:00:00Z", "2026-02-11T00:00:01Z")]
        assert self.bounds(make(incremental=WEEKS)) == [
            ("2026-02-01T00:00:00Z", "2026-02-08T00:00:00Z"),
            ("2026-02-08T00:00:00Z", "2026-02-11T00:00:01Z"),
        ]
        days = {**UNTIL, "format": "%Y-%m-%d"}
        assert self.bounds(make(incremental=days)) == [("2026-02-01", "2026-02-12")]

    def test_a_window_may_begin_before_the_start_and_is_read_with_the_lookback(self, make):
        window = CursorWindow.parse("2020-01-01/2020-01-02")
        exclusive = {**UNTIL, "lookback": "PT1S"}
        assert self.bounds(make(incremental=exclusive), window) == [("2019-12-31T23:59:59Z", "2020-01-02T00:00:00Z")]

    def test_numbers_have_a_lower_bound_alone(self, make):
        stream = make(incremental={**SINCE, "type": "integer", "start": 5})
        assert self.bounds(stream, CursorWindow.parse("2/9007199254740993")) == [(2,)]

    def test_each_partition_has_the_window(self, make):
        stream = make(incremental=SINCE, partitions={"type": "list", "field": "shop", "values": ["a", "b"]})
        assert self.bounds(stream) == [("a", "2026-02-01T00:00:00Z"), ("b", "2026-02-01T00:00:00Z")]

    def test_moments_without_an_offset_are_in_the_zone_of_the_cursor(self):
        column = CursorColumn("at", timezone="Europe/Zurich")
        assert str(CursorWindow.parse("2026-01-01/2026-07-01 06:00", column)) == (
            "2025-12-31T23:00:00.000000Z/2026-07-01T04:00:00.000000Z"
        )

    def test_a_window_whose_clocks_were_set_back_is_asked_for_from_the_earlier_hour(self, make):
        local = {**UNTIL, "format": "%Y-%m-%dT%H:%M:%S", "timezone": "America/New_York"}
        window = CursorWindow.parse("2026-11-01T05:30Z/2026-11-01T12:00Z")
        assert self.bounds(make(incremental=local), window) == [("2026-11-01T00:30:00", "2026-11-01T07:00:00")]

    @pytest.mark.parametrize("length", [timedelta(minutes=20), timedelta(hours=1)])
    @pytest.mark.parametrize("name", ["Europe/Zurich", "Australia/Lord_Howe"])
    def test_each_local_time_is_asked_for_in_the_window_in_which_it_counts(self, make, name, length):
        form, zone = "%Y-%m-%d %H:%M:%S", zone_of(name)
        stream, written = make(incremental={**UNTIL, "format": form, "timezone": name}), TimeFormat(form, zone)
        hour = datetime(2026, *((10, 24, 22) if "Zurich" in name else (4, 4, 13)), tzinfo=timezone.utc)
        # A bound that is rounded up to the second hour is in it, too.
        start = hour - timedelta(seconds=0.5)
        shown = {written.write(start + timedelta(minutes=minute)) for minute in range(300)}
        for number in range(round(timedelta(hours=5) / length)):
            first, end = start + number * length, start + (number + 1) * length
            [(lower, upper)] = self.bounds(stream, CursorWindow(write_moment(first), write_moment(end)))
            count = {text for text in shown if first <= written.read(text) < end}
            assert count == {text for text in count if lower <= text < upper}


class TestReached:
    """How far a sync came, whether or not there were records."""

    def test_a_window_was_read_to_its_end_or_to_where_records_may_still_come(self, make):
        stream = make(incremental={**WEEKS, "settle": "PT15M"})
        slices = list(stream.incremental.slices({}, NOW))
        reached = [stream.incremental.reached(stream_slice, NOW) for stream_slice in slices]
        assert reached[0] == "2026-01-08T00:00:00.000000Z"
        assert reached[-1] == "2026-03-10T11:45:00.250000Z"
        assert stream.incremental.moves_by_steps

    def test_a_window_in_which_all_records_may_still_come_tells_nothing(self, make):
        read = make(incremental=WEEKS).incremental
        assert read.settle == timedelta(minutes=10)
        [only] = read.slices({"{}": write_moment(NOW - timedelta(minutes=5))}, NOW)
        assert read.reached(only, NOW) is None
        # It may be published much later than it was opened, but knows nothing of that time.
        [only] = read.slices({"{}": write_moment(NOW - timedelta(minutes=20))}, NOW)
        assert read.reached(only, NOW) == "2026-03-10T11:50:00.250000Z"
        assert read.reached({**only, "window_end": None}, NOW) == "2026-03-10T11:50:00.250000Z"

    @pytest.mark.parametrize("form", ["epoch", "epoch_ms", "%d.%m.%Y %H:%M", "%Y%jT%I%p", "%b %y"])
    def test_windows_of_any_format_are_read_back(self, make, form):
        step = "P1M" if form == "%b %y" else "P1D"
        read = make(incremental={**UNTIL, "step": step, "format": form, "timezone": "America/New_York"}).incremental
        first = next(iter(read.slices({}, NOW)))
        zone = zone_of("America/New_York")
        end = datetime(2026, 2, 1, tzinfo=zone) if step == "P1M" else datetime(2026, 1, 2, tzinfo=zone)
        assert read.reached(first, NOW) == write_moment(end)

    @pytest.mark.parametrize(
        ("declared", "lower", "upper"),
        [
            (SINCE, "2026-01-01T00:00:00.000000Z", None),
            (UNTIL, "2026-01-01T00:00:00.000000Z", "2026-03-10T12:00:01.000000Z"),
            ({**UNTIL, "format": "epoch"}, "2026-01-01T00:00:00.000000Z", "2026-03-10T12:00:01.000000Z"),
            ({**SINCE, "type": "integer", "start": 7}, "7", None),
            ({**SINCE, "type": "text", "start": "a"}, "a", None),
        ],
    )
    def test_the_bounds_of_a_slice_are_told_as_a_state_writes_values(self, make, declared, lower, upper):
        read = make(incremental=declared).incremental
        [only] = read.slices({}, NOW)
        assert read.bounds_of(only) == (lower, upper)

    @pytest.mark.parametrize("declared", [SINCE, UNTIL, {**SINCE, "type": "integer", "start": 0}])
    def test_without_windows_the_records_alone_tell(self, make, declared):
        read = make(incremental=declared).incremental
        [only] = read.slices({}, NOW)
        assert read.reached(only, NOW) is None
        assert not read.moves_by_steps


class TestDeleted:
    def test_a_record_that_fulfils_the_condition_is_marked_after_the_transformations(self, api, make):
        stream = make(
            primary_key="id",
            incremental={**SINCE, "deleted": "record.gone == config.yes"},
            transformations=[{"type": "rename", "fields": {"deleted": "gone"}}],
            config={"yes": "y"},
        )
        api.answers({"data": [{"id": 1, "deleted": "y"}, {"id": 2}, {"id": 3, "deleted": "n", "_rfr_deleted": True}]})
        # A field of that name that the API sends says nothing.
        assert stream.read_page({"window_start": "x"}, None).records == [
            {"id": 1, "gone": "y", "_rfr_deleted": True},
            {"id": 2},
            {"id": 3, "gone": "n"},
        ]
        assert stream.incremental.marks_deleted
        assert not make(incremental=SINCE).incremental.marks_deleted

    def test_a_field_that_no_record_has_is_warned_of_once(self, api, make, caplog):
        stream = make(primary_key="id", incremental={**SINCE, "deleted": "{{ record.is_delted }}"})
        api.answers({"data": [{"id": 1, "is_deleted": True}]})
        for _ in range(2):
            assert stream.read_page({"window_start": "x"}, None).records == [{"id": 1, "is_deleted": True}]
        check_messages([record.getMessage() for record in caplog.records])

    def test_a_condition_that_fails_names_the_record(self, api, make):
        stream = make(primary_key="id", incremental={**SINCE, "deleted": "record.state > 5"})
        api.answers({"data": [{"id": 1, "state": 7}, {"id": 2}]})
        with raises(Exception):
            stream.read_page({"window_start": "x"}, None)

    def test_a_deleted_parent_has_no_children(self, api):
        parent = {"primary_key": "id", "incremental": {**UNTIL, "deleted": "record.gone"}}
        child = {"partitions": {"type": "substream", "parent": "shops", "parent_key": "id", "field": "shop"}}
        loaded = load_streams({"definition": {"base_url": api.url, "streams": {"shops": parent, "orders": child}}})
        api.answer = lambda asked: [{"id": 1}, {"id": 2, "gone": True}, {"id": 3, "gone": False}]
        assert list(loaded["orders"].stream_slices()) == [{"shop": 1}, {"shop": 3}]
        assert "until" not in api.asked[0].query, "a parent that changes meanwhile would have no children"


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63) + 1, 2**63, -(2**63), 2**70])
def test_an_integer_of_any_length_is_a_bound(make, number):
    first = {**SINCE, "type": "integer", "start": -(2**80)}
    [(bound,)] = bounds(make(incremental=first), str(number))
    assert str(bound) == str(number)
    canonical_json({"since": bound}, field="stream_slices")
    [(start,)] = bounds(make(incremental=first), None)
    assert start == str(-(2**80))


def test_a_state_that_is_none_of_the_cursor_is_refused(make):
    for declared, value in (
        (SINCE, "yesterday"),
        (SINCE, "2026-01-01"),
        ({**SINCE, "type": "integer", "start": 0}, "x"),
    ):
        with raises(SyncStateError):
            bounds(make(incremental=declared), value)
    assert bounds(make(incremental=SINCE), "2026-03-01T01:00:00+01:00") == [("2026-03-01T00:00:00Z",)]


def test_more_windows_than_can_be_kept_are_refused(make, monkeypatch):
    hours = {**UNTIL, "start": "2000-01-01", "step": "PT1H"}
    with raises(SourceDefinitionError):
        bounds(make(incremental=hours))
    # Each partition has few enough, and all of them together have not; one window each is always few enough.
    monkeypatch.setattr(_incremental, "MOST_WINDOWS", 100)
    regions = {"type": "list", "field": "region", "values": [1, 2]}
    with raises(SourceDefinitionError):
        list(make(partitions=regions, incremental={**UNTIL, "step": "P1D"}).incremental.slices({}, NOW))
    many = make(partitions={**regions, "values": list(range(200))}, incremental=UNTIL)
    assert sum(1 for _ in many.incremental.slices({}, NOW)) == 200


def test_a_start_that_is_not_before_the_opening_is_refused(make):
    with raises(SourceDefinitionError):
        bounds(make(incremental={**SINCE, "start": "2026-03-10T12:00:00.25Z"}))


def test_the_fingerprint_knows_which_records_are_asked_for_and_not_how_many_times(make):
    first = make(incremental=WEEKS, primary_key="id").fingerprint()
    same = {"step": "P1D", "lookback": "P2D", "settle": "PT1H"}
    assert make(incremental={**WEEKS, **same}, primary_key="id").fingerprint() == first
    changes: list[dict[str, Any]] = [
        {"start": "2026-01-02"},
        {"cursor_field": "changed_at"},
        {"format": "epoch"},
        {"send_as": {"query": "from"}},
        {"deleted": "record.gone"},
    ]
    for change in changes:
        assert make(incremental={**WEEKS, **change}, primary_key="id").fingerprint() != first
    assert "incremental" not in json.dumps(make().fingerprint())


def mistake(fields, place="incremental", **stream):
    """A mistake in ``incremental``, whose fields are written as in the document."""
    return pytest.param(
        read_yaml(f"{{{fields}}}".encode()), stream, f"streams.a.{place}", id=f"{fields} {stream or ''}"
    )


NUMBERS = "type: integer, start: 0"
LIST = {"type": "list", "field": "window_start", "values": [1]}
WINDOWS = {"type": "date_window", "start": "2026-01-01", "step": "P1D"}
SCHEMA = {"type": "object", "properties": {"id": {}, "update_at": {}}}


@pytest.mark.parametrize(
    ("fields", "stream", "place"),
    [
        mistake("cursor_field: ''", "incremental.cursor_field"),
        mistake("cursor_field: meta.updated_at", "incremental.cursor_field"),
        mistake("type: date", "incremental.type"),
        mistake("cursor: updated_at", "incremental.cursor"),
        mistake("timezone: Mars", "incremental.timezone"),
        mistake("format: '%s'", "incremental.format"),
        mistake("format: '%d.%m.'", "incremental.format"),
        mistake("format: '%Y-%m-%d %M'", "incremental.format"),
        mistake("format: '%Y-%m-%d %I'", "incremental.format"),
        mistake("start: yesterday", "incremental.start"),
        mistake("start: 1", "incremental.start"),
        mistake("start: 1.5", "incremental.start"),
        mistake("type: integer", "incremental.start"),
        mistake("type: integer, start: true", "incremental.start"),
        mistake("send_as: since", "incremental.send_as"),
        mistake("send_as: null", "incremental.send_as"),
        mistake("send_as: {query: ''}", "incremental.send_as.query"),
        mistake("end_as: {header: a b}", "incremental.end_as.header"),
        mistake("end_as: {query: since}", "incremental.end_as"),
        mistake("send_as: {json: range.from}, end_as: {json: range}", "incremental.end_as"),
        mistake("send_as: {header: X-Since}, end_as: {header: x-since}", "incremental.end_as"),
        mistake("send_as: {json: from}, end_as: {form: to}", "incremental.end_as"),
        mistake("step: P1D", "incremental.step"),
        mistake("end_as: {query: until}, step: 1d", "incremental.step"),
        mistake("end_as: {query: until}, step: PT1H, format: '%Y-%m-%d'", "incremental.step"),
        mistake("lookback: PT0S", "incremental.lookback"),
        mistake("lookback: 1h", "incremental.lookback"),
        mistake("settle: P", "incremental.settle"),
        mistake("settle: null", "incremental.settle"),
        mistake("cursor_field: null", "incremental.cursor_field"),
        mistake("cursor_field: [a]", "incremental.cursor_field"),
        mistake("settle: P1M", "incremental.settle"),
        mistake(f"{NUMBERS}, lookback: PT1H", "incremental.lookback"),
        mistake(f"{NUMBERS}, end_as: {{query: until}}", "incremental.end_as"),
        mistake(f"{NUMBERS}, format: iso", "incremental.format"),
        mistake(f"{NUMBERS}, timezone: UTC", "incremental.timezone"),
        mistake("type: text, settle: PT1M", "incremental.settle"),
        mistake("deleted: record.gone"),
        mistake("deleted: record.gone", primary_key=[]),
        mistake("deleted: 'record.gone >'", "incremental.deleted", primary_key="id"),
        mistake("deleted: token", "incremental.deleted", primary_key="id"),
        mistake("start: '{{ record.x }}'", "incremental.start"),
        mistake("", partitions=LIST),
        mistake("", partitions=WINDOWS),
        mistake("", partitions={"type": "product", "of": [WINDOWS]}),
        mistake("", json_schema=SCHEMA),
        mistake("", "request.query", request={"query": {"since": "x"}}),
        mistake("send_as: {json: from}", "request", request={"method": "POST", "form": {"a": "b"}}),
        mistake("send_as: {header: X-Since}", "request.headers", request={"headers": {"x-since": "1"}}),
        mistake(
            "send_as: {json: from}", "incremental.send_as", paginator={"type": "offset", "send_as": {"form": "at"}}
        ),
        mistake("send_as: {query: page}", "incremental.send_as", paginator={"type": "page_number"}),
        mistake(
            "end_as: {query: n}",
            "incremental.end_as",
            paginator={"type": "offset", "page_size": 5, "size_as": {"query": "n"}},
        ),
        mistake(
            "end_as: {query: after}",
            "incremental.end_as",
            paginator={"type": "keyset", "field": "id", "send_as": {"query": "after"}},
        ),
    ],
)
def test_a_mistake_is_found_when_the_document_is_read(fields, stream, place):
    definition = {
        "base_url": "https://api.example.com",
        "streams": {"a": {**stream, "incremental": {**SINCE, **fields}}},
    }
    with raises(SourceDefinitionError) as error:
        whole_definition(definition)
    assert error.value.field == place


def test_a_place_of_the_default_paginator_is_taken_too():
    defaults = {"paginator": {"type": "page_number", "send_as": {"query": "since"}}}
    definition = {"base_url": "https://api.example.com", "defaults": defaults, "streams": {"a": {"incremental": SINCE}}}
    with raises(SourceDefinitionError):
        whole_definition(definition)


@pytest.mark.parametrize("start", [None, "soon", ["2026-01-01"]])
def test_what_the_configuration_gives_is_named_if_it_is_no_start(make, start):
    for kind in ("datetime", "integer", "text") if start != "soon" else ("datetime", "integer"):
        with raises(SourceDefinitionError):
            make(incremental={**SINCE, "type": kind, "start": "{{ config.from }}"}, config={"from": start})


def test_a_window_that_is_listed_under_another_name_is_no_clash(make):
    ends = {"type": "list", "field": "window_end", "values": ["a", "b"]}
    assert len(list(make(partitions=ends, incremental=SINCE).stream_slices())) == 2


def test_an_api_whose_clocks_are_set_back_loses_nothing_in_the_hour_that_comes_twice(make):
    """It shows and compares local times without an offset, and is synced every ten minutes."""
    written = TimeFormat("%Y-%m-%d %H:%M:%S", zone_of("Europe/Zurich"))
    clocks = {"format": "%Y-%m-%d %H:%M:%S", "timezone": "Europe/Zurich"}
    for step in ({}, {"step": "P1D"}):
        read = make(incremental={**UNTIL, **clocks, **step, "start": "2026-10-24"}).incremental
        midnight, value, seen = datetime(2026, 10, 24, 22, tzinfo=timezone.utc), None, set()
        records = [midnight + timedelta(minutes=minute) for minute in range(6 * 60)]
        for tens in range(1, 40):
            opened_at = midnight + timedelta(minutes=10 * tens)
            for window in read.slices({} if value is None else {"{}": value}, opened_at):
                for record in records:
                    if record < opened_at and window["window_start"] <= written.write(record) < window["window_end"]:
                        seen.add(record)
                        value = max(filter(None, (value, write_moment(written.read(written.write(record))))))
        assert seen == set(records)


ZONES = ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
FORMATS = [
    "iso",
    "epoch",
    "epoch_ms",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H%z",
    "%Y-%m-%d",
    "%Y-%m",
]
YEAR = timedelta(days=366)
MOMENTS = st.datetimes(datetime(2001, 1, 1), datetime(2037, 1, 1)).map(lambda at: at.replace(tzinfo=timezone.utc))


@examples(1500)
@given(
    opened_at=MOMENTS,
    age=st.timedeltas(-timedelta(days=2), YEAR) | st.timedeltas(-timedelta(hours=3), timedelta(hours=3)),
    lookback=st.sampled_from([None, "PT1H", "P1D", "P1M"]),
    has_end=st.booleans(),
    form=st.sampled_from(FORMATS),
    name=st.sampled_from(ZONES),
)
def test_all_that_changed_since_the_value_is_asked_for(opened_at, age, lookback, has_end, form, name):
    """The API compares what it shows with the bounds as they are sent, so an hour that comes twice is no gap."""
    zone = zone_of(name)
    written = TimeFormat(form, zone)
    declared = {**SINCE, "start": "2000-01-01", "format": form, "timezone": name}
    declared |= {"lookback": lookback} if lookback else {}
    declared |= {"end_as": {"query": "until"}} if has_end else {}
    stream = build_stream({"base_url": "https://api.example.com", "streams": {"a": {"incremental": declared}}}, "a")
    # The state keeps the value as the API showed it.
    value = written.read(written.write(opened_at - age))
    [slice_] = stream.incremental.slices({"{}": write_moment(value)}, opened_at)
    shown = [written.write(value), written.write(max(value, opened_at - timedelta(microseconds=1)))]

    def order(text):
        """Local times as the API's own clock compares them: without the offset, where it shows none."""
        if written.has_offset:
            return written.read(text)
        return datetime.strptime(text, form)

    lower = order(slice_["window_start"])
    if age > timedelta():
        assert all(lower <= order(text) for text in shown)
    else:
        assert lower <= order(written.write(opened_at))
    if has_end:
        assert order(slice_["window_end"]) > lower
        assert written.read(slice_["window_end"]) >= opened_at or not written.has_offset
