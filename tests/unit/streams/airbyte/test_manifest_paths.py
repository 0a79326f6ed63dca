"""Records are found where ``dpath`` finds them, by a direct look-up."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from manifest_api import Api, needs_cdk, reads_of_the_cdk, rows, shop_with

from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.airbyte._guard import working_for
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.loader import load_stream

pytestmark = needs_cdk

NAMES = ["data", "a", "0", "1", "-1", "a.b", "a/b", "x2", "*", "a*", "?", "[ab]", "**", "A", " "]


def tree(dice: random.Random, depth: int) -> Any:
    kind = dice.choice(["object", "list", "leaf"]) if depth else "leaf"
    if kind == "object":
        return {dice.choice(NAMES): tree(dice, depth - 1) for _ in range(dice.randrange(5))}
    if kind == "list":
        return [tree(dice, depth - 1) for _ in range(dice.randrange(4))]
    return dice.choice([None, 0, 1.5, "data", "", True, [], {}])


def looked_up(module: Any, body: Any, path: list[Any]) -> Any:
    try:
        return module.get(body, path, default=[])
    except Exception as error:
        return type(error)


def test_any_path_leads_where_dpath_finds_it() -> None:
    from airbyte_cdk.sources.declarative.extractors import dpath_extractor

    ours = dpath_extractor.dpath
    seed = random.randrange(10**9)
    dice = random.Random(seed)
    found_something = 0
    for _ in range(3000):
        body = {"data": tree(dice, 4), "a": tree(dice, 3)}
        path = [dice.choice(NAMES) for _ in range(dice.randrange(1, 4))]
        wanted = looked_up(ours.original, body, path)
        with working_for(Redactor([]), ReadContext(), None):
            found = looked_up(ours, body, path)
        assert found == wanted, (seed, body, path)
        assert type(found) is type(wanted), (seed, body, path)
        found_something += wanted not in ([], None)
    assert found_something > 100, seed


def test_a_plain_path_is_not_searched_in_a_read_of_ours_and_is_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from airbyte_cdk.sources.declarative.extractors import dpath_extractor

    asked: list[Any] = []
    original = dpath_extractor.dpath.original.get

    def noted(body: Any, path: list[Any], **more: Any) -> Any:
        asked.append(path)
        return original(body, path, **more)

    monkeypatch.setattr(dpath_extractor.dpath.original, "get", noted)
    with working_for(Redactor([]), ReadContext(), None):
        assert dpath_extractor.dpath.get({"data": [1]}, ["data"], default=[]) == [1]
        assert asked == []
        assert dpath_extractor.dpath.get({"data": [1]}, ["d*"], default=[]) == [1]
    assert dpath_extractor.dpath.get({"data": [1]}, ["data"], default=[]) == [1]
    assert asked == [["d*"], ["data"]]


@pytest.mark.parametrize("path", [["data", "rows"], ["data", "0", "rows"], ["data", "*", "rows"], ["no", "such"]])
def test_records_are_those_of_the_cdk_wherever_they_are(api: Api, path: list[str], tmp_path: Any) -> None:
    bodies = {"rows": {"rows": rows(2)}, "0": [{"rows": rows(2)}], "*": {"x": {"rows": rows(2)}}, "such": None}
    api.answer = lambda *_: (200, {"data": bodies[path[1]]})
    manifest = shop_with("customers")
    selector = {"type": "RecordSelector", "extractor": {"type": "DpathExtractor", "field_path": path}}
    manifest["streams"][0]["retriever"]["record_selector"] = selector
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump(manifest))
    wanted = reads_of_the_cdk(api.source(file))["customers"]
    found = load_stream(api.source(file), "customers").read_page({}, None)
    assert list(found.records) == wanted
    assert bool(wanted) == (path != ["no", "such"])
