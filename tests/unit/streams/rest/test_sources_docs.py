"""The examples of docs/sources.md are what the loader accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_rfr.streams.loader import load_streams
from airflow_provider_rfr.streams.rest.definition import Defaults, SourceDefinition, StreamDefinition

PAGE = (Path(__file__).parents[4] / "docs" / "sources.md").read_text()
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
CONFIG = {"base_url": "https://api.example.com", "region": "eu"}
SECRETS = {"api_key": "k", "client_id": "c", "client_secret": "s"}


@pytest.mark.parametrize("block", [block for block in BLOCKS if "base_url" in block])
def test_every_definition_loads(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "orders.json").write_text('{"type": "object"}')
    streams = load_streams({"definition": block, "config": CONFIG, "secrets": SECRETS})
    assert list(streams) == list(block["streams"])


@pytest.mark.parametrize("block", [block for block in BLOCKS if "base_url" not in block and "source" not in block])
def test_every_part_fits_into_a_stream(block):
    load_streams({"definition": {"base_url": "https://api.example.com", "streams": {"a": block}}})


@pytest.mark.parametrize("model", [SourceDefinition, StreamDefinition, Defaults])
def test_every_field_is_told(model):
    for name, field in model.model_fields.items():
        assert f"`{field.alias or name}`" in PAGE
