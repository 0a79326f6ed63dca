"""Settings of one run, which its configuration has below ``rfr``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake import LakeSettings
from airflow_provider_rfr.operators import IncrementalSyncOperator, ResumableFullRefreshOperator
from airflow_provider_rfr.operators.arguments import options_in
from airflow_provider_rfr.sample_api import SHOP
from tests.unit.messages import raises

LAKE = LakeSettings("rfr", {"type": "sql", "uri": "sqlite:////x", "warehouse": "file:///x"})
SOURCE = {"file": str(SHOP), "config": {"base_url": "http://127.0.0.1:1"}}


def document(conf: Any, kind: type[ResumableFullRefreshOperator] = ResumableFullRefreshOperator, **more: Any) -> Any:
    """The document that the driver of a run with this configuration gets."""
    operator = kind(
        task_id="refresh", source=SOURCE, streams=more.pop("streams", ["orders"]), target="raw.{stream}", **more
    )
    ti = SimpleNamespace(dag_id="shop", run_id="r", task_id="refresh", map_index=-1, try_number=1, max_tries=0)
    context: Any = {"ti": ti, "task": operator, "dag_run": SimpleNamespace(conf=conf, start_date=None)}
    return operator._document(context, LAKE)


@pytest.mark.parametrize("conf", [None, {}, {"other": 1}, {"rfr": None}, {"rfr": {"table": "raw.other"}}])
def test_a_run_without_settings_for_the_task_loads_as_always(conf: Any) -> None:
    found = document(conf)
    assert found["streams"] == ["orders"]
    assert (found["options"]["max_shrink"], found["options"]["force_restart"]) == (0.5, False)


def test_settings_hold_for_all_tables_of_the_run_or_for_the_one_that_they_name() -> None:
    streams = ["orders", "customers"]
    found = document({"rfr": {"max_shrink": None, "allow_empty": True}}, streams=streams)
    assert found["streams"] == streams
    assert (found["options"]["max_shrink"], found["options"]["allow_empty"]) == (None, True)
    found = document({"rfr": {"table": "raw.customers", "force_restart": True}}, streams=streams)
    assert found["streams"] == ["customers"]
    assert found["options"]["force_restart"] is True


@pytest.mark.parametrize("write", ["merge", "append"])
def test_an_incremental_sync_reads_everything_once(write: Any) -> None:
    more = {"kind": IncrementalSyncOperator, "write": write, "streams": ["shipments"], "window": "1/2"}
    usual = document({"rfr": {"full_refresh": False}}, **more)
    assert (usual["sync"], usual["window"], usual["options"]["mode"]) == ("incremental", "1/2", write)
    once = document({"rfr": {"full_refresh": True}}, **more)
    assert ("sync" in once, "window" in once, once["options"]["mode"]) == (False, False, "replace")


@pytest.mark.parametrize(
    "settings",
    [
        [],
        "force_restart",
        {"max_shrnk": None},
        {"concurrency": 99},
        {"full_refresh": "yes"},
        {"max_shrink": 7},
        {"force_restart": "perhaps"},
        {"on_missing_records": None},
    ],
)
def test_a_wrong_setting_fails_the_task_before_a_request(settings: Any) -> None:
    with raises(ConfigurationError):
        document({"rfr": settings})


def test_settings_are_ignored_where_airflow_ignores_the_configuration_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    assert document({"rfr": {"max_shrink": None}})["options"]["max_shrink"] == 0.5


def test_the_settings_are_no_option_of_a_form() -> None:
    assert options_in({"rfr": {"max_shrink": None}, "concurrency": 2}, ()) == {"concurrency": 2}
