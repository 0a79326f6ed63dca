"""The JSON schema of a definition, for editors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import public_apis_numbers  # noqa: F401 - adds cases
import public_apis_tokens  # noqa: F401 - adds cases
import pytest
from public_api_cases import CASES

from airflow_provider_rfr.documents import read_yaml
from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.streams.rest.definition import SCHEMA_FILE, parse_definition, whole_definition
from scripts.source_schema import schema_text

ROOT = Path(__file__).parents[4]
SCHEMA = json.loads(schema_text())
URL = "https://api.example.com"
PAGES = "\n".join(page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGES, re.DOTALL)
FOLDERS = ("airflow_provider_rfr", "benchmarks", "dags", "demo", "docker", "tests")
FILES = [file.read_text() for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.yaml"))]
DEFINITIONS = [
    read_yaml(text)
    for text in (*FILES, *BLOCKS)
    if re.search(r"^base_url:", text, re.MULTILINE) and re.search(r"^streams:", text, re.MULTILINE)
]


def of_stream(**fields: Any) -> dict[str, Any]:
    return {"base_url": URL, "streams": {"orders": fields}}


def test_the_package_s_file_is_what_the_models_give() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "write it anew: python -m scripts.source_schema"


def test_it_is_a_schema_that_refuses_unknown_fields_everywhere() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert not [name for name, node in SCHEMA["$defs"].items() if node.get("additionalProperties") is not False]
    assert SCHEMA["additionalProperties"] is False
    assert all("description" in node for node in (SCHEMA, *SCHEMA["$defs"].values()))


def test_it_takes_every_definition_of_this_repository() -> None:
    assert read_yaml(SHOP.read_bytes()) in DEFINITIONS
    assert len(DEFINITIONS) >= 3
    for document in DEFINITIONS:
        jsonschema.validate(document, SCHEMA)


def test_it_takes_the_sources_of_public_apis() -> None:
    assert len(CASES) > 20
    for case in CASES.values():
        whole_definition(case.definition(URL))
        jsonschema.validate(case.definition(URL), SCHEMA)


@pytest.mark.parametrize(
    "document",
    [
        {"base_url": URL, "streams": [{"name": "orders", "primary_key": "id"}]},
        {**of_stream(), "x-anchors": {"any": ["thing"]}},
        of_stream(error_handler={"rules": [{"status": 404, "action": "IGNORE"}]}),
        of_stream(error_handler={"rules": [{"status": ["5xx", 404], "action": "IGNORE"}]}),
        of_stream(paginator={"type": "offset", "page_size": "{{ config.page_size }}"}),
        of_stream(request={"method": "POST", "json": {"a": [1]}}, columns={"amount": "decimal(10, 2)"}),
    ],
)
def test_schema_and_models_take_the_same(document: Mapping[str, Any]) -> None:
    jsonschema.validate(document, SCHEMA)
    parse_definition(document)


@pytest.mark.parametrize(
    "document",
    [
        {"streams": {"orders": {}}},
        {"base_url": URL, "streams": {}},
        {"base_url": URL, "streams": []},
        {"base_url": URL, "streams": [{}]},
        {"base_url": URL, "streams": {"a b": {}}},
        {**of_stream(), "version": 2},
        {**of_stream(), "nonsense": 1},
        of_stream(paginater={}),
        of_stream(paginator={"type": "page"}),
        of_stream(paginator={"type": "offset", "page_size": 1.5}),
        of_stream(paginator={"type": "cursor"}),
        of_stream(columns={}),
        of_stream(request={"method": "DELETE"}),
        of_stream(error_handler={"rules": [{"status": {}, "action": "IGNORE"}]}),
    ],
)
def test_schema_and_models_refuse_the_same(document: Mapping[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
    with pytest.raises(SourceDefinitionError):
        parse_definition(document)
