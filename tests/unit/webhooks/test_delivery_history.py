"""The history of deliveries, where it can't be told."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.webhooks.operations import record_deliveries


class Catalog:
    name = "rfr"

    def table_exists(self, name: str) -> bool:
        return True


class AwayStore:
    def read(self) -> None:
        raise RuntimeError("no route to postgresql://rfr:hunter22@db")


def test_a_history_that_can_t_be_written_is_a_warning_without_what_the_database_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record_deliveries(AwayStore(), Catalog(), "rfr", {})  # type: ignore[arg-type]
    assert "can't be written (RuntimeError)" in caplog.text
    assert "hunter22" not in caplog.text
