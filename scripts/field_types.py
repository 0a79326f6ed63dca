"""Types, defaults and descriptions of fields in users' words, for the reference."""

from __future__ import annotations

import json
import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from airflow_provider_rfr.streams.rest.templates import Templated, compile_value

_ANY: Final = "any value"
_WORDS: Final = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "boolean",
    Any: _ANY,
    SecretStr: "text",
    Path: "path",
}
_MAPPINGS: Final = (dict, Mapping)
_LISTS: Final = (list, tuple, Sequence, Collection)


class TypeWords:
    """A translation of types into users' words.

    :param links: the link of each model that has a section of its own
    """

    def __init__(self, links: Mapping[type, str]) -> None:
        self._links = links

    def of_field(self, field: FieldInfo) -> str:
        """Return the type of a model's field, its bounds, and the names that its templates may use."""
        words = self.of(field.annotation) + _bounds(field.metadata)
        mark = next((item for item in field.metadata if isinstance(item, Templated)), None)
        if mark is not None:
            kind = "template" if mark.compile is compile_value or "path" in mark.compile.__name__ else "expression"
            words += f"; {kind} over {', '.join(f'`{name}`' for name in sorted(mark.names))}"
        return words

    def of(self, annotation: Any, *, many: bool = False) -> str:
        """Return a type in words; null is left out, because a default shows it.

        :param many: in the plural, as the items of a list
        """
        arguments, origin = get_args(annotation), get_origin(annotation)
        if origin is Annotated:
            return self.of(arguments[0], many=many) + _bounds(arguments[1:])
        if origin is Literal:
            return _joined([f"`{value}`" for value in arguments])
        if origin in (Union, types.UnionType):
            options = (self.of(item, many=many) for item in arguments if item is not type(None))
            return _joined(list(dict.fromkeys(options)))
        if origin in _MAPPINGS or annotation in _MAPPINGS:
            return _container("mapping", "to", self.of(arguments[1]) if arguments else _ANY, many)
        if origin in _LISTS or annotation in _LISTS:
            return _container("list", "of", self.of(arguments[0], many=True) if arguments else _ANY, many)
        if annotation in self._links:
            return self._links[annotation]
        return _WORDS[annotation] + ("s" if many and annotation is not Any else "")


def _container(name: str, word: str, items: str, many: bool) -> str:
    return name + ("s" if many else "") + ("" if items == _ANY else f" {word} {items}")


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _bounds(metadata: Collection[Any]) -> str:
    limits = {name: getattr(item, name) for item in metadata for name in ("ge", "gt", "le") if hasattr(item, name)}
    texts = [
        f"{word} {limits[name]:g}" for name, word in (("ge", "from"), ("gt", "above"), ("le", "to")) if name in limits
    ]
    return f", {' '.join(texts)}" if texts else ""


def default_of(field: FieldInfo) -> str:
    """Return the default as a user would write it in YAML; empty for none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(by_alias=True, exclude_defaults=True)
    return "" if value in (None, {}, []) else f"`{written(value)}`"


def written(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    plain = isinstance(value, str) and value and value == value.strip()
    return str(value) if plain else json.dumps(value)


def sentence(note: str) -> str:
    """Return a note of a docstring as a cell of a table: a sentence without its full stop."""
    text = " ".join(note.split()).replace("``", "`").removesuffix(".")
    return text[:1].upper() + text[1:]
