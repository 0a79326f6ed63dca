"""How much randomised tests try: a tenth in `make check` and `make test`, everything in `make test-all`."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

FULL = os.environ.get("RFR_TESTS") == "full"


def share(most: int) -> int:
    """How many of *most* tries this run makes."""
    return most if FULL else max(1, most // 10)


def examples(most: int, **options: Any) -> settings:
    """Hypothesis' settings of a test that tries *most* examples where everything runs."""
    return settings(max_examples=share(most), deadline=None, print_blob=True, **options)


def is_randomized(item: pytest.Item) -> bool:
    """Whether a run of everything tries more in this test than another run."""
    if not isinstance(item, pytest.Function):
        return False
    return hasattr(item.obj, "hypothesis") or getattr(item.module, "share", None) is share
