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
