"""docs/reference/troubleshooting.md has every error of the package."""

from __future__ import annotations

import re

from airflow_provider_rfr.exceptions import RfrError
from scripts.troubleshooting import PAGE, error_classes, page_text


def test_the_page_is_what_the_errors_and_their_messages_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "write it anew: python -m scripts.troubleshooting"


def test_no_error_is_missing() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) == {kind.__name__ for kind in error_classes()}
    # Also those that other tests have imported.
    assert {kind.__name__ for kind in RfrError.__subclasses__() if "provider_rfr" in kind.__module__} <= set(headings)
