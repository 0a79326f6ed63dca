"""Which sources a deploy asks to be refreshed again: those that lost their rows, or have rows of another definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.planning.plans import Plan, Verb
from airflow_provider_rfr.builtins.spec import BuiltinObject, How, Kind
from airflow_provider_rfr.builtins.state import LiveKind
from tests.unit.builtins.catalogs import Catalog, Thing, column, obj, spec, table
from tests.unit.builtins.test_planner_mechanisms import step

ONE = ["id bigint", "rows int"]
TWO = ["id bigint", "rows string"]
V1, V2 = (
    {"source": {"file": "shop.yaml"}, "streams": ["orders"]},
    {"source": {"file": "new.yaml"}, "streams": ["orders"]},
)


def source(*columns: str, **more: Any) -> BuiltinObject:
    return obj(Kind.SOURCE, "raw.Orders", *(columns or ONE), **{"source": V1, **more})


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    catalog.deploy(spec("1.0", source(), table("ops.t", *ONE)))
    return catalog


def deployed(catalog: Catalog, wanted: BuiltinObject, **policies: Any) -> Plan:
    return catalog.plan(spec("1.1", wanted, table("ops.t", *ONE)), **policies)


def test_the_first_refresh_of_a_new_source_is_its_own_dags_affair() -> None:
    found = Catalog().plan(spec("1.0", source()))
    assert ([each.how for each in found.steps], found.sources_to_load()) == ([Verb.CREATE], ())


def test_nothing_is_refreshed_where_nothing_changed(catalog: Catalog) -> None:
    assert deployed(catalog, source()).sources_to_load() == ()


def test_another_definition_is_refreshed(catalog: Catalog) -> None:
    assert deployed(catalog, source(source=V2)).sources_to_load() == ("raw.Orders",)


def test_another_definition_of_a_renamed_source_is_refreshed_under_the_new_name(catalog: Catalog) -> None:
    renamed = replace(source(source=V2), name="raw.sales")
    assert deployed(catalog, renamed).sources_to_load() == ("raw.sales",)


@pytest.mark.parametrize(
    "wanted",
    [
        source(*ONE, "note string"),
        source("id bigint", "rows bigint"),
        source(comment="of the shop"),
        source(properties={"write.format.default": "parquet"}),
    ],
)
def test_a_source_that_keeps_its_rows_is_not_refreshed(catalog: Catalog, wanted: BuiltinObject) -> None:
    found = deployed(catalog, wanted)
    assert [each.name for each in found.steps] == ["raw.Orders"]
    assert found.sources_to_load() == ()


def test_an_emptied_source_is_refreshed(catalog: Catalog) -> None:
    emptied = source(*TWO, migrations=(step(ONE, TWO, How.REPLACE_EMPTY),))
    found = deployed(catalog, emptied, accept_data_loss=frozenset({"raw.Orders"}))
    assert ([each.how for each in found.steps], found.sources_to_load()) == ([Verb.REPLACE_EMPTY], ("raw.Orders",))


def test_a_source_whose_table_is_gone_is_refreshed(catalog: Catalog) -> None:
    del catalog.things["raw.orders"]
    found = deployed(catalog, source(), drift="repair")
    assert found.sources_to_load() == ("raw.Orders",)


def test_a_deploy_that_goes_on_for_a_dead_one_asks_for_the_same(catalog: Catalog) -> None:
    emptied = source(*TWO, source=V2, migrations=(step(ONE, TWO, How.REPLACE_EMPTY),))
    wanted, accepted = spec("1.1", emptied), frozenset({"raw.Orders"})
    catalog.apply(catalog.plan(wanted, accept_data_loss=accepted), until=1)
    assert catalog.plan(wanted, accept_data_loss=accepted).sources_to_load() == ("raw.Orders",)


def test_a_deploy_that_goes_on_behind_an_emptied_table_asks_for_the_same(catalog: Catalog) -> None:
    emptied = source(*TWO, migrations=(step(ONE, TWO, How.REPLACE_EMPTY),))
    wanted, accepted = spec("1.1", emptied), frozenset({"raw.Orders"})
    catalog.apply(catalog.plan(wanted, accept_data_loss=accepted), until=1)
    assert catalog.plan(wanted, accept_data_loss=accepted).sources_to_load() == ("raw.Orders",)


def test_a_source_that_takes_over_a_table_keeps_its_rows() -> None:
    catalog = Catalog()
    catalog.things["raw.orders"] = Thing("raw.Orders", LiveKind.TABLE, None, tuple(map(column, ONE)))
    found = catalog.plan(spec("1.0", source()), adopt=frozenset({"raw.Orders"}))
    assert ([each.how for each in found.steps], found.sources_to_load()) == ([Verb.ADOPT], ())


def test_what_a_plan_asks_for_survives_its_json(catalog: Catalog) -> None:
    found = deployed(catalog, source(source=V2))
    assert Plan.from_json(found.to_json()).sources_to_load() == ("raw.Orders",)
