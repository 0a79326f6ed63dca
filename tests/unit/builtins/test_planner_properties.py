"""Whatever two catalogs look like: every edge is obeyed, everybody concerned is included, and a small catalog that does
the steps never meets a missing table, a missing column or a view that reads itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.model import (
    ActualState,
    BuiltinObject,
    CatalogSpec,
    Column,
    Dependency,
    Kind,
    Was,
    stable_id,
)
from airflow_provider_rfr.builtins.plan import Plan, Policies, StepAction, Why
from airflow_provider_rfr.builtins.planner import plan
from tests.profile import examples
from tests.unit.builtins.catalogs import Catalog, deployed, spec

COLUMNS = "abcdef"
TYPES = ("int", "bigint", "string", "decimal(10,2)", "decimal(12,2)")
KINDS = (Kind.TABLE, Kind.TABLE, Kind.VIEW, Kind.VIEW, Kind.VIEW, Kind.MATERIALIZED_VIEW)
Types = dict[str, str]


@dataclass(frozen=True)
class Draft:
    """An object while it is drawn."""

    number: int
    name: str
    kind: Kind
    types: Types
    query: str | None = None
    reads: tuple[tuple[int, str], ...] = ()
    declared: bool = True
    keep: bool = True

    @property
    def id(self) -> UUID:
        return stable_id("ops", f"ops.o{self.number}")

    def made(self, was: Mapping[str, Was] = MappingProxyType({})) -> BuiltinObject:
        columns: tuple[Column, ...] = ()
        if self.declared:
            columns = tuple(
                Column(name, kind, was=(was[name],) if name in was else ()) for name, kind in self.types.items()
            )
        keep = self.keep and self.kind is not Kind.MATERIALIZED_VIEW
        return BuiltinObject(self.kind, self.name, self.id, columns, keep=keep, query=self.query)


@st.composite
def catalogs(draw: Any, before: dict[int, Draft] | None = None) -> dict[int, Draft]:
    """Objects with their names, kinds, columns and queries; a second version has much of the first one."""
    count = 8
    numbers = draw(st.permutations(range(count)))[: draw(st.integers(2, count))]
    names = {number: f"ops.o{number}" for number in range(count)}
    if before is not None and draw(st.booleans()):
        first, second = draw(st.sampled_from(numbers)), draw(st.integers(0, count))
        names[first], names[second] = f"ops.o{second}", names.get(first, "ops.other")
    found: dict[int, Draft] = {}
    for number in numbers:
        old = before.get(number) if before is not None else None
        kind = old.kind if old is not None and draw(st.integers(0, 4)) else draw(st.sampled_from(KINDS))
        if kind is Kind.TABLE or not found:
            found[number] = Draft(number, names[number], Kind.TABLE, draw(_columns(old)))
        else:
            found[number] = draw(_query(number, names[number], kind, found, old))
        keep = old.keep if old is not None and draw(st.integers(0, 3)) else draw(st.booleans())
        found[number] = replace(found[number], keep=keep)
    return found


@st.composite
def _columns(draw: Any, old: Draft | None) -> Types:
    if old is None or old.kind is not Kind.TABLE:
        names = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4, unique=True))
        return {name: draw(st.sampled_from(TYPES)) for name in names}
    types = dict(old.types)
    change = draw(st.sampled_from(["none", "add", "drop", "type", "order"]))
    if change == "drop" and len(types) > 1:
        del types[draw(st.sampled_from(sorted(types)))]
    elif change == "type":
        types[draw(st.sampled_from(sorted(types)))] = draw(st.sampled_from(TYPES))
    elif change == "order":
        types = {name: types[name] for name in draw(st.permutations(sorted(types)))}
    elif change == "add":
        types.setdefault(draw(st.sampled_from(COLUMNS)), draw(st.sampled_from(TYPES)))
    return types


@st.composite
def _query(draw: Any, number: int, name: str, kind: Kind, found: dict[int, Draft], old: Draft | None) -> Draft:
    reads = old.reads if old is not None else ()
    if not reads or not _valid(reads, found) or not draw(st.integers(0, 2)):
        inputs = draw(st.lists(st.sampled_from(sorted(found)), min_size=1, max_size=3, unique=True))
        reads = tuple((item, draw(st.sampled_from(sorted(found[item].types)))) for item in inputs)
    columns = ", ".join(f"t{item}.{column} AS c{place}" for place, (item, column) in enumerate(reads))
    tables = " CROSS JOIN ".join(f"{found[name].name} AS t{name}" for name in dict.fromkeys(name for name, _ in reads))
    types = {f"c{place}": found[item].types[column] for place, (item, column) in enumerate(reads)}
    declared = kind is Kind.MATERIALIZED_VIEW or draw(st.booleans())
    return Draft(number, name, kind, types, f"SELECT {columns} FROM {tables}", reads, declared)


def _valid(reads: Sequence[tuple[int, str]], found: dict[int, Draft]) -> bool:
    return all(read in found and column in found[read].types for read, column in reads)


def changed(draft: Draft, old: Draft | None) -> BuiltinObject:
    """With a `was` for each column that has another type, unless its rows may be made again."""
    if old is None or draft.kind is not Kind.TABLE or not old.declared or not (draft.keep or old.keep):
        return draft.made()
    return draft.made(
        {
            name: Was(None, old.types[name], f"CAST({name} AS {kind})")
            for name, kind in draft.types.items()
            if name in old.types and old.types[name] != kind
        }
    )


TWO = catalogs().flatmap(lambda first: st.tuples(st.just(first), catalogs(first)))
NAMES = [*(f"ops.o{number}" for number in range(9)), "ops.other"]
OUTPUTS = ("c0", "c1", "c2")
"""Columns of queries, which may become those of tables."""
EVERYTHING = frozenset(NAMES) | {f"{name}.{column}" for name in NAMES for column in (*COLUMNS, *OUTPUTS)}


def first_version(first: dict[int, Draft]) -> Catalog:
    return deployed(*(item.made() for item in first.values()))


def second_version(first: dict[int, Draft], second: dict[int, Draft]) -> CatalogSpec:
    return spec("2.0", *(changed(item, first.get(number)) for number, item in second.items()))


def positions(plan: Plan, *, leaving: bool) -> dict[UUID | None, int]:
    """Places in the plan of the objects that leave, or of those that come or change."""
    steps = [step for step in plan.steps if step.how not in (StepAction.RENAME, StepAction.BRIDGE)]
    order = [step.uuid for step in steps if (step.how in (StepAction.DROP, StepAction.REMOVE)) is leaving]
    assert len(set(order)) == len(order)
    return {item: place for place, item in enumerate(order)}


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(TWO)
def test_a_catalog_that_does_the_steps_meets_nothing_that_is_missing_and_ends_as_declared(
    two: tuple[dict[int, Draft], dict[int, Draft]],
) -> None:
    first, second = two
    catalog = first_version(first)
    wanted = second_version(first, second)
    edges = {(obj.uuid, dep.uuid) for obj in catalog.recorded.objects for dep in obj.deps if dep.uuid is not None}
    found = catalog.deploy(wanted, accept_data_loss=EVERYTHING)
    catalog.check()
    assert_orders(found, edges, second)
    assert sorted(set(catalog.things) - set(catalog.garbage)) == sorted(item.name for item in second.values())
    again = catalog.plan(wanted)
    assert (again.steps, again.records, again.drift, again.blocked) == ((), (), (), ())


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(TWO, st.booleans(), st.data())
def test_a_deploy_that_died_anywhere_is_gone_on_with_or_taken_back_and_ends_as_declared(
    two: tuple[dict[int, Draft], dict[int, Draft]], back: bool, data: Any
) -> None:
    first, second = two
    catalog = first_version(first)
    tables = [item.name for item in first.values() if item.kind is Kind.TABLE]
    wanted, allowed = second_version(first, second), {"accept_data_loss": EVERYTHING}
    begun = catalog.plan(wanted, **allowed)
    assert begun.applicable
    catalog.apply(begun, until=data.draw(st.integers(0, len(begun.steps))))
    if back:
        wanted = second_version(second, first)
    catalog.deploy(wanted, **allowed)
    catalog.check()
    assert sorted(set(catalog.things) - set(catalog.garbage)) == sorted(obj.name for obj in wanted.objects)
    again = catalog.plan(wanted)
    assert (again.steps, again.records, again.drift, again.blocked) == ((), (), (), ())
    if back:
        # A retired table came back with its rows.
        assert {catalog.things[name].born for name in tables} == {"d1"}


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(TWO)
def test_nothing_is_lost_that_was_not_accepted_and_the_names_in_the_plan_are_all_that_it_takes(
    two: tuple[dict[int, Draft], dict[int, Draft]],
) -> None:
    first, second = two
    catalog = first_version(first)
    wanted = second_version(first, second)
    found = catalog.plan(wanted)
    reasons = [reason for item in found.blocked for reason in item.problems]
    asked = {reason.facts[-1] for reason in reasons if reason.why is Why.WOULD_LOSE}
    assert found.applicable is not bool(asked)
    assert not any(tuple(step.losses) for step in found.steps)
    for name in asked:
        assert not catalog.plan(wanted, accept_data_loss=asked - {name}).applicable
    found = catalog.deploy(wanted, accept_data_loss=asked)
    assert not any("loses nothing" in warning for warning in found.warnings)
    assert {name for step in found.steps for name in tuple(step.losses)} <= asked
    there = {thing.marker: thing for key, thing in catalog.things.items() if key not in catalog.garbage}
    for number, item in first.items():
        names = {item.name, second[number].name if number in second else item.name}
        if item.kind is not Kind.TABLE or not item.keep or names & asked:
            continue
        # Its rows are where they were, with item column that nobody let go.
        thing = there[item.id]
        gone = {name.rpartition(".")[2] for name in asked if name.startswith(f"{thing.name}.")}
        assert thing.born == "d1" and item.types.keys() - gone <= {column.name for column in thing.columns}
        assert item.id not in {catalog.things[key].marker for key in catalog.garbage}


def assert_orders(found: Plan, edges: set[tuple[Any, Any]], second: dict[int, Draft]) -> None:
    dropped, created = positions(found, leaving=True), positions(found, leaving=False)
    for reader, read in closure(edges):
        if reader in dropped and read in dropped:
            assert dropped[reader] < dropped[read]
    ids = {number: stable_id("ops", f"ops.o{number}") for number in second}
    for number, draft in second.items():
        for read, _ in draft.reads:
            if ids[number] in created and ids[read] in created:
                assert created[ids[read]] < created[ids[number]]


def closure(edges: set[tuple[Any, Any]]) -> set[tuple[Any, Any]]:
    found = set(edges)
    while more := {(a, d) for a, b in found for c, d in edges if b == c} - found:
        found |= more
    return found


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(TWO, st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_in_which_things_are_given(
    two: tuple[dict[int, Draft], dict[int, Draft]], shuffler: random.Random
) -> None:
    first, second = two
    catalog = first_version(first)
    wanted = second_version(first, second)
    catalog.user_view("bob.a", "SELECT * FROM ops.o0", Dependency("ops.o0", None, None))
    catalog.user_view("bob.b", "SELECT * FROM bob.a", Dependency("bob.a", None, None))
    live, policies = catalog.live(), Policies(accept_data_loss=EVERYTHING)
    once = plan(wanted, catalog.recorded, live, policies=policies)
    views, objects, there = list(live.user_views), list(catalog.recorded.objects), list(live.objects.items())
    declared = list(wanted.objects)
    for item in (views, objects, there, declared):
        shuffler.shuffle(item)
    again = plan(
        replace(wanted, objects=tuple(declared)),
        replace(catalog.recorded, objects=tuple(objects)),
        ActualState(dict(there), tuple(views)),
        policies=policies,
    )
    assert again == once and again.plan_hash == once.plan_hash


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(catalogs(), st.data())
def test_exactly_the_views_that_read_a_changed_column_are_bound_again(first: dict[int, Draft], data: Any) -> None:
    """A view that does not declare its columns may pass on a change in any of them. A materialized view has columns of
    its own, and passes on that its rows may be others."""
    drafts = {number: replace(item, declared=item.kind is not Kind.VIEW) for number, item in first.items()}
    catalog = first_version(drafts)
    tables = [number for number, draft in drafts.items() if draft.kind is Kind.TABLE and "int" in draft.types.values()]
    widened = set(data.draw(st.lists(st.sampled_from(tables), unique=True))) if tables else set()
    second = {
        number: replace(draft, types={**_wider(draft.types), "new": "int"}) if number in widened else draft
        for number, draft in drafts.items()
    }
    found = catalog.plan(second_version(drafts, second))
    changed = {(number, name) for number in widened for name, kind in drafts[number].types.items() if kind == "int"}
    shape, contents = set(), set()
    for number, draft in drafts.items():
        is_view = draft.kind is Kind.VIEW
        sees = any(read in shape or (read, name) in changed for read, name in draft.reads)
        if is_view and sees:
            shape.add(number)
        if (not is_view and sees) or any(read in contents for read, _ in draft.reads):
            contents.add(number)
    expected = shape | {number for number in contents if drafts[number].kind is not Kind.VIEW}
    steps = {step.uuid for step in found.steps if step.how in (StepAction.REBIND, StepAction.RECOMPUTE)}
    assert steps == {stable_id("ops", f"ops.o{number}") for number in expected}
    assert {step.uuid for step in found.steps} - steps == {stable_id("ops", f"ops.o{item}") for item in widened}


def _wider(types: Types) -> Types:
    return {name: "bigint" if kind == "int" else kind for name, kind in types.items()}
