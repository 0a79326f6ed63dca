"""Orders of a graph: every edge, every node once, the same whatever the input's order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.desired import CycleError, in_order, readers_of
from tests.profile import examples
from tests.unit.messages import raises


@st.composite
def acyclic(draw: st.DrawFn) -> dict[int, set[int]]:
    nodes = draw(st.permutations(range(draw(st.integers(1, 18)))))
    return {
        node: set(draw(st.lists(st.sampled_from(nodes[:place]), max_size=4))) if place else set()
        for place, node in enumerate(nodes)
    }


@examples(200)
@given(acyclic(), st.randoms(use_true_random=False))
def test_an_order_obeys_every_edge_has_every_node_once_and_does_not_depend_on_the_input(
    reads: dict[int, set[int]], shuffler: random.Random
) -> None:
    order = in_order(reads, lambda node: -node)
    place = {node: index for index, node in enumerate(order)}
    assert sorted(order) == sorted(reads)
    assert all(place[read] < place[node] for node, edges in reads.items() for read in edges)
    items = list(reads.items())
    shuffler.shuffle(items)
    assert in_order(dict(items), lambda node: -node) == order


@examples(100)
@given(acyclic(), st.data())
def test_the_readers_of_some_nodes_are_all_those_that_reach_them(
    reads: dict[int, set[int]], data: st.DataObject
) -> None:
    roots = data.draw(st.sets(st.sampled_from(sorted(reads))))

    def reaches(node: int) -> bool:
        return node in roots or any(reaches(read) for read in reads[node])

    assert readers_of(roots, in_order(reads, str), reads) == {node for node in reads if reaches(node)}


def test_of_two_that_could_come_next_the_lower_rank_comes_first() -> None:
    reads = {"view": {"table"}, "table": set(), "another": set(), "last": {"view"}}
    assert in_order(reads, str) == ("another", "table", "view", "last")


def test_what_is_outside_is_left_out() -> None:
    assert in_order({"a": {"elsewhere"}}, str) == ("a",)


def test_a_circle_is_named_from_its_lowest_member_and_what_only_reads_it_is_not() -> None:
    reads = {"d": {"b"}, "c": {"a"}, "a": {"b"}, "b": {"c"}}
    with raises(CycleError):
        in_order(reads, str)


def test_an_object_that_reads_itself_is_a_circle() -> None:
    with raises(CycleError):
        in_order({"a": {"a"}}, str)
