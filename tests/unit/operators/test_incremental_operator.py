"""The operator of incremental syncs: its own arguments, and the document that it ships."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.operators import IncrementalSyncOperator, ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP
from tests.unit.messages import raises


def operator(**arguments: Any) -> IncrementalSyncOperator:
    whole = {"source": {"file": str(SHOP)}, "streams": ["shipments"], "target": "raw.{stream}", **arguments}
    return IncrementalSyncOperator(task_id="sync", **whole)


@pytest.mark.parametrize(
    "arguments",
    [
        {"write": "upsert"},
        {"options": {"mode": "merge"}},
        {"options": {"replace_where": "day = 1"}},
        {"full_refresh": "perhaps"},
        {"window": "2026-01-01"},
        {"window": "2026-01-01/P1D"},
        {"window": "2026-01-01/2026-01-01"},
        {"window": "2026-01-02/2026-01-01"},
        {"window": "1/2026-01-01"},
        {"window": "1.5/2"},
        {"window": "٣/٤"},
        {"window": f"1/{2**63}"},
        {"window": "2026-01-01/2026-01-02", "full_refresh": True},
    ],
)
def test_a_mistake_is_found_while_the_dag_is_parsed(arguments: dict[str, Any]) -> None:
    with raises(ConfigurationError):
        operator(**arguments)


def test_a_full_refresh_can_not_merge() -> None:
    whole = {"source": {"file": str(SHOP)}, "streams": ["shipments"], "target": "raw.{stream}"}
    with raises(ConfigurationError):
        ResumableFullRefreshOperator(task_id="refresh", options={"mode": "merge"}, **whole)
    with pytest.raises(ConfigurationError, match="options.mode: merge needs an incremental sync"):
        ResumableFullRefreshOperator.partial(task_id="refresh", options={"mode": "merge"}, **whole)


@pytest.mark.parametrize(
    ("rendered", "window"),
    [
        # As Airflow writes a data interval.
        (
            "2026-01-01 00:00:00+00:00/2026-01-02 00:00:00+00:00",
            "2026-01-01 00:00:00+00:00/2026-01-02 00:00:00+00:00",
        ),
        (" 10 / 20 ", "10 / 20"),
        ("None", None),
        ("", None),
        (None, None),
    ],
)
def test_the_document_has_the_window_as_it_was_rendered(
    rendered: str | None, window: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = operator(window="{{ data_interval_start }}/{{ data_interval_end }}")
    assert "window" in task.template_fields
    task.window = rendered
    whole = {"options": {"mode": "replace"}}
    monkeypatch.setattr(ResumableFullRefreshOperator, "document_without_run", lambda *_: whole)
    assert task.document_without_run(LakeSettings("rfr", {})).get("window") == window


def test_a_data_interval_that_is_empty_is_refused_in_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    task = operator(window="{{ data_interval_start }}/{{ data_interval_end }}")
    task.window = "2026-01-01 00:00:00+00:00/2026-01-01 00:00:00+00:00"
    monkeypatch.setattr(ResumableFullRefreshOperator, "document_without_run", lambda *_: {"options": {}})
    with raises(ConfigurationError):
        task.document_without_run(LakeSettings("rfr", {}))


@pytest.mark.parametrize(
    ("arguments", "sync", "mode"),
    [
        ({}, "incremental", "merge"),
        ({"write": "append"}, "incremental", "append"),
        ({"full_refresh": True}, "full", "replace"),
        ({"full_refresh": "True"}, "full", "replace"),
        ({"full_refresh": "none"}, "incremental", "merge"),
    ],
)
def test_the_document_says_how_the_table_is_synced(
    arguments: dict[str, Any], sync: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = operator(**arguments)
    read = {"source": {"file": str(SHOP)}, "streams": ["shipments"], "target": "raw.{stream}"}
    whole = {**read, "lake": {"name": "rfr", "properties": {}}, "options": {"mode": "replace"}}
    monkeypatch.setattr(ResumableFullRefreshOperator, "document_without_run", lambda *_: whole)
    document = task.document_without_run(LakeSettings("rfr", {}))
    assert (document.get("sync", "full"), document["options"]["mode"]) == (sync, mode)
