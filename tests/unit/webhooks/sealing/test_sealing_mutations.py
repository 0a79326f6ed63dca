"""Whatever somebody without a key does to a sealed document: what was sealed is as it was, or nothing is opened."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing import open_sealed
from airflow_provider_rfr.webhooks.sealing._documents import _EDITABLE, _SEALED, _leaves
from tests.profile import examples

NAMES = st.sampled_from(
    [*_SEALED, *_EDITABLE, "config", "sops", "triggers", "startDownstream", "other", "secrets", "A", "overlay", "age"]
)
PLAIN = st.sampled_from([None, "", "POST", "https://evil.example.com", 5, True, [], {}, ["x"], {"url": "x"}, 0.5])
CHOICE = st.integers(0, 10**6)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "copy", "swap", "delete", "rename", "wrap", "add", "reverse"]),
        CHOICE,
        CHOICE,
        NAMES,
        PLAIN,
    ),
    min_size=1,
    max_size=4,
)


def holders(node: Any) -> list[tuple[Any, Any]]:
    """Every place: what holds it, and its key or index there."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [place for key, value in items for place in ((node, key), *holders(value))]


def mutate(document: dict[str, Any], step: tuple[Any, ...]) -> None:
    action, first, second, name, plain = copy.deepcopy(step)  # a drawn list would be shared by all examples
    places = holders(document)
    if not places:
        return
    (holder, key), (other, twin) = places[first % len(places)], places[second % len(places)]
    if action == "set":
        holder[key] = plain
    elif action == "copy":
        holder[key] = copy.deepcopy(other[twin])
    elif action == "swap":
        one, two = copy.deepcopy(holder[key]), copy.deepcopy(other[twin])
        other[twin], holder[key] = one, two
    elif action == "delete":
        del holder[key]
    elif action == "wrap":
        holder[key] = [holder[key]] if first % 2 else {name: holder[key]}
    elif isinstance(holder, dict):
        items = [(name if action == "rename" and place == key else place, value) for place, value in holder.items()]
        items += [(name, plain)] if action == "add" else []
        holder.clear()
        holder.update(reversed(items) if action == "reverse" else items)


def sealed_values(block: dict[str, Any]) -> list[Any]:
    """Places and values; SOPS binds values to no place of a list, which counts where a field may be any JSON."""
    values = []
    for name, endpoint in block["config"].items():
        for field, content in endpoint.items():
            for place, value in _leaves(content, (name, field)) if field in _SEALED else ():
                any_json = _SEALED[field].depth is None
                bound = tuple(part for part in place if isinstance(part, str) or not any_json)
                values.append((bound, type(value), value))
    return values


@given(STEPS)
@examples(600, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_mutation_changes_what_was_sealed(
    sealed: dict[str, Any], document: dict[str, Any], key: Any, steps: list[tuple[Any, ...]]
) -> None:
    mutated = copy.deepcopy(sealed)
    for step in steps:
        mutate(mutated, step)
    try:
        opened = open_sealed(mutated, environment=key.environment)
    except SealError:
        return
    assert sealed_values(opened.get("triggers", opened)) == sealed_values(document)
