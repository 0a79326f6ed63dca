"""Windows of time as partitions: they cover everything once, whatever clocks and calendars do."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_api import ids

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.loader import load_streams
from airflow_provider_rfr.streams.moments import zone_of
from airflow_provider_rfr.streams.rest import RestStream
from airflow_provider_rfr.streams.rest._partitions import TimeFormat, WindowLength, bounds
from airflow_provider_rfr.streams.rest.definition import whole_definition
from tests.profile import examples
from tests.unit.messages import raises

DAYS = {"type": "date_window", "start": "2026-02-27", "end": "2026-03-02", "step": "P1D", "format": "%Y-%m-%d"}


def sent(make, **fields):
    """The windows of a router, as pairs of what is sent."""
    slices = make(partitions={"type": "date_window", **fields}).stream_slices()
    return [(window["window_start"], window["window_end"]) for window in slices]


def test_each_window_is_a_partition_and_is_sent_where_it_is_declared(api, make):
    router = {**DAYS, "send_as": {"start": {"query": "since"}, "end": {"header": "X-Until"}}}
    stream = make(partitions=router, request={"path": "/items", "query": {"sort": "id"}})
    slices = list(stream.stream_slices())
    assert [window["window_start"] for window in slices] == ["2026-02-27", "2026-02-28", "2026-03-01"]
    assert stream.partition_key(slices[0]) == '{"window_end":"2026-02-28","window_start":"2026-02-27"}'
    api.answers({"data": [{"id": 1}]})
    stream.read_page(slices[2], None)
    assert api.asked[0].query == {"sort": "id", "since": "2026-03-01"}
    assert api.asked[0].headers["X-Until"] == "2026-03-02"


def test_numbers_stay_numbers_in_a_body_beside_what_the_request_has(api, make):
    router = {**DAYS, "format": "epoch", "send_as": {"start": {"json": "range.from"}, "end": {"json": "range.to"}}}
    stream = make(partitions=router, request={"path": "/q", "method": "POST", "json": {"range": {"field": "at"}}})
    api.answers({"data": []})
    stream.read_page(next(iter(stream.stream_slices())), None)
    assert api.asked[0].json == {"range": {"field": "at", "from": 1772150400, "to": 1772236800}}


def test_a_window_is_sent_in_a_form(api, make):
    stream = make(
        partitions={**DAYS, "send_as": {"start": {"form": "since"}}},
        request={"path": "/q", "method": "POST", "form": {"a": "b"}},
    )
    api.answers({"data": []})
    stream.read_page(next(iter(stream.stream_slices())), None)
    assert api.asked[0].form == {"a": "b", "since": "2026-02-27"}


def test_templates_know_the_window_and_each_page_of_it_is_asked_for_with_it(api, make):
    def page(asked):
        number = asked.page
        return {"data": [{"id": number}] if number < 3 else []}

    api.answer = page
    stream = make(
        partitions={**DAYS, "end": "2026-02-28", "send_as": {"start": {"query": "since"}}},
        paginator={"type": "page_number"},
        transformations=[{"type": "add", "fields": {"day": "{{ stream_slice.window_start }}"}}],
    )
    (only,) = stream.stream_slices()
    assert list(stream.read_records(only)) == [{"id": n, "day": "2026-02-27"} for n in (1, 2)]
    assert {asked.query["since"] for asked in api.asked} == {"2026-02-27"}


def test_windows_combine_with_other_partitions_and_reach_the_children(api):
    router = {
        "type": "product",
        "of": [
            {"type": "list", "field": "region", "values": ["eu", "us"]},
            {**DAYS, "send_as": {"start": {"query": "since"}}},
        ],
    }
    child = {
        "request": {"path": "/lines/{{ stream_slice.order_id }}"},
        "partitions": {
            "type": "substream",
            "parent": "orders",
            "parent_key": "id",
            "field": "order_id",
            "parent_slice_fields": ["window_start"],
        },
    }
    orders = {"request": {"path": "/{{ stream_slice.region }}/orders"}, "partitions": router}
    loaded = load_streams({"definition": {"base_url": api.url, "streams": {"orders": orders, "lines": child}}})
    slices = list(loaded["orders"].stream_slices())
    assert [(window["region"], window["window_start"][-2:]) for window in slices] == [
        (region, day) for region in ("eu", "us") for day in ("27", "28", "01")
    ]
    api.answer = lambda asked: [{"id": f"{asked.path[1:3]}-{asked.query['since'][-2:]}"}]
    children = list(loaded["lines"].stream_slices())
    assert dict(children[4]) == {"order_id": "us-28", "window_start": "2026-02-28"}


@pytest.mark.parametrize(
    "moment",
    [
        "2026-02-27",
        "2026-02-27T00:00:00",
        "2026-02-27 00:00:00+00:00",
        "2026-02-27T01:00:00+01:00",
        "2026-02-27T00:00Z",
    ],
)
def test_start_and_end_come_from_the_configuration_as_airflow_writes_them(make, moment):
    stream = make(
        partitions={**DAYS, "start": "{{ config.from }}", "end": "{{ config.to }}"},
        config={"from": moment, "to": "2026-02-28"},
    )
    assert [window["window_start"] for window in stream.stream_slices()] == ["2026-02-27"]


def test_without_an_end_the_last_window_holds_now(make):
    before = datetime.now(timezone.utc)
    start = (before - timedelta(days=2)).date().isoformat()
    windows = sent(make, start=start, step="P1D")
    after = datetime.now(timezone.utc)
    assert before <= datetime.fromisoformat(windows[-1][1].replace("Z", "+00:00")) <= after + timedelta(seconds=1)
    assert len(windows) == 3
    # A format of days can't show now: the last window is the whole day.
    whole = sent(make, start=start, step="P1D", format="%Y-%m-%d")
    assert datetime.fromisoformat(whole[-1][1]).date() > before.date()


def test_a_window_may_end_in_the_future(make):
    year = datetime.now(timezone.utc).year + 2
    assert len(sent(make, start=f"{year}-01-01", end=f"{year}-01-08", step="P1D")) == 7


def test_an_inclusive_end_is_the_last_value_of_the_format_inside_of_the_window(make):
    windows = {
        "%Y-%m-%d": ("2026-01-01", "2026-01-01"),
        "%Y-%m": ("2026-01", "2026-01"),
        "%Y-%m-%dT%H:%M:%S.%fZ": ("2026-01-01T00:00:00.000000Z", "2026-01-01T23:59:59.999999Z"),
        "iso": ("2026-01-01T00:00:00Z", "2026-01-01T23:59:59Z"),
        "epoch": (1767225600, 1767311999),
        "epoch_ms": (1767225600000, 1767311999999),
    }
    for form, window in windows.items():
        step = "P1M" if form == "%Y-%m" else "P1D"
        assert sent(make, start="2026-01-01", step=step, format=form, end_inclusive=True)[0] == window


def test_months_from_the_31st_end_on_the_last_day_of_shorter_ones(make):
    windows = sent(make, start="2024-01-31", end="2024-05-31", step="P1M", format="%m-%d")
    assert [start for start, _ in windows] == ["01-31", "02-29", "03-31", "04-30"]
    assert windows[-1][1] == "05-31"


def test_a_year_from_a_leap_day(make):
    windows = sent(make, start="2024-02-29", end="2028-02-29", step="P1Y", format="%Y-%m-%d")
    assert [start for start, _ in windows] == ["2024-02-29", "2025-02-28", "2026-02-28", "2027-02-28"]


def test_a_day_at_a_change_of_clocks_is_one_window_and_hours_are_hours(make):
    fields = {"start": "2026-03-29", "end": "2026-03-30", "timezone": "Europe/Zurich"}
    assert sent(make, **fields, step="P1D") == [("2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00")]
    assert len(sent(make, **fields, step="PT1H")) == 23
    back = {**fields, "start": "2026-10-25", "end": "2026-10-26"}
    assert len(sent(make, **back, step="PT1H", format="%Y-%m-%dT%H:%M:%S%z")) == 25
    with raises(SourceDefinitionError):
        sent(make, **back, step="PT1H", format="%Y-%m-%dT%H:%M:%S")


def test_a_day_that_a_calendar_does_not_have_is_no_window(make):
    windows = sent(make, start="2011-12-29", end="2012-01-01", step="P1D", timezone="Pacific/Apia", format="%d")
    assert windows == [("29", "31"), ("31", "01")]


def test_what_the_format_can_not_show_is_included(make):
    fields = {"start": "2026-01-01T06:30:00Z", "end": "2026-01-02T00:00:01Z"}
    assert sent(make, **fields, step="P1D", format="%d") == [("01", "02"), ("02", "03")]
    assert sent(make, **fields, step="PT12H", format="%dT%H") == [("01T06", "01T18"), ("01T18", "02T01")]


def test_thousands_of_windows_are_listed_and_too_many_refused_before_the_first(api, make):
    hours = sent(make, start="2020-01-01", end="2026-01-01", step="PT1H", format="epoch")
    assert len(hours) == len(set(hours)) == 2192 * 24
    with raises(SourceDefinitionError):
        next(iter(make(partitions={**DAYS, "start": "2020-01-01", "step": "PT1M", "format": "iso"}).stream_slices()))
    assert api.asked == []


@pytest.mark.parametrize(("start", "end"), [("2026-01-02", "2026-01-01"), ("2026-01-01", "2026-01-01")])
def test_a_start_that_is_not_before_the_end_is_an_error_that_shows_both(make, start, end):
    with raises(SourceDefinitionError):
        sent(make, start=start, end=end, step="P1D")


@pytest.mark.parametrize(
    "change",
    [
        {"start": "yesterday"},
        {"end": "20260101"},
        {"start": "2026-02-30"},
        {"start": "0001-01-01"},
        {"step": "1d"},
        {"step": "P0D"},
        {"step": "PT"},
        {"step": "PT24H"},
        {"format": "%Y-%m"},
        {"format": "%s"},
        {"format": "date"},
        {"timezone": "Mars"},
        {"timezone": "../etc/passwd"},
        {"send_as": {}},
        {"send_as": {"start": {"query": "a", "json": "b"}}},
        {"until": "x"},
    ],
    ids=str,
)
def test_a_mistake_is_found_when_the_document_is_read(change):
    stream = {"partitions": {**DAYS, **change}}
    with raises(SourceDefinitionError):
        whole_definition({"base_url": "https://api.example.com", "streams": {"a": stream}})


@pytest.mark.parametrize(
    "fields",
    [
        {"query": {"since": "x"}},
        {"method": "POST", "form": {"a": "b"}},
        {"method": "POST", "json": [1]},
    ],
    ids=str,
)
def test_a_place_that_is_taken_is_an_error(make, fields):
    place = {"query": "since"} if "query" in fields else {"json": "since"}
    with raises(SourceDefinitionError):
        make(partitions={**DAYS, "send_as": {"start": place}}, request={"path": "/items", **fields})


def test_what_the_configuration_gives_is_named_if_it_is_no_date(make):
    with raises(SourceDefinitionError):
        make(partitions={**DAYS, "start": "{{ config.from }}"}, config={"from": "None"})


def test_the_windows_do_not_change_a_fingerprint_with_time_and_a_start_does(make):
    open_end = {**DAYS, "start": "{{ config.from }}", "end": None}
    first = make(partitions=open_end, config={"from": "2026-01-01"}).fingerprint()
    assert json.dumps(first) == json.dumps(make(partitions=open_end, config={"from": "2026-01-01"}).fingerprint())
    assert first != make(partitions=open_end, config={"from": "2026-01-02"}).fingerprint()


def test_a_page_is_read_again_in_another_process_with_the_same_window(api, make):
    def page(asked):
        return {"data": [{"id": int(asked.query["since"][-2:])}], "next": None if "cursor" in asked.query else "b"}

    api.answer = page
    stream = make(
        partitions={**DAYS, "send_as": {"start": {"query": "since"}}},
        paginator={"type": "cursor", "cursor": {"path": "next"}},
    )
    stored = json.loads(json.dumps([dict(window) for window in stream.stream_slices()]))
    first = stream.read_page(stored[1], None)
    build, arguments = stream.__reduce__()
    again = build(*arguments)
    assert isinstance(again, RestStream)
    assert ids(again.read_page(stored[1], first.next.token).records) == [28]
    assert api.asked[-1].query == {"since": "2026-02-28", "cursor": "b"}


ZONES = ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2037, 1, 1)).map(lambda at: at.replace(tzinfo=timezone.utc))
FORMATS = ["iso", "epoch", "epoch_ms", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H%z"]
DATES = ["%Y-%m-%d", "%Y-%m", "%Y"]


@examples(2000)
@given(
    start=MOMENTS,
    days=st.floats(0.01, 900),
    months=st.integers(0, 30),
    step_days=st.integers(0, 40),
    seconds=st.sampled_from([0, 0, 3600, 5400, 86_400]),
    form=st.sampled_from([*FORMATS, *DATES]),
    name=st.sampled_from(ZONES),
)
def test_windows_cover_everything_from_start_to_end_and_nothing_twice(
    start, days, months, step_days, seconds, form, name
):
    zone, step, end = zone_of(name), WindowLength(months, step_days, seconds), start + timedelta(days=days)
    if step == WindowLength():
        return
    written = TimeFormat(form, zone)
    first, last = written.floor(start), written.ceil(end)
    assert first <= start < end <= last
    # No further than to the next value of the format.
    assert written.floor(first) == first
    assert last - end <= timedelta(days=366)
    windows = list(bounds(first, last, step, zone))
    assert windows[0][0] == first
    assert windows[-1][1] == last
    assert all(opened < closed for opened, closed in windows)
    assert [opened for opened, _ in windows[1:]] == [closed for _, closed in windows[:-1]]
