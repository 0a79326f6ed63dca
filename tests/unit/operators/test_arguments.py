from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, AssetAlias, TaskGroup, XComArg
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_rfr.exceptions import ConfigurationError, SourceDefinitionError
from airflow_provider_rfr.operators import ResumableFullRefreshOperator, full_refresh, table_asset
from airflow_provider_rfr.operators._outcome import add_table_events
from airflow_provider_rfr.operators.arguments import stream_names, tables_of
from airflow_provider_rfr.refresh.config import parse_config
from airflow_provider_rfr.sample_api import SHOP
from tests.unit.messages import raises


def operator(**arguments: Any) -> ResumableFullRefreshOperator:
    whole: dict[str, Any] = {"source": {"file": str(SHOP)}, "streams": ["orders"], "target": "raw.orders", **arguments}
    return ResumableFullRefreshOperator(task_id="refresh", **whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"concurency": 4}}, r"options.concurency: unknown field; did you mean concurrency\?"),
        ({"options": {"concurency": "{{ params.n }}"}}, r"options.concurency: unknown field; did you mean concurrency"),
        ({"options": {"concurrency": 0}}, "options.concurrency: must be at least 1"),
        ({"options": {"concurrency": 0, "mode": "{{ x }}"}}, "options.concurrency"),
        ({"options": [1]}, "options: is list, not a mapping"),
        ({"streams": []}, "streams: is empty; name at least one"),
        ({"streams": ["orders", "orders"], "target": "raw.{stream}"}, "streams: duplicate name"),
        ({"streams": ["ordres"]}, "streams: the source has no stream 'ordres'; did you mean orders"),
        ({"streams": 5}, "streams: 5 is not a list of names"),
        ({"target": "orders"}, "target: 'orders' is not a table name; write namespace.table"),
        ({"streams": ["orders", "items"]}, "one table for several streams; write e.g. raw.{stream}"),
        ({"source": {"fil": "x.yaml"}}, "source.fil: unknown field; did you mean file"),
        ({"source": {"file": "a.yaml", "class": "a:B"}}, "source: has class and file"),
        ({"source": {}}, "name exactly one of class, file, definition and manifest"),
        ({"source": {"class": "shop.Orders"}}, "source.class: 'shop.Orders' is not an import path; write package"),
        ({"source": {"class": "a:B", "secrets": {"k": "v"}}}, "source.secrets: .* api_conn_id"),
        ({"application_args": ["--fast"]}, "application_args: .*use options"),
    ],
)
def test_a_mistake_is_found_while_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        operator(**arguments)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("type: link_header", "type: link_heder"), ("stream_slice.customer_id", "partition.customer_id")],
)
def test_a_mistake_in_a_source_file_names_file_and_place(tmp_path: Path, right: str, wrong: str) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP.read_text().replace(right, wrong, 1))
    with raises(SourceDefinitionError):
        operator(source={"file": str(file)})


def test_a_relative_file_is_looked_for_beside_the_dags_file(tmp_path: Path) -> None:
    (tmp_path / "near.yaml").write_text(SHOP.read_text())
    with DAG("d") as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        operator(source={"file": "near.yaml"})
    with DAG("e") as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        with raises(ConfigurationError):
            operator(source={"file": "missing.yaml"})


def test_an_absolute_file_that_only_workers_have_is_checked_in_the_task() -> None:
    assert operator(source={"file": "/mnt/workers/only.yaml"}).source == {"file": "/mnt/workers/only.yaml"}


def test_a_sources_class_is_not_imported_while_the_dag_is_parsed() -> None:
    operator(source={"class": "no_such_module:Orders"})


def test_what_airflow_has_yet_to_render_is_not_judged() -> None:
    operator(
        source={"file": "{{ params.file }}", "config": "{{ params.config }}"},
        streams="{{ params.streams }}",
        target="{{ params.target }}",
        options="{{ params.options }}",
    )
    with DAG("d"):
        upstream = operator()
        upstream.task_id = "upstream"
        ResumableFullRefreshOperator(
            task_id="next", source={"file": str(SHOP)}, streams=XComArg(upstream), target="raw.{stream}"
        )


