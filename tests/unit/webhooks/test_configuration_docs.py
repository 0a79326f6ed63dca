"""The pages on webhooks tell every field, variable and preset, and their examples are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_rfr.webhooks.block import Endpoint
from airflow_provider_rfr.webhooks.payloads import template_variables
from airflow_provider_rfr.webhooks.presets import PRESETS
from airflow_provider_rfr.webhooks.validation import check_triggers, placeholder_events

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [(DOCS / name).read_text(encoding="utf-8") for name in ("webhooks.md", "webhooks_configuration.md")]
EXAMPLES = [text for page in PAGES for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
REFERENCE = [(DOCS / name).read_text(encoding="utf-8") for name in ("reference/triggers.md", "reference/events.md")]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_a_block_that_a_dag_would_take(text: str) -> None:
    assert check_triggers(yaml.safe_load(text)).endpoints


TEMPLATES = re.findall(r"```handlebars\n(.*?)```", (DOCS / "webhooks_templates.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_of_the_documentation_is_one_that_a_dag_would_take(template: str) -> None:
    assert check_triggers({"config": [{"url": "https://x.example/", "payloadTemplate": template}]}).endpoints


def test_every_preset_has_an_example() -> None:
    shown = {endpoint.preset for text in EXAMPLES for endpoint in check_triggers(yaml.safe_load(text)).endpoints}
    assert set(PRESETS) <= shown


def test_every_field_parameter_and_variable_is_told() -> None:
    text = "".join(REFERENCE + PAGES)
    names = set(re.findall(r"`([\w.-]+?)(?:\.\w+)?`", text)) | set(re.findall(r"`([\w.-]+)`", text))
    fields = set(Endpoint.spellings())
    parameters = {name for preset in PRESETS.values() for name in preset.spellings()}
    variables = set(
        template_variables(placeholder_events()[0], delivery_id="", attempt=1, trigger_name="", headers={})
    ) - {"headers"}
    assert not (fields | parameters | variables | set(PRESETS)) - names
