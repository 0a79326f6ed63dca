"""Which sources a deploy asks to be refreshed: those without rows, and those with rows of another definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, Kind
from airflow_provider_rfr.builtins.plan import Plan
from tests.unit.builtins.catalogs import Catalog, column, deployed, did, obj, problems, spec
from tests.unit.messages import check_messages

ONE = ("id bigint", "rows int")
V1, V2 = ({"source": {"file": file}, "streams": ["orders"]} for file in ("shop.yaml", "new.yaml"))


def source(*columns: str, kind: Kind = Kind.SOURCE, **more: Any) -> BuiltinObject:
    """A source whose rows may be made again."""
    return obj(kind, "raw.Orders", *(columns or ONE), **{"source": V1, "keep": False, **more})


def stored(kind: Kind = Kind.TABLE, **more: Any) -> BuiltinObject:
    return source(kind=kind, source=None, **more)


def untouched(catalog: Catalog) -> None:
    """Nobody has changed the catalog by hand."""


def drop(catalog: Catalog) -> None:
    del catalog.things["raw.orders"]


def put(catalog: Catalog) -> None:
    catalog.put("raw.Orders", *map(column, ONE))


Edit = Callable[[Catalog], None]
CASES: dict[str, tuple[BuiltinObject | None, Edit, BuiltinObject, list[str], dict[str, str]]] = {
    "new": (None, untouched, source(), ["create raw.Orders"], {"raw.Orders": "created"}),
    "unchanged": (source(), untouched, source(), [], {}),
    "another schedule": (source(), untouched, source(refresh={"schedule": "@daily"}), [], {}),
    "another definition": (
        source(), untouched, source(source=V2), ["metadata raw.Orders"], {"raw.Orders": "redefined"},
    ),
    "another definition and name": (
        source(), untouched, replace(source(source=V2), name="raw.sales"), ["rename raw.Orders", "metadata raw.sales"],
        {"raw.sales": "redefined"},
    ),
    "another column": (source(), untouched, source(*ONE, "note string"), ["evolve raw.Orders"], {}),
    "a wider column": (source(), untouched, source("id bigint", "rows bigint"), ["evolve raw.Orders"], {}),
    "another comment": (source(), untouched, source(comment="of the shop"), ["metadata raw.Orders"], {}),
    "another property": (source(), untouched, source(properties={"write.x": "1"}), ["metadata raw.Orders"], {}),
    "another name": (source(), untouched, replace(source(), name="raw.sales"), ["rename raw.Orders"], {}),
    "it can't keep its rows": (
        source(), untouched, source("id bigint", "rows string"), ["replace_empty raw.Orders"],
        {"raw.Orders": "emptied"},
    ),
    "its table is gone": (source(), drop, source(), ["create raw.Orders"], {"raw.Orders": "created"}),
    "it was a table": (stored(), untouched, source(), ["metadata raw.Orders"], {"raw.Orders": "created"}),
    "it is taken over": (None, put, source(), ["adopt raw.Orders"], {"raw.Orders": "created"}),
}  # fmt: skip


def plan_of(catalog: Catalog, wanted: BuiltinObject) -> Plan:
    return catalog.plan(spec("1.1", wanted), drift="repair", adopt={"raw.orders"})


@pytest.mark.parametrize(("before", "edit", "wanted", "steps", "asked"), CASES.values(), ids=CASES)
def test_a_source_is_refreshed_if_its_rows_are_none_or_of_another_definition(
    before: BuiltinObject | None, edit: Edit, wanted: BuiltinObject, steps: list[str], asked: dict[str, str]
) -> None:
    catalog = deployed(*[] if before is None else [before])
    edit(catalog)
    plan = plan_of(catalog, wanted)
    assert (did(plan), plan.sources_to_load()) == (steps, asked)
    assert Plan.from_json(plan.to_json()).sources_to_load() == asked


def test_a_new_definition_is_noted_and_the_rows_stay() -> None:
    (step,) = plan_of(deployed(source()), source(source=V2)).steps
    assert step.changes == ("~ definition: the next refresh starts a new generation",) and not step.losses


@pytest.mark.parametrize("kind", [Kind.TABLE, Kind.LOG])
def test_rows_that_a_table_keeps_are_lost_when_it_becomes_a_source(kind: Kind) -> None:
    catalog, wanted = deployed(stored(kind, keep=True)), spec("1.1", source())
    check_messages(problems(catalog.plan(wanted)))
    plan = catalog.plan(wanted, accept_data_loss={"raw.Orders"})
    assert plan.applicable and plan.sources_to_load() == {"raw.Orders": "created"}
    assert tuple(plan.steps[0].losses.values()) == ("all rows",)
    appended = catalog.plan(spec("1.1", source(refresh={"options": {"mode": "append"}})))
    assert (appended.applicable, appended.steps[0].losses) == (True, {})
    catalog.apply(plan)
    assert catalog.plan(wanted).steps == ()
    check_messages(problems(deployed(stored(kind, keep="billing")).plan(wanted, accept_data_loss={"raw.Orders"})))


def test_a_source_that_comes_back_gets_its_first_rows() -> None:
    catalog = deployed(source())
    catalog.deploy(spec("1.1"))
    assert catalog.plan(spec("1.2", source())).sources_to_load() == {"raw.Orders": "created"}


GOES_ON: dict[str, tuple[BuiltinObject | None, Edit, BuiltinObject, dict[str, str]]] = {
    "redefined": (source(), untouched, source(source=V2), {"raw.Orders": "redefined"}),
    "emptied": (source(), untouched, source("id bigint", "rows string"), {"raw.Orders": "emptied"}),
    "created again": (source(), drop, source(), {"raw.Orders": "emptied"}),
    "created": (None, untouched, source(), {"raw.Orders": "created"}),
    "its rows were kept": (source(), untouched, source(*ONE, "note string"), {}),
}


@pytest.mark.parametrize(("before", "edit", "wanted", "asked"), GOES_ON.values(), ids=GOES_ON)
def test_a_deploy_that_goes_on_for_a_dead_one_asks_again(
    before: BuiltinObject | None, edit: Edit, wanted: BuiltinObject, asked: dict[str, str]
) -> None:
    catalog = deployed(*[] if before is None else [before])
    edit(catalog)
    catalog.apply(plan_of(catalog, wanted), until=1)
    plan = plan_of(catalog, wanted)
    assert plan.sources_to_load() == asked
    catalog.apply(plan)
    assert plan_of(catalog, wanted).steps == ()
