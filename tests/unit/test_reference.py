"""docs/reference/ is what the models, commands and declarations give, and leaves none of them out."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_provider_rfr.lake import properties
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
from airflow_provider_rfr.refresh.config import RefreshOptions, parse_config
from airflow_provider_rfr.refresh.merge import MergeCounts
from airflow_provider_rfr.refresh.publish import commit_summary
from airflow_provider_rfr.streams.rest.definition import SCHEMA_FILE
from airflow_provider_rfr.webhooks.payloads import template_variables
from scripts.reference import FOLDER, pages
from scripts.troubleshooting import PAGE as ERRORS
from tests.headers import header_of

PACKAGE = Path(__file__).parents[2] / "airflow_provider_rfr"
PAGES = pages()
DECLARED = (
    *(properties.TABLE, properties.OBJECT, properties.SNAPSHOT, properties.LEDGER),
    *(properties.CATALOG, properties.FILE),
)
NO_PROPERTIES = {
    "rfr.css": "a file of the pages",
    "rfr.js": "a file of the pages",
    "rfr.json": "a mark of Arrow's columns, in memory alone",
    "rfr.mixed": "a mark of Arrow's columns, in memory alone",
    "rfr.local-time": "a mark of Arrow's columns, in memory alone",
}
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_declarations_give(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == PAGES[name], "write it anew: python -m scripts.reference"


def test_the_folder_has_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*PAGES, ERRORS.name}


def test_each_part_of_a_source_has_a_heading_and_all_its_fields() -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    sections = re.split(r"^### ", PAGES["source_yaml.md"], flags=re.MULTILINE)[1:]
    described = [set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) for section in sections]
    for name, part in {**schema["$defs"], "": schema}.items():
        tag = part["properties"].get("type", {}).get("const")
        wanted = set(part["properties"]) - ({"type"} if tag else {"name"} if name == "NamedStream" else set())
        assert wanted in described, name
        assert tag is None or f"`type: {tag}`" in PAGES["source_yaml.md"]
    # All parts but the stream of a list, and the document.
    assert len(sections) == len(schema["$defs"])


def test_each_option_of_a_refresh_is_described() -> None:
    assert set(RefreshOptions.model_fields) <= set(re.findall(r"^\| `(\w+)` \|", PAGES["options.md"], re.MULTILINE))


def test_no_row_lacks_a_description() -> None:
    rows = [line for name, page in PAGES.items() if name != "connection_types.md" for line in page.splitlines()]
    assert not [row for row in rows if re.search(r"\|\s*\|$", row)]


def test_the_variables_of_webhooks_are_those_of_templates() -> None:
    event = CommitEvent(commit_id="1", target="raw.orders", lake="rfr", target_name="orders", run_id="2")
    variables = template_variables(event, delivery_id="3", attempt=1, trigger_name="hook", headers={})
    section = PAGES["events.md"].partition("## Webhook events")[2].partition("## Asset events")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(variables)


def test_every_property_that_the_package_names_is_declared() -> None:
    declared = [name for names in DECLARED for name in names]
    for path in PACKAGE.rglob("*.py"):
        if path.name == "properties.py":
            continue
        for name in re.findall(r'"(rfr\.[a-z.-]+)', path.read_text(encoding="utf-8")):
            assert name in NO_PROPERTIES or any(known.startswith(name) for known in declared), (path, name)


def test_the_summaries_of_publishes_are_declared() -> None:
    config = parse_config(
        {
            "source": {"class": "shop:Shop"},
            "streams": ["orders"],
            "target": "raw.{stream}",
            "lake": {"properties": {"uri": "sqlite://"}},
        }
    )
    binding = Binding("raw.orders", "orders", 10, 99)
    summary = commit_summary("ledger", header_of(generation=4, epoch=2), config, binding, (NOON, NOON), {})
    counts = {f"rfr.{name.replace('_', '-')}" for name in asdict(MergeCounts())}
    assert (set(summary) | counts) <= set(properties.SNAPSHOT)


def test_the_summary_of_a_ledger_is_declared() -> None:
    header = header_of(generation=4, epoch=2)
    names = {f"rfr.{field.name.replace('_', '-')}" for field in fields(header)}
    assert names | {"rfr.format"} == set(properties.LEDGER)
    assert set(header.to_summary()) <= set(properties.LEDGER)
