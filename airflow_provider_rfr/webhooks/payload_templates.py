"""Structured payloads: JSON trees whose string leaves are templates.

A leaf that is exactly one expression gives the value itself, with its type: ``"{{collection_names}}"`` becomes a list,
``"{{sequence}}"`` a number. Any other leaf gives text. Keys are not templates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_rfr.exceptions.webhooks import TemplateError
from airflow_provider_rfr.webhooks.handlebars.budget import Budget
from airflow_provider_rfr.webhooks.handlebars.json_values import whole
from airflow_provider_rfr.webhooks.handlebars.template import Template, compile_template

_DEEPEST = 64
_Leaf = Callable[[Mapping[str, Any], Budget], Any]


class PayloadTemplate:
    """A payload whose templates have been read. It does not change; threads may render it at once."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def render(self, variables: Mapping[str, Any]) -> Any:
        """The payload: lists and maps of its own, as JSON has them. The limits of one template hold for all of it.

        :raises TemplateError: as ``Template.render``; it names the place in the payload as a JSON pointer
        """
        return _rendered(self._tree, variables, Budget())


class _TemplateLeaf:
    __slots__ = ("pointer", "template")

    def __init__(self, template: Template, pointer: str) -> None:
        self.template = template
        self.pointer = pointer


def compile_payload(tree: Any) -> PayloadTemplate:
    """The payload, read and checked.

    :raises TemplateError: a leaf is no template, or the tree is none of JSON; it names the place as a JSON pointer
    """
    return PayloadTemplate(_compiled(tree, "", 0))


def render_payload(tree: Any, variables: Mapping[str, Any]) -> Any:
    """The payload with these variables. :raises TemplateError: as :class:`PayloadTemplate`"""
    return compile_payload(tree).render(variables)


def _compiled(tree: Any, pointer: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise _at(pointer, f"more than {_DEEPEST} lists and maps inside each other")
    if isinstance(tree, str):
        try:
            return _TemplateLeaf(compile_template(tree), pointer)
        except TemplateError as error:
            found = error
        raise _placed(found, pointer)
    if isinstance(tree, (list, tuple)):
        return [_compiled(item, f"{pointer}/{index}", depth + 1) for index, item in enumerate(tree)]
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str):
                raise _at(pointer, f"a key is a {type(key).__name__}; write it in quotes")
        return {whole(key): _compiled(item, f"{pointer}/{_step(key)}", depth + 1) for key, item in tree.items()}
    if tree is None or isinstance(tree, (bool, int)) or (isinstance(tree, float) and math.isfinite(tree)):
        return tree
    raise _at(pointer, f"a {type(tree).__name__} that JSON does not have; write it in quotes")


def _rendered(tree: Any, variables: Mapping[str, Any], budget: Budget) -> Any:
    if isinstance(tree, _TemplateLeaf):
        try:
            return tree.template.value(variables, budget=budget)
        except TemplateError as error:
            found = error
        raise _placed(found, tree.pointer)
    if isinstance(tree, list):
        return [_rendered(item, variables, budget) for item in tree]
    if isinstance(tree, dict):
        return {key: _rendered(item, variables, budget) for key, item in tree.items()}
    return tree


def _step(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _placed(error: TemplateError, pointer: str) -> TemplateError:
    return TemplateError(f"{error.problem} (in the payload at {pointer or 'its top'})", error.line, error.column)


def _at(pointer: str, problem: str) -> TemplateError:
    return TemplateError(f"the payload at {pointer or 'its top'} is, or holds, {problem}", 1, 1)
