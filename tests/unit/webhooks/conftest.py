"""What tests of deliveries have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.webhook_receiver import Post


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)
