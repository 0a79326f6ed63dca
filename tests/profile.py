"""How much is tried by tests that try again and again: all of it in `make test-all`, a part in any other run."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

FULL = os.environ.get("RFR_TESTS") == "full"


def share(most: int, *, least: int = 1) -> int:
    """How many of *most* tries this run makes: a tenth where not everything runs, but *least* in any case."""
    return most if FULL else max(least, most // 10)


def examples(most: int, **options: Any) -> settings:
    """Hypothesis' settings of a test that tries *most* examples where everything runs."""
    return settings(max_examples=share(most), deadline=None, print_blob=True, **options)
