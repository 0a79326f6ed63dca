from __future__ import annotations

from collections.abc import Iterator

import pytest
from manifest_api import Api


@pytest.fixture
def api() -> Iterator[Api]:
    found = Api()
    yield found
    found.close()
