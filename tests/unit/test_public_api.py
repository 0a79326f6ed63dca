"""The public API that docs/modules.md lists exists, and packages export exactly what is listed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "modules.md").read_text(encoding="utf-8")
SECTION = TEXT.split("## Public API")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `((?:airflow_provider|pyspark)_rfr[\w.]*)` \| (.+) \|$", SECTION, re.MULTILINE)


def test_the_section_has_rows() -> None:
    assert "airflow_provider_rfr.operators" in dict(ROWS)


@pytest.mark.parametrize(("module", "text"), ROWS)
def test_what_is_listed_is_what_the_module_exports(module: str, text: str) -> None:
    imported = importlib.import_module(module)
    listed = set(re.findall(r"`(\w+)`", text))
    exported = set(getattr(imported, "__all__", listed))
    if listed == {"__all__"}:
        listed = exported
    assert listed == exported if hasattr(imported, "__path__") else listed <= exported
    assert [name for name in listed if not hasattr(imported, name)] == []
