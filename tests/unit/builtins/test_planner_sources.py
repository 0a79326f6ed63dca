"""Which sources a deploy asks to be refreshed: those without rows, and those with rows of another definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, Kind
from airflow_provider_rfr.builtins.plan import Plan, StepAction
from tests.unit.builtins.catalogs import Catalog, Thing, column, obj, problems, spec, table
from tests.unit.messages import check_messages

ONE = ["id bigint", "rows int"]
TWO = ["id bigint", "rows string"]
V1, V2 = (
    {"source": {"file": "shop.yaml"}, "streams": ["orders"]},
    {"source": {"file": "new.yaml"}, "streams": ["orders"]},
)


CREATED, IS_EMPTIED, REDEFINED = ({"raw.Orders": why} for why in ("created", "emptied", "redefined"))
ADOPTED = frozenset({"raw.orders"})


def source(*columns: str, kind: Kind = Kind.SOURCE, **more: Any) -> BuiltinObject:
    return obj(kind, "raw.Orders", *(columns or ONE), **{"source": V1, "keep": False, **more})


EMPTIED = source(*TWO)
"""It can't keep its rows, which may be made again, as all of :func:`source`."""


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    catalog.deploy(spec("1.0", source(), table("ops.t", *ONE)))
    return catalog


def deployed(catalog: Catalog, wanted: BuiltinObject, **policies: Any) -> Plan:
    return catalog.plan(spec("1.1", wanted, table("ops.t", *ONE)), **policies)


def test_the_first_rows_of_a_new_source_are_asked_for() -> None:
    found = Catalog().plan(spec("1.0", source()))
    assert ([step.how for step in found.steps], found.sources_to_load()) == ([StepAction.CREATE], CREATED)


def test_nothing_is_refreshed_where_nothing_changed(catalog: Catalog) -> None:
    assert deployed(catalog, source()).sources_to_load() == {}


def test_another_definition_is_refreshed(catalog: Catalog) -> None:
    assert deployed(catalog, source(source=V2)).sources_to_load() == REDEFINED


def test_another_definition_of_a_renamed_source_is_refreshed_under_the_new_name(catalog: Catalog) -> None:
    renamed = replace(source(source=V2), name="raw.sales")
    assert deployed(catalog, renamed).sources_to_load() == {"raw.sales": "redefined"}


@pytest.mark.parametrize(
    "wanted",
    [
        source(*ONE, "note string"),
        source("id bigint", "rows bigint"),
        source(comment="of the shop"),
        source(properties={"write.format.default": "parquet"}),
        replace(source(), name="raw.sales"),
    ],
)
def test_a_source_that_keeps_its_rows_is_not_refreshed(catalog: Catalog, wanted: BuiltinObject) -> None:
    found = deployed(catalog, wanted)
    assert {step.name for step in found.steps} <= {"raw.Orders", "raw.sales"}
    assert found.steps
    assert found.sources_to_load() == {}


def test_how_and_when_a_source_is_refreshed_takes_no_step(catalog: Catalog) -> None:
    assert deployed(catalog, source(refresh={"schedule": "@daily"})).steps == ()


def test_an_emptied_source_is_refreshed(catalog: Catalog) -> None:
    found = deployed(catalog, EMPTIED)
    assert ([step.how for step in found.steps], found.sources_to_load()) == ([StepAction.REPLACE_EMPTY], IS_EMPTIED)


def test_a_source_whose_table_is_gone_is_refreshed(catalog: Catalog) -> None:
    del catalog.things["raw.orders"]
    assert deployed(catalog, source(), drift="repair").sources_to_load() == CREATED


def test_a_table_that_becomes_a_source_and_one_that_is_taken_over_get_their_first_rows(catalog: Catalog) -> None:
    catalog.deploy(spec("1.1", source(kind=Kind.TABLE, source=None), table("ops.t", *ONE)))
    assert deployed(catalog, source()).sources_to_load() == CREATED
    foreign = Catalog()
    foreign.things["raw.orders"] = Thing("raw.Orders", Kind.TABLE, None, tuple(map(column, ONE)))
    found = foreign.plan(spec("1.0", source()), adopt=ADOPTED)
    assert ([step.how for step in found.steps], found.sources_to_load()) == ([StepAction.ADOPT], CREATED)


@pytest.mark.parametrize("kind", [Kind.TABLE, Kind.LOG])
def test_rows_that_a_table_keeps_are_lost_when_it_becomes_a_source(kind: Kind) -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", source(kind=kind, source=None, keep=True)))
    wanted = spec("1.1", source())
    check_messages(problems(catalog.plan(wanted)))
    found = catalog.plan(wanted, accept_data_loss={"raw.Orders"})
    assert (found.applicable, tuple(found.steps[0].losses.values()), found.sources_to_load()) == (
        True,
        ("all rows",),
        CREATED,
    )
    appended = catalog.plan(spec("1.1", source(refresh={"options": {"mode": "append"}})))
    assert (appended.applicable, appended.steps[0].losses) == (True, {})
    catalog.apply(found)
    assert catalog.plan(wanted).steps == ()
    reason = Catalog()
    reason.deploy(spec("1.0", source(kind=kind, source=None, keep="billing")))
    check_messages(problems(reason.plan(wanted, accept_data_loss={"raw.Orders"})))


def test_a_source_that_comes_back_gets_its_first_rows(catalog: Catalog) -> None:
    catalog.deploy(spec("1.1", table("ops.t", *ONE)))
    assert catalog.plan(spec("1.2", source(), table("ops.t", *ONE))).sources_to_load() == CREATED


@pytest.mark.parametrize(
    ("wanted", "gone", "asked"),
    [
        (source(source=V2), False, "redefined"),
        (EMPTIED, False, "emptied"),
        (source(), True, "emptied"),
    ],
)
def test_a_deploy_that_goes_on_for_a_dead_one_asks_again(
    catalog: Catalog, wanted: BuiltinObject, gone: bool, asked: str
) -> None:
    if gone:
        del catalog.things["raw.orders"]
    decided = {"drift": "repair"}
    spec_ = spec("1.1", wanted, table("ops.t", *ONE))
    catalog.apply(catalog.plan(spec_, **decided), until=1)
    assert catalog.plan(spec_, **decided).sources_to_load() == {"raw.Orders": asked}
    catalog.deploy(spec_, **decided)
    assert catalog.plan(spec_, **decided).steps == ()


def test_a_deploy_that_goes_on_behind_a_created_table_asks_again() -> None:
    catalog = Catalog()
    catalog.apply(catalog.plan(spec("1.0", source())), until=1)
    assert catalog.plan(spec("1.0", source())).sources_to_load() == CREATED


def test_a_dead_deploy_that_kept_the_rows_asks_for_nothing(catalog: Catalog) -> None:
    catalog.things["raw.orders"] = replace(catalog.things["raw.orders"], rows=10)
    wanted = spec("1.1", source(*ONE, "note string"), table("ops.t", *ONE))
    catalog.apply(catalog.plan(wanted), until=1)
    assert catalog.plan(wanted).sources_to_load() == {}


def test_what_a_plan_asks_for_survives_its_json(catalog: Catalog) -> None:
    found = deployed(catalog, source(source=V2))
    assert Plan.from_json(found.to_json()).sources_to_load() == REDEFINED
