"""docs/troubleshooting.md has every error of the package, and docs/api_*.md every public name."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_provider_rfr.exceptions import RfrError
from scripts.troubleshooting import PAGE, error_classes, page_text
from tests.unit.test_public_api import ROWS

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api_airflow.md").read_text() + (DOCS / "api_python.md").read_text()


def test_the_page_is_what_the_errors_and_their_messages_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "write it anew: python -m scripts.troubleshooting"


def test_no_error_is_missing() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) == {kind.__name__ for kind in error_classes()}
    # Also those that other tests have imported.
    assert {kind.__name__ for kind in RfrError.__subclasses__() if "provider_rfr" in kind.__module__} <= set(headings)


def test_the_api_pages_have_the_public_modules_and_their_names() -> None:
    modules = re.findall(r"^::: ([\w.]+)$", API, re.MULTILINE)
    public = dict(ROWS)
    # The errors are the page's above.
    assert sorted(modules) == sorted(public.keys() - {"airflow_provider_rfr.exceptions"})
    for module, names in re.findall(r"^::: ([\w.]+)\n    options:\n      members: \[(.*)\]$", API, re.MULTILINE):
        assert set(names.split(", ")) == set(re.findall(r"`(\w+)`", public[module]))
