"""The public API that docs/api_*.md name exists, and packages export exactly what is named."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = "".join((DOCS / f"api_{part}.md").read_text(encoding="utf-8") for part in ("airflow", "python"))
MODULES = re.findall(r"^::: ([\w.]+)(?:\n    options:\n      members: \[(.+)\])?$", TEXT, re.MULTILINE)


def test_each_module_is_named_once() -> None:
    names = [module for module, _ in MODULES]
    assert len(names) == len(set(names)) == TEXT.count("::: ")
    assert "airflow_provider_rfr.operators" in names


@pytest.mark.parametrize(("module", "members"), MODULES)
def test_what_is_named_is_what_the_module_exports(module: str, members: str) -> None:
    """A module without a list has all of its ``__all__`` on the page, or else all that has a docstring."""
    imported = importlib.import_module(module)
    named = set(members.split(", ")) if members else set(getattr(imported, "__all__", ()))
    exported = set(getattr(imported, "__all__", named))
    assert named == exported if hasattr(imported, "__path__") else named <= exported
    assert [name for name in named if not hasattr(imported, name)] == []
