"""Incremental syncs by manifests of Airbyte: rows and state as the CDK's own read of the same API leaves them."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, RefreshFailedError, SyncStateError
from airflow_provider_rfr.lake.sync_state import read_state, write_state
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import as_paged
from tests.unit.messages import raises
from tests.unit.refresh.changing_api import (
    BY_STEPS,
    CURSORS,
    UNASKED,
    ChangingApi,
    children_of,
    datetime_cursor,
    manifest_of,
    moment,
    stream_of,
)
from tests.unit.refresh.in_driver import TABLE, SyncedTable

pytest.importorskip("airbyte_cdk")
# Each syncs several times, and lets the CDK read the same: half a minute.
pytestmark = pytest.mark.test

SHOPS = ("a", "b", "c")


@pytest.fixture
def api() -> Iterator[ChangingApi]:
    server = ChangingApi()
    yield server
    server.close()


class Synced(SyncedTable):
    """A table that is synced by a manifest, beside a model that the CDK's own read keeps.

    :ivar model: the rows that the CDK has read, by id
    :ivar state: of the CDK's own read
    """

    def __init__(self, folder: Path, api: ChangingApi, stream: Mapping[str, Any]) -> None:
        super().__init__(folder)
        self.api = api
        self.manifest = manifest_of(stream)
        self.model: dict[str, dict[str, Any]] = {}
        self.state: dict[str, Any] | None = None

    def sync(self, end: str, mode: str = "merge", full: bool = False) -> RefreshFigures:
        """Sync the table; let the CDK read the same, and compare rows, state and requests."""
        self.api.taken()
        figures = self.ours(end, mode, full)
        asked = self.api.taken()
        read, self.state = self.read_by_the_cdk(end, None if full else self.state)
        assert asked == self.api.taken()
        if full:
            self.model.clear()
        self.model.update({str(row["id"]): row for row in read})
        names = ("id", "updated_at", "seconds", "value")
        rows = self.table.scan(selected_fields=names).to_arrow().to_pylist()
        assert {row["id"]: row for row in rows} == {key: {**row, "id": key} for key, row in self.model.items()}
        assert len(rows) == len(self.model)
        kept = read_state(self.table)
        assert kept is not None and kept.of_source is not None
        assert without_duration(kept.of_source) == without_duration(self.state)
        if "lookback_window" in kept.of_source:
            # New partitions are read from that much earlier; it is how long the sync took.
            assert self.state is not None and kept.of_source["lookback_window"] >= 1
            self.state["lookback_window"] = kept.of_source["lookback_window"]
        return figures

    @property
    def values(self) -> dict[str, str]:
        """Return the value of each row, by id."""
        rows = self.rows()
        assert len(rows) == len(dict(rows))
        return dict(rows)

    def ours(self, end: str, mode: str = "merge", full: bool = False) -> RefreshFigures:
        return self.run(
            {"manifest": copy.deepcopy(self.manifest), "config": {"url": self.api.url, "end": end}},
            sync="full" if full else "incremental",
            options={"mode": "replace" if full else mode, "max_shrink": None, "allow_empty": True},
        )

    def read_by_the_cdk(
        self, end: str, state: Mapping[str, Any] | None
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Read by the CDK's own concurrent source; return records and the last state."""
        from airbyte_cdk.models import (
            AirbyteStateBlob,
            AirbyteStateMessage,
            AirbyteStateType,
            AirbyteStreamState,
            ConfiguredAirbyteCatalogSerializer,
            StreamDescriptor,
        )
        from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource

        stream = {"name": "orders", "json_schema": {}, "supported_sync_modes": ["full_refresh", "incremental"]}
        modes = {"sync_mode": "incremental", "destination_sync_mode": "append"}
        catalog = ConfiguredAirbyteCatalogSerializer.load({"streams": [{"stream": stream, **modes}]})
        blob = None if state is None else AirbyteStateBlob(copy.deepcopy(dict(state)))
        message = AirbyteStateMessage(AirbyteStateType.STREAM, AirbyteStreamState(StreamDescriptor("orders"), blob))
        states = [] if state is None else [message]
        config = {"url": self.api.url, "end": end}
        source = ConcurrentDeclarativeSource(
            catalog=None, config=config, state=states, source_config=copy.deepcopy(self.manifest)
        )
        source._constructor._disable_cache = True
        records, last = [], None
        for item in source.read(logging.getLogger("airbyte"), config, catalog, states):
            if item.type.name == "RECORD":
                records.append(dict(item.record.data))
            if item.type.name == "STATE":
                last = json.loads(json.dumps(item.state.stream.stream_state.__dict__, default=str))
        return records, last


