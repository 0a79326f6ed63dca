from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli import calls
from tests.unit.cli.calls import Printed, Rfr


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Rfr:
    """Calls ``airflow rfr ...``, compares the exit code with ``code``, and returns what was printed."""

    def call(*arguments: Any, code: int = 0) -> Printed:
        capsys.readouterr()
        result = calls.rfr(*arguments)
        printed = Printed(*capsys.readouterr())
        assert result == code, printed
        return printed

    return call
