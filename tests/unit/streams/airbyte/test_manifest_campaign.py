"""The campaign over manifests sees a difference, and none where there is none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from manifest_api import MANIFESTS, needs_cdk

from tests.manifests import campaign
from tests.manifests.case import compared
from tests.unit.refresh.changing_api import CURSORS, children_of, manifest_of, stream_of

pytestmark = needs_cdk


def test_every_stream_of_the_shop_is_built_equal_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main([str(MANIFESTS), "--only", "shop"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["builds"] == {"manifests": 1, "of_those_that_the_cdk_builds": 1, "of_all": 1}
    assert (summary["equal"]["streams"], summary["resumed"]["streams"], summary["different"]) == (5, 5, {})


@pytest.mark.parametrize(
    ("ours", "requests", "outcome"),
    [
        ((1, 2, [1, 2]), [["a"], ["a"]], "equal"),
        ((1, 2, [2, 1]), [["a"], ["a"]], "different"),
        ((1, 2, [1]), [["a"], ["a"]], "different"),
        ((2, 2, [1, 2]), [["a"], ["a"]], "different"),
        ((1, 2, [1, 2]), [["a"], ["a", "a"]], "different"),
        ((1, 2, [1, 2]), [["a"], ["b"]], "different"),
    ],
)
def test_other_records_slices_or_requests_are_different(ours: Any, requests: list[list[str]], outcome: str) -> None:
    stream = SimpleNamespace(paging=SimpleNamespace(by_page=True, why=""))
    reader: Any = SimpleNamespace(read=lambda *_: ours, streams={"x": stream})
    oracle: Any = SimpleNamespace(read=lambda *_: (1, [1, 2]))
    taken = iter([[], *requests])
    api: Any = SimpleNamespace(taken=lambda: next(taken))
    assert compared(oracle, reader, api, "x", 2)["outcome"] == outcome


@pytest.mark.test
def test_two_syncs_of_a_stream_are_equal_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main([str(MANIFESTS), "--only", "shop", "--incremental"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["equal"]["streams"], summary["resumed"]["streams"], summary["streams"]) == (1, 1, 1)


PAGINGS: dict[str, dict[str, Any]] = {
    "numbers": {"type": "PageIncrement", "page_size": 5},
    "offsets": {"type": "OffsetIncrement", "page_size": 5},
    "links": {
        "type": "CursorPagination",
        "cursor_value": "{{ response['next'] }}",
        "stop_condition": "{{ not response['next'] }}",
    },
}


def streams_of_every_kind() -> list[dict[str, Any]]:
    """A stream for each cursor, partitions and paging."""
    streams = []
    since = CURSORS["since a value"]
    for cursor in CURSORS.values():
        start = {"type": "MinMaxDatetime", "datetime": "2025-12-20T00:00:00Z", "datetime_format": "%Y-%m-%dT%H:%M:%SZ"}
        own = {**cursor, "start_datetime": start}
        parent, shops = stream_of("/shops", None, "shops"), {"type": "ListPartitionRouter", "values": ["a", "b"]}
        incremental = stream_of("/shops", own, "shops")
        streams += [
            stream_of("/orders", own),
            children_of(parent, own),
            children_of(incremental, own, incremental_dependency=True),
            # Not by steps: of partitions that are listed once for each step, the CDK reads some again.
            children_of(children_of(incremental, since), since, incremental_dependency=True),
            children_of(parent, {**own, "global_substream_cursor": True}),
            stream_of("/{{ stream_partition.of }}", own, partition_router={**shops, "cursor_field": "of"}),
        ]
    kinds = []
    for number, stream in enumerate(streams):
        kinds.append({**copy.deepcopy(stream), "name": f"orders_{number}"})
        # Each kind of partitions with each paging.
        paging = list(PAGINGS.values())[(number + number // 6) % 3]
        kinds[-1]["retriever"]["paginator"]["pagination_strategy"] = paging
    return kinds


@pytest.mark.full
def test_two_syncs_of_every_kind_of_cursor_are_equal_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = streams_of_every_kind()
    fields = {"url": {"type": "string", "default": "https://made-up.example"}}
    fields["end"] = {"type": "string", "default": "2026-01-04T00:00:00Z"}
    for number in range(0, len(streams), 9):
        manifest = manifest_of(*streams[number : number + 9])
        manifest["spec"]["connection_specification"]["properties"] = fields
        (tmp_path / f"kinds-{number}.yaml").write_text(yaml.safe_dump(manifest))
    code, output = campaign.main([str(tmp_path), "--incremental", "--deadline", "3000"]), capsys.readouterr().out
    assert code == 0, output[-5000:]
    summary = json.loads(output.splitlines()[-1])
    counts = [summary["streams"], summary["equal"]["streams"], summary["resumed"]["streams"]]
    assert counts == 3 * [len(streams)], summary