def without_duration(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """The state without the seconds that its sync took."""
    state = dict(state or {})
    state.pop("lookback_window", None)
    if "states" in state:
        state["states"] = sorted(state["states"], key=lambda part: json.dumps(part, sort_keys=True))
    return state


@pytest.mark.parametrize("cursor", CURSORS)
def test_two_syncs_leave_rows_and_state_of_the_cdk(cursor: str, api: ChangingApi, tmp_path: Path) -> None:
    api.newest_first = cursor == "a feed"
    api.change("/orders", range(23), 0)
    synced = Synced(tmp_path, api, stream_of("/orders", CURSORS[cursor]))
    synced.sync(moment(200))
    api.change("/orders", [3, 4, *range(30, 38)], 240)
    figures = synced.sync(moment(400))
    assert figures.changes is not None
    assert (figures.changes["inserted"], figures.changes["updated"]) == (8, 2)
    synced.sync(moment(500))


def filled(api: ChangingApi) -> None:
    """Fill the API with parents, and with children of each."""
    api.change("/shops", SHOPS, 0)
    for place, shop in enumerate(SHOPS):
        api.change(f"/shops/{shop}", [f"{shop}{number}" for number in range(7)], 10 * place)


SUBSTREAMS = {
    "all parents": children_of(stream_of("/shops", None, "shops"), datetime_cursor()),
    "by steps": children_of(stream_of("/shops", None, "shops"), datetime_cursor(**BY_STEPS)),
    "dropped by the manifest": children_of(
        stream_of("/shops", None, "shops"), datetime_cursor(**UNASKED, is_client_side_incremental=True)
    ),
    "a feed": children_of(stream_of("/shops", None, "shops"), datetime_cursor(**UNASKED, is_data_feed=True)),
    "parents that changed": children_of(
        stream_of("/shops", datetime_cursor(), "shops"), datetime_cursor(), incremental_dependency=True
    ),
    "one state for all": children_of(stream_of("/shops", None, "shops"), datetime_cursor(global_substream_cursor=True)),
    "listed": stream_of(
        "/shops/{{ stream_partition.shop }}",
        datetime_cursor(),
        partition_router={"type": "ListPartitionRouter", "values": list(SHOPS), "cursor_field": "shop"},
    ),
}


@pytest.mark.parametrize("parents", SUBSTREAMS)
def test_each_partition_has_its_own_state_as_with_the_cdk(parents: str, api: ChangingApi, tmp_path: Path) -> None:
    api.newest_first = parents == "a feed"
    filled(api)
    synced = Synced(tmp_path, api, SUBSTREAMS[parents])
    synced.sync(moment(200))
    api.change("/shops", ["c", "d"], 210)
    api.change("/shops/a", ["a1", "a9"], 220)
    api.change("/shops/c", ["c1", "c9"], 230)
    api.change("/shops/d", ["d1"], 5000)
    synced.sync(moment(6000))
    synced.sync(moment(6001))


@pytest.mark.parametrize("parents", SUBSTREAMS)
@pytest.mark.parametrize("cursor", [True, False])
def test_partitions_that_are_listed_again_are_the_same(parents: str, cursor: bool, api: ChangingApi) -> None:
    """A run that waits for another one may list them twice."""
    filled(api)
    definition = copy.deepcopy(dict(SUBSTREAMS[parents]))
    if not cursor:
        del definition["incremental_sync"]
    source = {"manifest": manifest_of(definition), "config": {"url": api.url, "end": moment(200)}}
    stream = as_paged(load_stream(source, definition["name"]))
    first, second = ([json.dumps(part["partition"]) for part in stream.stream_slices()] for _ in range(2))
    assert first == second
    assert len(first) >= len(SHOPS)


IGNORING = {
    "type": "DefaultErrorHandler",
    "response_filters": [{"type": "HttpResponseFilter", "http_codes": [403], "action": "IGNORE"}],
}


@pytest.mark.parametrize(
    ("stream", "path"),
    [
        *(
            pytest.param(stream_of("/orders", CURSORS[name]), "/orders", id=name)
            for name in ("since a value", "by steps")
        ),
        *(
            pytest.param(SUBSTREAMS[name], "/shops/b", id=f"partitions, {name}")
            for name in ("all parents", "by steps", "one state for all", "listed")
        ),
    ],
)
def test_a_slice_of_which_the_manifest_ignores_a_page_is_asked_for_again(
    stream: dict[str, Any], path: str, api: ChangingApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.newest_first = True
    filled(api)
    api.change("/orders", range(12), 0)
    stream = copy.deepcopy(stream)
    stream["retriever"]["requester"]["error_handler"] = IGNORING
    synced = Synced(tmp_path, api, stream)
    for start in (0, 300):
        api.change(path, [f"n{start + number}" for number in range(7)], start)
        api.refused = {(path, "1")}
        assert synced.ours(moment(start + 100)).pages_skipped
        assert "stays, because pages" in caplog.text
        caplog.clear()
        api.refused.clear()
        synced.ours(moment(start + 200))
        paths = ("/orders",) if path == "/orders" else [f"/shops/{shop}" for shop in SHOPS]
        expected = {str(key) for path in paths for key in api.collections[path]}
        assert set(synced.table.scan().to_arrow()["id"].to_pylist()) == expected
        assert "stays" not in caplog.text


def test_children_of_parents_that_did_not_change_are_not_asked_for(api: ChangingApi, tmp_path: Path) -> None:
    filled(api)
    synced = Synced(tmp_path, api, SUBSTREAMS["parents that changed"])
    synced.sync(moment(200))
    api.change("/shops", ["b"], 300)
    api.change("/shops/b", ["b1"], 301)
    api.taken()
    synced.ours(moment(400))
    assert {path.partition("?")[0] for path in api.taken()} == {"/shops", "/shops/b", "/shops/c"}
    kept = read_state(synced.table)
    assert kept is not None and kept.of_source is not None
    assert kept.of_source["parent_state"] == {"shops": {"updated_at": moment(300)}}


def test_a_child_that_fails_leaves_the_state_of_its_parents(api: ChangingApi, tmp_path: Path) -> None:
    filled(api)
    synced = Synced(tmp_path, api, SUBSTREAMS["parents that changed"])
    synced.sync(moment(200))
    rows, before = synced.values, read_state(synced.table)
    api.change("/shops", ["a", "b"], 300)
    for shop in "ab":
        api.change(f"/shops/{shop}", [f"{shop}1"], 301)
    api.broken = {"/shops/b"}
    with pytest.raises(RefreshFailedError, match="400"):
        synced.ours(moment(400))
    assert (synced.values, read_state(synced.table)) == (rows, before)
    api.broken.clear()
    api.taken()
    synced.ours(moment(400))
    assert {path.partition("?")[0] for path in api.taken()} == {"/shops/b"}
    assert synced.values == {**rows, "a1": moment(301), "b1": moment(301)}
    kept = read_state(synced.table)
    assert kept is not None and kept.of_source is not None
    assert kept.of_source["parent_state"] == {"shops": {"updated_at": moment(301)}}
    _, state = synced.read_by_the_cdk(moment(400), synced.state)
    assert without_duration(kept.of_source) == without_duration(state)


def test_above_the_limit_of_partitions_there_is_one_state_as_with_the_cdk(
    api: ChangingApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airbyte_cdk.sources.declarative.incremental.concurrent_partition_cursor import ConcurrentPerPartitionCursor

    monkeypatch.setattr(ConcurrentPerPartitionCursor, "SWITCH_TO_GLOBAL_LIMIT", 3)
    filled(api)
    synced = Synced(tmp_path, api, SUBSTREAMS["all parents"])
    synced.sync(moment(200))
    assert synced.state is not None
    assert not synced.state["use_global_cursor"]
    api.change("/shops", ["d", "e"], 210)
    api.change("/shops/a", ["a1", "a9"], 220)
    synced.sync(moment(300))
    assert synced.state["use_global_cursor"]
    api.change("/shops/b", ["b1"], 310)
    synced.sync(moment(400))


def test_of_two_definitions_of_a_stream_the_state_decides(api: ChangingApi, tmp_path: Path) -> None:
    api.change("/orders", range(12), 0)
    api.change("/changes", range(3), 20)
    delegating = {
        "type": "StateDelegatingStream",
        "name": "orders",
        "full_refresh_stream": stream_of("/orders", datetime_cursor(**UNASKED)),
        "incremental_stream": stream_of("/changes", datetime_cursor()),
    }
    synced = Synced(tmp_path, api, delegating)
    synced.sync(moment(200))
    assert len(synced.model) == 12
    api.change("/changes", [1, 50], 210)
    synced.sync(moment(300))
    assert len(synced.model) == 13
    synced.sync(moment(400), full=True)


def ordered(cursor: Mapping[str, Any]) -> dict[str, Any]:
    """A stream whose records are in reports, which are ordered, waited for and downloaded."""

    def requester(path: str, **more: Any) -> dict[str, Any]:
        return {"type": "HttpRequester", "url_base": "{{ config['url'] }}", "path": path, **more}

    def field(*path: str) -> dict[str, Any]:
        return {"type": "DpathExtractor", "field_path": ["data", *path]}

    window = {"since": "{{ stream_interval.start_time }}", "until": "{{ stream_interval.end_time }}"}
    statuses = {"running": ["running"], "completed": ["done"], "failed": ["failed"], "timeout": ["late"]}
    stream = stream_of("/orders", cursor)
    stream["retriever"] = {
        "type": "AsyncRetriever",
        "creation_requester": requester("/jobs"),
        "polling_requester": requester("/status"),
        "status_extractor": field("*", "value"),
        "status_mapping": {"type": "AsyncJobStatusMap", **statuses},
        "download_target_extractor": field("*", "target"),
        "download_requester": requester("{{ download_target }}", request_parameters=window),
        "download_extractor": field(),
        "record_selector": {"type": "RecordSelector", "extractor": field()},
        "partition_router": {"type": "ListPartitionRouter", "values": ["a"], "cursor_field": "shop"},
    }
    return stream


@pytest.mark.full
def test_reports_that_are_ordered_and_downloaded_are_synced_as_by_the_cdk(api: ChangingApi, tmp_path: Path) -> None:
    api.change("/status", [1], 0, value="done", target="/orders")
    api.change("/orders", range(4), 0)
    synced = Synced(tmp_path, api, ordered(datetime_cursor(**{**BY_STEPS, "step": "P30D"})))
    synced.sync(moment(200))
    api.change("/orders", [3, 9], 240)
    figures = synced.sync(moment(400))
    assert figures.changes is not None
    assert (figures.changes["inserted"], figures.changes["updated"]) == (1, 1)


def test_without_a_key_versions_are_appended(api: ChangingApi, tmp_path: Path) -> None:
    stream = stream_of("/orders", datetime_cursor())
    del stream["primary_key"]
    api.change("/orders", range(3), 0)
    synced = Synced(tmp_path, api, stream)
    synced.sync(moment(100), "append")
    api.change("/orders", [1], 50)
    synced.ours(moment(200), "append")
    rows = synced.table.scan(selected_fields=("id", "value")).to_arrow().to_pylist()
    assert sorted((row["id"], row["value"]) for row in rows) == [
        ("0", moment(0)),
        ("1", moment(1)),
        ("1", moment(50)),
        ("2", moment(2)),
    ]


@pytest.mark.parametrize("cursor", [None, {"type": "IncrementingCountCursor", "cursor_field": "seconds"}])
def test_a_stream_without_a_datetime_cursor_is_refused_before_anything_is_asked(
    cursor: Any, api: ChangingApi, tmp_path: Path
) -> None:
    synced = Synced(tmp_path, api, stream_of("/orders", cursor))
    with raises(ConfigurationError) as refused:
        synced.ours(moment(100))
    assert refused.value.field == "streams.orders.incremental"
    assert not api.asked


def test_another_cursor_in_the_manifest_asks_for_a_full_refresh(api: ChangingApi, tmp_path: Path) -> None:
    api.change("/orders", range(3), 0)
    synced = Synced(tmp_path, api, stream_of("/orders", datetime_cursor()))
    synced.sync(moment(100))
    synced.manifest = manifest_of(stream_of("/orders", CURSORS["by numbers"]))
    with raises(SyncStateError):
        synced.ours(moment(200))
    synced.sync(moment(200), full=True)


def test_a_state_that_the_cdk_can_not_read_is_an_error_of_the_state(api: ChangingApi, tmp_path: Path) -> None:
    api.change("/orders", range(3), 0)
    synced = Synced(tmp_path, api, stream_of("/orders", datetime_cursor()))
    synced.sync(moment(100))
    kept = read_state(synced.table)
    assert kept is not None
    write_state(synced.catalog, TABLE, replace(kept, of_source={"updated_at": "soon"}))
    with raises(SyncStateError):
        synced.ours(moment(200))
    write_state(synced.catalog, TABLE, kept)
    synced.ours(moment(200))


def test_a_sync_without_slices_asks_for_nothing_and_leaves_the_state(api: ChangingApi, tmp_path: Path) -> None:
    api.change("/orders", range(3), 100)
    synced = Synced(tmp_path, api, stream_of("/orders", CURSORS["by steps"]))
    synced.sync(moment(200))
    synced.sync(moment(10))
    synced.sync(moment(300))


def test_a_cursor_that_the_schema_lacks_becomes_a_column(api: ChangingApi, tmp_path: Path) -> None:
    stream = stream_of("/orders", datetime_cursor())
    del stream["schema_loader"]["schema"]["properties"]["updated_at"]
    api.change("/orders", range(3), 0)
    synced = Synced(tmp_path, api, stream)
    synced.sync(moment(100))
    api.change("/orders", [1], 50)
    synced.sync(moment(200))


@pytest.mark.parametrize("form", ["plain", "slices"])
def test_a_state_that_has_not_come_yet_is_refused(form: str, api: ChangingApi, tmp_path: Path) -> None:
    synced = Synced(tmp_path, api, stream_of("/orders", datetime_cursor()))
    api.change("/orders", ["a"], 0)
    synced.ours(moment(5))
    state = read_state(synced.table)
    assert state is not None
    ahead = "2900-01-01T00:00:00Z"
    slices = {"state_type": "date-range", "slices": [{"start": moment(0), "end": ahead}]}
    future = {"updated_at": ahead} if form == "plain" else slices
    write_state(synced.catalog, TABLE, replace(state, of_source=future))
    with pytest.raises(SyncStateError, match="not come yet"):
        synced.ours(moment(9))


def test_a_value_in_the_future_counts_as_the_opening_of_the_sync(api: ChangingApi, tmp_path: Path) -> None:
    api.change("/orders", [1], 0)
    api.change("/orders", [2], 24 * 365 * 100)
    synced = Synced(tmp_path, api, stream_of("/orders", datetime_cursor()))
    synced.ours(moment(100))
    kept = read_state(synced.table)
    assert kept is not None and kept.of_source is not None
    value = datetime.fromisoformat(kept.of_source["updated_at"].replace("Z", "+00:00"))
    assert value <= datetime.now(timezone.utc)


@pytest.mark.parametrize("field", ["nowhere", "flag"])
def test_a_cursor_that_no_record_has_ends_a_sync_and_not_a_full_refresh(
    field: str, api: ChangingApi, tmp_path: Path
) -> None:
    stream = stream_of("/orders", datetime_cursor(cursor_field=field))
    stream["schema_loader"]["schema"]["properties"] = {}
    api.change("/orders", range(3), 0, flag=True)
    synced = Synced(tmp_path, api, stream)
    with raises(ConfigurationError):
        synced.ours(moment(100))
    synced.ours(moment(100), full=True)
    table = synced.table
    assert table.scan().to_arrow().num_rows == 3
    assert read_state(table) is None
