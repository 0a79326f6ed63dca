"""The examples of the pages about sources are what the loader accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_rfr.streams.loader import load_streams
from airflow_provider_rfr.streams.rest.definition import Defaults, SourceDefinition, StreamDefinition

DOCS = Path(__file__).parents[4] / "docs"
NAMES = ("sources", "paging", "rate_limits", "authentication", "windows")
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in NAMES}
BLOCKS = [
    pytest.param(yaml.safe_load(text), id=f"{name}-{number}")
    for name, page in PAGES.items()
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
]
DEFINITIONS = [block for block in BLOCKS if "base_url" in block.values[0]]
CONFIG = {"base_url": "https://api.example.com", "region": "eu"}
SECRETS = {"api_key": "k", "client_id": "c", "client_secret": "s", "login": "l", "password": "p"}


@pytest.mark.parametrize("block", DEFINITIONS)
def test_every_definition_loads(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "orders.json").write_text('{"type": "object"}')
    streams = load_streams({"definition": block, "config": CONFIG, "secrets": SECRETS})
    assert list(streams) == list(block["streams"])


@pytest.mark.parametrize("block", [block for block in BLOCKS if block not in DEFINITIONS])
def test_every_part_fits_into_a_stream(block):
    definition = {"base_url": "https://api.example.com", "streams": {"a": block}}
    load_streams({"definition": definition, "config": CONFIG, "secrets": SECRETS})


def test_each_page_has_examples_and_each_example_is_loaded():
    names = [block.id.partition("-")[0] for block in BLOCKS]
    assert set(names) == set(NAMES)
    assert len(DEFINITIONS) >= 6


@pytest.mark.parametrize("model", [SourceDefinition, StreamDefinition, Defaults])
def test_every_field_is_told(model):
    for name, field in model.model_fields.items():
        assert f"`{field.alias or name}`" in "".join(PAGES.values())
