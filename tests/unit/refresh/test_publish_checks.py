"""What may be published after what."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_rfr.exceptions import PublishRefusedError
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.publish import _check_guards
from tests.unit.messages import raises


@pytest.mark.parametrize(
    ("rows", "previous", "options"),
    [
        (50, 100, {}),
        (1, None, {}),
        (1, 0, {}),
        (49, 100, {"max_shrink": 0.6}),
        (1, 100, {"max_shrink": None}),
        (1, 100, {"mode": "append"}),
        (0, 100, {"allow_empty": True}),
    ],
)
def test_is_published(rows: int, previous: int | None, options: dict[str, Any]) -> None:
    _check_guards(RefreshOptions(**options), rows=rows, previous=previous)


def test_fewer_than_half_of_the_rows_are_refused_by_default_and_the_message_names_the_switch() -> None:
    with raises(PublishRefusedError):
        _check_guards(RefreshOptions(), rows=49, previous=100)


def test_no_rows_are_refused_whatever_may_vanish() -> None:
    with raises(PublishRefusedError):
        _check_guards(RefreshOptions(max_shrink=None), rows=0, previous=None)
