"""Reads the fields of a YAML mapping, each as the type it has to be, and notes all that are not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

from airflow_provider_rfr.builtins.declaration.loader_yaml import Flaw, Node
from airflow_provider_rfr.builtins.names import nearest

Choice = TypeVar("Choice", bound=Enum)
_SHOWN = 40


class Fields:
    """The fields of one mapping."""

    def __init__(self, node: Node, flaws: list[Flaw], path: str = "") -> None:
        self.line = node.line
        self._flaws = flaws
        self._path = path
        self._nodes: dict[str, Node] = {}
        if isinstance(node.value, dict):
            self._nodes = node.value
        elif node.value is not None:
            self._refuse(node, path.rstrip(".") or "the document", "a mapping")

    def only(self, known: Collection[str]) -> None:
        """Note the fields that nobody knows."""
        for name, node in self._nodes.items():
            if name not in known:
                self._flaws.append(Flaw(node.line, f"{self._path}{name} is no field", nearest(name, known, show=12)))

    def wrong(self, name: str, problem: str, remedy: str = "") -> None:
        """Note that the value of a field is wrong."""
        self._flaws.append(Flaw(self._nodes[name].line, f"{self._path}{name} {problem}", remedy))

    def needs(self, *names: str) -> bool:
        """Note the fields that are missing; whether none is."""
        missing = [name for name in names if name not in self._nodes or self._nodes[name].value is None]
        for name in missing:
            self._flaws.append(Flaw(self.line, f"{self._path}{name} is missing"))
        return not missing

    def text(self, name: str, default: str | None = None) -> str | None:
        """A text; numbers and booleans are none."""
        node = self._get(name)
        if node is None or isinstance(node.value, str):
            return default if node is None else node.value
        remedy = "put it in quotes" if node.text is not None else ""
        self._refuse(node, f"{self._path}{name}", "a text", remedy)
        return default

    def written(self, name: str) -> str | None:
        """A plain value as it was written, so that version 1.10 is not 1.1."""
        node = self._get(name)
        if node is not None and node.text is None:
            self._refuse(node, f"{self._path}{name}", "a text")
        return None if node is None else node.text

    def flag(self, name: str) -> bool:
        """A boolean, false where it is not given."""
        node = self._get(name)
        if node is not None and not isinstance(node.value, bool):
            self._refuse(node, f"{self._path}{name}", "true or false")
        return node is not None and node.value is True

    def choice(self, name: str, kinds: type[Choice], default: Choice) -> Choice:
        """One of an enum's values."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return kinds(text)
        except ValueError:
            values = [str(each.value) for each in kinds]
            self.wrong(name, f"{text!r} is unknown", nearest(text, values))
            return default

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        found = []
        for number, node in self._list(name):
            if isinstance(node.value, str):
                found.append(node.value)
            else:
                self._refuse(node, f"{self._path}{name}.{number}", "a text", "put it in quotes" if node.text else "")
        return tuple(found)

    def each(self, name: str) -> Iterator[Fields]:
        """The mappings of a list."""
        for number, node in self._list(name):
            yield Fields(node, self._flaws, f"{self._path}{name}.{number}.")

    def inside(self, name: str) -> Fields | None:
        """The fields of a mapping inside."""
        node = self._get(name)
        return None if node is None else Fields(node, self._flaws, f"{self._path}{name}.")

    def mapping(self, name: str) -> Mapping[str, str]:
        """Texts by key; plain values as they were written."""
        inside = self.inside(name)
        found = {key: inside.written(key) for key in inside._nodes} if inside is not None else {}
        return MappingProxyType({key: value for key, value in found.items() if value is not None})

    def anything(self, name: str) -> Mapping[str, Any] | None:
        """Any values by key."""
        inside = self.inside(name)
        return None if inside is None else MappingProxyType({key: _plain(node) for key, node in inside._nodes.items()})

    def _get(self, name: str) -> Node | None:
        node = self._nodes.get(name)
        return None if node is None or node.value is None else node

    def _list(self, name: str) -> Iterator[tuple[int, Node]]:
        node = self._get(name)
        if node is not None and not isinstance(node.value, list):
            self._refuse(node, f"{self._path}{name}", "a list")
        elif node is not None:
            yield from enumerate(node.value)

    def _refuse(self, node: Node, path: str, wanted: str, remedy: str = "") -> None:
        found = node.text or "nothing"
        if isinstance(node.value, (dict, list)):
            found = "a mapping" if isinstance(node.value, dict) else "a list"
        shown = found if len(found) <= _SHOWN else found[:_SHOWN] + "..."
        self._flaws.append(Flaw(node.line, f"{path} is {shown}, not {wanted}", remedy))


def _plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return MappingProxyType({key: _plain(each) for key, each in node.value.items()})
    return tuple(map(_plain, node.value)) if isinstance(node.value, list) else node.value
