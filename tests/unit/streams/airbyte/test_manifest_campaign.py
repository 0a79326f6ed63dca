"""The campaign over manifests sees a difference, and none where there is none."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from manifest_api import MANIFESTS, needs_cdk

from tests.manifests import campaign
from tests.manifests.case import compared

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


def test_requests_of_a_read_that_failed_are_not_counted_to_the_next_stream() -> None:
    sent: list[str] = []

    def taken() -> list[str]:
        requests = list(sent)
        sent.clear()
        return requests

    def read(name: str, most_slices: int) -> Any:
        sent.append(name)
        if name == "broken":
            raise ValueError("no such field")
        return 1, [1, 2]

    stream = SimpleNamespace(paging=SimpleNamespace(by_page=True, why=""))
    oracle: Any = SimpleNamespace(read=read)
    reader: Any = SimpleNamespace(read=lambda name, most: (1, 2, read(name, most)[1]), streams={"next": stream})
    api: Any = SimpleNamespace(taken=taken)
    assert compared(oracle, reader, api, "broken", 2)["outcome"] == "not tested"
    assert compared(oracle, reader, api, "next", 2)["outcome"] == "equal"
