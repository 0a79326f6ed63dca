"""Lists of instances: which there are of what ``per_instance`` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_rfr.builtins.columns import Finding
from airflow_provider_rfr.builtins.declaration.loader_fields import Fields
from airflow_provider_rfr.builtins.declaration.loader_yaml import Flaw, Node
from airflow_provider_rfr.builtins.names import is_plain

KIND = "instances"
"""Of the documents that hold a list."""


def is_list(node: Node) -> bool:
    """Whether a document is a list of instances."""
    kind = node.value.get("kind") if isinstance(node.value, dict) else None
    return kind is not None and kind.value == KIND


def listed(node: Node, flaws: list[Flaw]) -> tuple[str, Mapping[str, str]] | None:
    """What a document lists: the name that ``per_instance`` gives them, and theirs by their ids.

    :param flaws: takes what is wrong
    """
    fields = Fields(node, flaws)
    fields.only(("kind", "name", KIND))
    name, inside = fields.text("name"), fields.inside(KIND)
    if not fields.needs("name", KIND) or name is None or inside is None:
        return None
    node = node.value[KIND]
    inside.needs(*(node.value if isinstance(node.value, dict) else ()))
    return name, fields.mapping(KIND)


def instance_findings(name: str, instances: Mapping[Any, Any]) -> Iterator[Finding]:
    """What is wrong with a list, whether it comes from YAML or from Python."""
    if not is_plain(name):
        yield Finding("name", f"{name!r} is no name", "write what per_instance says, e.g. lake")
    for key, called in instances.items():
        if not isinstance(key, str) or not key.strip():
            yield Finding(KIND, f"the id {key!r} of an instance is no text", "write ID: NAME")
        elif not isinstance(called, str) or not called.strip():
            yield Finding(f"{KIND}.{key}", f"the name {called!r} of {key} is no text", "write ID: NAME")
