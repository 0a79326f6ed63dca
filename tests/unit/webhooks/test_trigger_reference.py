"""docs/reference/triggers.md has every field of a triggers block, and every parameter of its presets."""

from __future__ import annotations

import re

from airflow_provider_rfr.webhooks.block import Endpoint
from airflow_provider_rfr.webhooks.presets import PRESETS
from scripts.trigger_reference import trigger_fields

TEXT = "\n".join(trigger_fields())
SECTIONS = dict(re.findall(r"^##+ `?([^`\n]+)`?\n((?:(?!#).*\n)*)", TEXT, re.MULTILINE))


def rows(section: str) -> list[str]:
    return re.findall(r"^\| `([\w.]+)` \|", SECTIONS[section], re.MULTILINE)


def test_each_field_and_parameter_has_a_row_in_its_section() -> None:
    assert {name.partition(".")[0] for name in rows("Endpoint")} == set(Endpoint.spellings())
    assert {"retry.maxElapsed", "when.collections", "success.equals", "signing.secrets"} <= set(rows("Endpoint"))
    for name, preset in PRESETS.items():
        assert sorted(rows(name)) == sorted(preset.spellings())


def test_no_cell_has_more_than_two_sentences() -> None:
    cells = [cell for line in TEXT.splitlines() if line.startswith("| `") for cell in line.split(" | ")]
    assert not [cell for cell in cells if cell.count(". ") > 1]