def test_arguments_are_kept_as_they_were_given() -> None:
    """Airflow renders templated fields in place, and serialises what the constructor was given."""
    source, options = {"file": str(SHOP)}, {"concurrency": 4}
    made = operator(source=source, options=options)
    assert made.source is source
    assert made.options is options


def test_a_table_is_an_outlet_named_by_the_lakes_connection() -> None:
    made = operator(streams=["orders", "items"], target="raw.{stream}", lake_conn_id="lake")
    assert [outlet.uri for outlet in made.outlets] == ["rfr://lake/raw/orders", "rfr://lake/raw/items"]


@pytest.mark.parametrize(
    ("lake_conn_id", "uri"),
    [
        ("rfr_lake_default", "rfr://rfr_lake_default/raw/orders"),
        ("lake eu", "rfr://lake%20eu/raw/orders"),
        ("lake/eu", "rfr://lake%2Feu/raw/orders"),
        ("user:pw@lake", "rfr://user%3Apw%40lake/raw/orders"),
        ("lake?a=b#c", "rfr://lake%3Fa%3Db%23c/raw/orders"),
        ("Süd", "rfr://S%C3%BCd/raw/orders"),
    ],
)
def test_an_author_names_a_tables_asset_as_the_operator_does(lake_conn_id: str, uri: str) -> None:
    asset = table_asset("raw.orders", lake_conn_id=lake_conn_id)
    assert (asset.name, asset.uri) == (uri, uri)
    assert operator(lake_conn_id=lake_conn_id).outlets == [asset]


def test_assets_of_different_tables_or_lakes_differ() -> None:
    tables = [("raw.orders", "lake/eu"), ("eu.raw.orders", "lake"), ("raw.orders", "lake")]
    assert len({table_asset(table, lake_conn_id=lake).uri for table, lake in tables}) == 3
    for table, lake in (("eu/raw.orders", "lake"), ("raw.orders", "{{ params.lake }}")):
        with raises(ConfigurationError):
            table_asset(table, lake_conn_id=lake)


def test_tables_known_only_at_run_time_are_outlets_by_an_alias_of_dag_and_task() -> None:
    def aliases(dag_id: str) -> list[str]:
        with DAG(dag_id, schedule=None):
            return [outlet.name for outlet in operator(target="raw.{{ params.table }}").outlets]

    assert aliases("one") == ["rfr:one/refresh"]
    assert aliases("two") == ["rfr:two/refresh"]


def test_the_events_of_such_tables_are_sent_through_the_alias() -> None:
    with DAG("one", schedule=None):
        task = operator(target="raw.{{ params.table }}", lake_conn_id="lake eu")
    events = OutletEventAccessors()
    context: Any = {"outlet_events": events}
    add_table_events(context, task, "lake eu", ["raw.orders"], {"raw.orders": {"rows": 4}})
    [event] = events[AssetAlias("rfr:one/refresh")].asset_alias_events
    assert (event.dest_asset_key.uri, event.extra) == ("rfr://lake%20eu/raw/orders", {"rows": 4})


def test_the_alias_is_the_dags_also_where_the_task_is_added_to_it_later() -> None:
    own = AssetAlias("own")
    task = operator(target="raw.{{ params.table }}", outlets=[own])
    DAG("late", schedule=None).add_task(task)
    assert task.outlets == [own, AssetAlias("rfr:late/refresh")]


def test_templates_of_an_inline_definition_are_left_for_the_refresh() -> None:
    definition = {"base_url": "{{ config.base_url }}", "streams": {"orders": {"request": {"path": "/orders"}}}}
    made = operator(source={"definition": definition, "config": {"day": "{{ ds }}"}})
    made.render_template_fields({"ds": "2026-01-02", "params": {}})  # type: ignore[typeddict-item]
    assert made.source == {"definition": definition, "config": {"day": "2026-01-02"}}


