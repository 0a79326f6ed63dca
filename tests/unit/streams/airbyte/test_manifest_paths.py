"""Records are found where ``dpath`` finds them, by a direct look-up."""

from __future__ import annotations

import random
from typing import Any

import pytest
from manifest_api import Api, needs_cdk, rows, shop_with

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams import NextPage
from airflow_provider_rfr.streams.airbyte._guard import working_for
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import PagedStream

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
            values = looked_up(ours, body, path)
        assert values == wanted, (seed, body, path)
        assert type(values) is type(wanted), (seed, body, path)
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


def selected(path: list[str], **more: Any) -> dict[str, Any]:
    """The shop's manifest with customers at this path."""
    manifest = shop_with("customers")
    extractor = {"type": "DpathExtractor", "field_path": path}
    manifest["streams"][0]["retriever"]["record_selector"] = {"type": "RecordSelector", "extractor": extractor, **more}
    return manifest


def outcome(stream: PagedStream) -> Any:
    try:
        page = stream.read_page({}, None)
    except SourceError as error:
        return str(error)
    return list(page.records), page.next, page.skipped


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        (["data"], {"data": rows(3)}, 3),
        (["data"], {"data": rows(4)}, 4),
        (["data", "rows"], {"data": {"rows": rows(2)}}, 2),
        (["data", "*"], {"data": {"a": {"id": 1}, "b": {"id": 2}}}, 2),
        (["data", "0", "rows"], {"data": [{"rows": rows(2)}]}, 2),
        ([], rows(3), 3),
        ([], {"id": 1}, 1),
        (["data"], {"data": {"id": 1}}, 1),
        (["data"], {"data": {}}, 0),
        (["data"], {"data": []}, 0),
        (["data"], {"data": None}, 0),
        (["no"], {"data": rows(1)}, 0),
        (["data"], b"no JSON", 0),
        (["data"], {"data": [{"id": 1}, 5]}, None),
        (["data"], {"data": [None]}, None),
        (["data"], {"data": "text"}, None),
    ],
)
def test_a_selector_that_only_extracts_gives_what_the_cdks_own_way_gives(
    api: Api, path: list[str], body: Any, count: int | None
) -> None:
    api.answer = lambda *_: (200, body)
    values = []
    for only in (True, False):
        stream = load_stream(api.source(selected(path)), "customers")
        assert stream._interpreted._only_extracts
        vars(stream._interpreted)["_only_extracts"] = only
        values.append(outcome(stream))
    assert values[0] == values[1]
    if count is None:
        assert "a record must be an object, is " in values[0]
    else:
        assert len(values[0][0]) == count
        assert (values[0][1] == NextPage(2)) == (count >= 3)


def test_a_selector_that_does_more_with_records_goes_the_cdks_own_way(api: Api) -> None:
    def extracts(manifest: Any, **more: Any) -> bool:
        only_extracts: bool = load_stream(api.source(manifest, **more), "customers")._interpreted._only_extracts
        return only_extracts

    assert extracts(selected(["data"]))
    assert not extracts(selected(["data"], schema_normalization="Default"))
    assert not extracts(selected(["data"], record_filter={"type": "RecordFilter", "condition": "{{ record.id > 1 }}"}))
    adding = selected(["data"])
    fields = [{"type": "AddedFieldDefinition", "path": ["x"], "value": "1"}]
    adding["streams"][0]["transformations"] = [{"type": "AddFields", "fields": fields}]
    assert not extracts(adding)
    components = (
        "from airbyte_cdk.sources.declarative.extractors import DpathExtractor\nclass Own(DpathExtractor):\n    pass\n"
    )
    custom = {"type": "CustomRecordExtractor", "class_name": "source_declarative_manifest.components.Own"}
    assert not extracts(selected([], extractor={**custom, "field_path": ["data"]}), components=components)
