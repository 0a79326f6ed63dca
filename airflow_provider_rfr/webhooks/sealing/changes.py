"""Puts new values into an opened document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.pointers import shown


def changed(block: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The block with these values in it.

    :param changes: JSON pointers to new values, missing maps on the way are made; None removes
    :raises SealError: a pointer that leads nowhere
    """
    result: Any = _mutable(block)
    for where, value in changes.items():
        *way, last = _parts(where)
        node = result
        for part in way:
            node = node.setdefault(part, {}) if isinstance(node, dict) else _entry(node, part, where)
        _put(node, last, value, where)
    return dict(result)


def _parts(where: str) -> list[str]:
    if not where.startswith("/"):
        raise SealError(f"{shown(where)} is not a JSON pointer; write /config/<trigger>/url")
    return [part.replace("~1", "/").replace("~0", "~") for part in where[1:].split("/")]


def _put(node: Any, last: str, value: Any, where: str) -> None:
    if isinstance(node, dict) and value is None:
        node.pop(last, None)
    elif isinstance(node, dict):
        node[last] = value
    elif isinstance(node, list) and last == "-" and value is not None:
        node.append(value)
    elif value is None:
        node.remove(_entry(node, last, where))
    else:
        node[node.index(_entry(node, last, where))] = value


def _entry(node: Any, part: str, where: str) -> Any:
    if isinstance(node, list) and part.isascii() and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    raise SealError(f"{shown(where)}: nothing is there")


def _mutable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _mutable(each) for key, each in value.items()}
    return [_mutable(each) for each in value] if isinstance(value, list) else value