@pytest.mark.parametrize(
    ("stream", "table"),
    [
        ("orders", "raw.orders"),
        ("Orders", "raw.Orders"),
        ("my-orders", "raw.my-orders"),
        ("v1.orders", "raw.v1.orders"),
        ("Ad Sets", "raw.ad_sets"),
        ("Sales Orders (EU)", "raw.sales_orders_eu"),
        ("2024/sales", "raw._2024_sales"),
    ],
)
def test_only_a_streams_name_that_no_table_can_have_is_mapped(stream: str, table: str) -> None:
    assert tables_of([stream], "raw.{stream}") == {stream: table}
    document = {"source": {"class": "a:B"}, "streams": [stream], "target": "raw.{stream}", "lake": {"properties": {}}}
    config = parse_config(document)
    assert config.target_of(stream) == table
    assert config.mapped_tables() == ({} if table == f"raw.{stream}" else {stream: table})


def test_a_name_is_kept_where_the_whole_target_is_a_tables_name() -> None:
    assert tables_of(stream_names("['a', 'b']"), "raw.x_{stream}") == {"a": "raw.x_a", "b": "raw.x_b"}
    assert tables_of(["2024"], "raw.sales_{stream}") == {"2024": "raw.sales_2024"}
    assert tables_of(["Ad Sets"], "raw.orders") == {"Ad Sets": "raw.orders"}
    with raises(ConfigurationError):
        tables_of(["ааа!"], "raw.{stream}")
    with raises(ConfigurationError):
        stream_names("[orders")


def test_two_streams_of_one_table_are_refused_by_their_names() -> None:
    message = "'Ad Sets' and 'ad_sets' would both go to raw.ad_sets; refresh one of them on its own"
    with pytest.raises(ConfigurationError, match=message):
        operator(source={"class": "a:B"}, streams=["Ad Sets", "ad_sets"], target="raw.{stream}")
    document = {"source": {"class": "a:B"}, "streams": ["Ad Sets", "ad_sets"], "target": "raw.{stream}"}
    with pytest.raises(ConfigurationError, match=message):
        parse_config({**document, "lake": {"properties": {}}})


def test_every_field_that_may_be_a_list_or_a_mapping_is_shown_as_one() -> None:
    """The parent knows of none; a text is shown as it is."""
    shown = ResumableFullRefreshOperator.template_fields_renderers
    assert set(shown) <= set(ResumableFullRefreshOperator.template_fields)
    assert set(shown.values()) == {"json"}
    made = operator(
        streams=["orders"], options={}, conf={}, env_vars={}, post_submit_commands=["true"], api_conn_id="shop"
    )
    structured = {name for name in made.template_fields if isinstance(getattr(made, name), (list, dict))}
    assert structured == set(shown)


def test_every_template_field_is_an_attribute_of_its_name() -> None:
    """Airflow renders attributes; one that is missing would fail the task."""
    made = operator()
    assert [name for name in made.template_fields if not hasattr(made, name)] == []
    assert {"source", "streams", "target", "options", "api_conn_id", "lake_conn_id"} <= set(made.template_fields)


def test_deferral_is_a_choice_that_airflows_configuration_may_make() -> None:
    assert not operator().deferrable
    assert operator(deferrable=True).deferrable
    program = "from tests.unit.operators.test_arguments import operator; print(operator().deferrable)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True"},
        cwd=SHOP.parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == "True"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"concurency": 1}}, r"options.concurency: unknown field; did you mean concurrency\?"),
        ({"source": {"class": "shop.Orders"}}, "source.class: 'shop.Orders' is not an import path"),
        ({"source": {"file": "nope.yaml"}}, "nope.yaml"),
        ({"target": "orders"}, "target: 'orders' is not a table name"),
        ({"deliver_after": {"config": {"a": {"url": "https://x.example"}}}}, "trigger a: has no body"),
        ({"checkpoint_store": "disk"}, "checkpoint_store: invalid store 'disk'"),
    ],
)
def test_a_mistake_that_mapped_tasks_share_is_found_while_the_dag_is_parsed(
    arguments: dict[str, Any], message: str
) -> None:
    whole: dict[str, Any] = {"source": {"file": str(SHOP)}, "target": "raw.{stream}", **arguments}
    with DAG("d"), pytest.raises(ConfigurationError, match=message):
        ResumableFullRefreshOperator.partial(task_id="refresh", **whole)


