"""The forms of the ready DAGs that refresh: what they show, and what the operator gets from them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import ParamValidationError
from airflow.sdk import DAG
from airflow.sdk.definitions.param import process_params

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators import IncrementalSyncOperator
from airflow_provider_rfr.operators.arguments import option_fields
from airflow_provider_rfr.refresh.config import RefreshOptions, parse_options
from dags import incremental_sync
from dags.full_refresh import FIELDS, dag
from tests.unit.messages import raises

WIDGETS = frozenset({"string", "number", "integer", "boolean"})
"""Types for which Airflow's form has a field other than a JSON editor."""


def refresh(of: DAG = dag, **conf: Any) -> Any:
    """The operator of the DAG in a run with that ``conf``, with its fields rendered."""
    operator = copy.copy(of.get_task("refresh"))
    # The values of a run are kept in the params themselves.
    operator.params = copy.deepcopy(of.params)
    params = process_params(of, operator, conf, suppress_exception=False)
    operator.render_template_fields({"params": params})  # type: ignore[typeddict-item]
    return operator


def test_each_option_is_a_field_with_its_default_its_meaning_and_one_type() -> None:
    fields = option_fields()
    of_merges = {"max_deleted", "max_rewrite_bytes"}
    defaults = RefreshOptions().model_dump(mode="json", exclude=of_merges)
    assert {name: field.resolve() for name, field in fields.items()} == defaults
    assert fields["mode"].schema["enum"] == ["replace", "append"]
    for name, field in fields.items():
        assert field.description, name
        assert "`" not in field.description, name
        assert field.schema["section"] == "Options"
        kinds = {field.schema["type"]} if isinstance(field.schema["type"], str) else {*field.schema["type"]} - {"null"}
        assert len(kinds) == 1, name
        assert kinds <= WIDGETS or name == "constants", "a mapping has the JSON editor"
    shrink = fields["max_shrink"].schema
    assert (shrink["type"], shrink["minimum"], shrink["maximum"]) == (["number", "null"], 0, 1)
    assert fields["requests_per_second"].schema["title"] == "Requests per second"
    assert fields["on_busy"].schema["enum"] == ["wait", "fail", "take_over"]


def test_the_form_may_have_another_field_for_an_option() -> None:
    assert set(option_fields()) - set(option_fields("force_restart", "mode")) == {"force_restart", "mode"}


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("max_shrink", 1.5), ("expire", "yes")])
def test_a_field_refuses_a_value_that_the_option_does_not_take(name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        option_fields()[name].resolve(value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source_file", ""),
        ("source_config", "text"),
        ("streams", []),
        ("streams", ["items", "items"]),
        ("streams", "items"),
        ("target", "orders"),
        ("target", "raw.{table}"),
        ("unfinished", "perhaps"),
        ("lake_conn_id", ""),
        ("requests_per_second", "many"),
        ("on_busy", "panic"),
    ],
)
def test_the_form_refuses_a_value_that_cannot_be_right(field: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        refresh(**{"source_file": "shop.yaml", field: value})


@pytest.mark.parametrize("of", [dag, incremental_sync.dag], ids=lambda of: of.dag_id)
def test_every_field_has_a_title_and_a_description(of: DAG) -> None:
    for name in of.params:
        param = of.params.get_param(name)
        assert param.schema["title"], name
        assert param.description or param.schema["description"], name


def test_source_table_and_connections_are_shown_at_first_sight() -> None:
    assert [name for name in dag.params if "section" not in dag.params.get_param(name).schema] == list(FIELDS)
    assert {"source_file", "streams", "target", "api_conn_id", "lake_conn_id", "conn_id"} <= set(FIELDS)


def test_a_form_that_nobody_changed_gives_the_defaults() -> None:
    operator = refresh()
    assert parse_options(operator.options) == RefreshOptions()
    connections = (operator.api_conn_id, operator.lake_conn_id, operator.conn_id)
    assert connections == ("rfr_api_default", "rfr_lake_default", "spark_default")


def test_what_is_filled_in_reaches_the_operator_with_its_type() -> None:
    conf = {"api_conn_id": None, "lake_conn_id": "lake", "conn_id": "yarn", "streams": ["orders", "items"]}
    operator = refresh(**conf, concurrency=32, requests_per_second=0.5, expire=True, replace_where="day = '2026-01-01'")
    assert {name: getattr(operator, name) for name in conf} == conf
    assert operator._conn_id == "yarn"
    set_options = {"concurrency": 32, "requests_per_second": 0.5, "expire": True, "replace_where": "day = '2026-01-01'"}
    assert parse_options(operator.options) == RefreshOptions(**set_options)


def test_a_name_that_no_field_has_is_refused_as_an_option() -> None:
    with raises(ConfigurationError):
        parse_options(refresh(concurency=8).options)


@pytest.mark.parametrize("conf", [{"unfinished": "restart"}, {"force_restart": True}])
def test_a_restart_is_asked_for_by_the_field_or_by_the_option(conf: dict[str, Any]) -> None:
    assert refresh(**conf).options["force_restart"] is True


def test_an_incremental_sync_has_its_own_options_and_no_mode() -> None:
    fields, full = option_fields(incremental=True), option_fields()
    assert set(fields) - set(full) == {"max_deleted", "max_rewrite_bytes"}
    assert set(full) - set(fields) == {"mode", "replace_where"}


@pytest.mark.parametrize("asked", [True, False])
def test_the_form_of_a_sync_asks_whether_everything_is_read(asked: bool) -> None:
    field = incremental_sync.dag.params.get_param("full_refresh")
    assert (field.resolve(), field.schema["type"], "section" in field.schema) == (False, "boolean", False)
    operator = refresh(incremental_sync.dag, full_refresh=asked, max_deleted=0.5)
    assert isinstance(operator, IncrementalSyncOperator)
    assert (operator.full_refresh, operator.write, operator.options["max_deleted"]) == (asked, "merge", 0.5)
    assert "full_refresh" not in operator.options


@pytest.mark.parametrize("value", ["yes", None, 1])
def test_a_full_refresh_is_asked_for_by_true_or_false_alone(value: Any) -> None:
    with pytest.raises(ParamValidationError):
        refresh(incremental_sync.dag, full_refresh=value)


def test_a_sync_that_nobody_filled_in_has_the_defaults() -> None:
    operator = refresh(incremental_sync.dag)
    assert parse_options(operator.options) == RefreshOptions()
    assert operator.full_refresh is False


@pytest.mark.parametrize("of", [dag, incremental_sync.dag], ids=lambda of: of.dag_id)
def test_lineage_that_a_triggering_dag_adds_is_no_option(of: DAG) -> None:
    lineage = {"parentRunId": "p", "parentJobName": "weekly.trigger"}
    assert parse_options(refresh(of, openlineage=lineage).options) == RefreshOptions()