WRONG_OPTION = {"concurency": 1}


def mapped_over(*, by_set: bool = False, **more: Any) -> Any:
    """The operator with the shop's source and target, mapped over some of its arguments."""
    shared = {"source": {"file": str(SHOP)}, "target": "raw.{stream}"}
    with DAG("d"):
        for name in more["kwargs"][0] if by_set else more:
            shared.pop(name, None)
        partial = ResumableFullRefreshOperator.partial(task_id="refresh", **shared)
        return partial.expand_kwargs(more["kwargs"]) if by_set else partial.expand(**more)


@pytest.mark.parametrize(
    ("mapped", "message"),
    [
        ({"streams": [["orders"], ["custmers"]]}, r"^expand streams\[1\]: streams: the source has no stream 'custm"),
        ({"streams": [["orders"]], "options": [{}, WRONG_OPTION]}, r"expand streams\[0\], options\[1\]: options.con"),
        ({"streams": ["orders"], "target": ["raw.o", "o"]}, r"expand streams\[0\], target\[1\]: target: 'o' is not a"),
        ({"streams": ["orders"], "source": [{"file": "nope.yaml"}]}, r"expand source\[0\], streams\[0\]: .*nope.yaml"),
        ({"streams": ["orders"], "checkpoint_store": ["disk"]}, r"checkpoint_store\[0\]: checkpoint_store: invalid"),
        (
            {"streams": ["orders"], "deliver_after": [{"config": {"a": {"url": "https://x.example"}}}]},
            r"expand streams\[0\], deliver_after\[0\]: .*trigger a: has no body",
        ),
        (
            {"by_set": True, "kwargs": [{"streams": ["orders"]}, {"streams": ["orders"], "options": WRONG_OPTION}]},
            r"^expand_kwargs\[1\]: options.concurency: unknown field; did you mean concurrency\?",
        ),
    ],
)
def test_a_mistake_in_a_value_to_map_over_is_found_while_the_dag_is_parsed(
    mapped: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mapped_over(**mapped)


def test_results_of_other_tasks_and_templates_are_not_checked_before_the_mapped_task_runs() -> None:
    with DAG("d"):
        result = XComArg(BashOperator(task_id="list", bash_command="x"))
        ResumableFullRefreshOperator.partial(task_id="refresh", source={"file": str(SHOP)}, target="raw.o").expand(
            streams=result
        )
    assert mapped_over(streams=["{{ params.stream }}", ["orders"]]).task_id == "refresh"
    assert mapped_over(by_set=True, kwargs=[{"streams": ["{{ params.stream }}"]}]).task_id == "refresh"


def test_a_source_is_read_once_for_all_mapped_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[object]()
    check = full_refresh.check_source

    def reading(source: Any, folder: Any) -> Any:
        read.append(source)
        return check(source, folder)

    monkeypatch.setattr(full_refresh, "check_source", reading)
    mapped_over(streams=[["orders"], ["items"], ["customers"]])
    assert len(read) == 1


def test_the_tables_of_mapped_tasks_are_outlets_by_an_alias() -> None:
    own = Asset("own")
    with DAG("d"), TaskGroup("group"):
        mapped = ResumableFullRefreshOperator.partial(
            task_id="refresh", source={"file": str(SHOP)}, target="raw.{stream}", outlets=[own]
        ).expand(streams=[["orders"], ["items"]])
    alias = AssetAlias(name="rfr:d/group.refresh")
    assert mapped.outlets == [own, alias]
    task: Any = mapped.unmap({"streams": ["orders"]})
    assert task.outlets == [own, alias], "an event of an asset that nothing else names is sent by an alias alone"
    events = OutletEventAccessors()
    context: Any = {"outlet_events": events}
    add_table_events(context, task, "lake", ["raw.orders"], {"raw.orders": {"rows": 4}})
    assert [event.dest_asset_key.uri for event in events[alias].asset_alias_events] == ["rfr://lake/raw/orders"]
