"""Templates of payloads: Handlebars, strict, without HTML escaping, and without running any code.

A template means what handlebars.js 4.7 makes of it with ``{strict: true, noEscape: true}``, except where
``docs/webhooks_templates.md`` says otherwise. In a structured payload, a leaf that is exactly one expression gives the
value with its type; any other leaf gives text; keys are not templates. Bodies are checked to be JSON, and bounded.

Every failure is a :class:`~airflow_provider_rfr.exceptions.TemplateError` with line and column, which names variables
and never says what they hold. A template has at most 64 KB and a nesting of 32; rendering takes at most 200,000 steps
and gives at most 1 MB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.webhooks.endpoint import Endpoint
from airflow_provider_rfr.webhooks.handlebars._json import well_formed
from airflow_provider_rfr.webhooks.handlebars._values import Budget
from airflow_provider_rfr.webhooks.handlebars.template import Template, compile_template
from airflow_provider_rfr.webhooks.presets import Preset

_DEEPEST = 64
_Leaf = Callable[[Mapping[str, Any], Budget], Any]


class _PayloadTemplate:
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


def _compile_payload(tree: Any) -> _PayloadTemplate:
    """The payload, read and checked.

    :raises TemplateError: a leaf is not a template, or the tree is none of JSON; it names the place as a JSON pointer
    """
    return _PayloadTemplate(_compiled(tree, "", 0))


def render_payload(tree: Any, variables: Mapping[str, Any]) -> Any:
    """The payload with these variables. :raises TemplateError: as :class:`_PayloadTemplate`"""
    return _compile_payload(tree).render(variables)


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
        return {well_formed(key): _compiled(item, f"{pointer}/{_step(key)}", depth + 1) for key, item in tree.items()}
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


_LARGEST_BODY = 1024 * 1024
_JSON_TYPE = "application/json"


class NotJsonError(TemplateError):
    """The template renders to something that is not JSON; line and column are of the rendered text."""


def render_body(endpoint: Endpoint, variables: Mapping[str, Any]) -> bytes:
    """The body in UTF-8.

    :param variables: see :func:`~.variables.template_variables`
    :raises TemplateError: the template is wrong, its result is not JSON (:class:`NotJsonError`), or too large
    """
    names = _names(endpoint, variables)
    if endpoint.payload_template is not None:
        body = _template_body(endpoint.payload_template, names)
    else:
        body = _tree_body(endpoint, names)
    if len(body) > _LARGEST_BODY:
        raise TemplateError(f"the body has {len(body)} bytes, more than {_LARGEST_BODY}", 1, 1)
    return body


def payload_tree(endpoint: Endpoint) -> Any:
    """The body's tree of templates, the endpoint's own or its preset's; None with a ``payloadTemplate``."""
    if endpoint.payload_template is not None:
        return None
    if endpoint.payload is not None or endpoint.parameters is None:
        return endpoint.payload
    return endpoint.parameters.payload()


def render_leaf(endpoint: Endpoint, leaf: str, variables: Mapping[str, Any]) -> Any:
    """One leaf of the tree with its values; raises :class:`TemplateError`."""
    return compile_template(leaf).value(_names(endpoint, variables))


def content_type(endpoint: Endpoint) -> str:
    """What the endpoint says, else JSON."""
    own = (value for name, value in endpoint.headers.items() if name.lower() == "content-type")
    found = next(own, None)
    return _JSON_TYPE if found is None else found.get_secret_value()


def _names(endpoint: Endpoint, variables: Mapping[str, Any]) -> dict[str, Any]:
    """What templates find: texts escaped as the receiver wants them, and the secrets that it wants in the body."""
    preset = endpoint.parameters
    found = {name: value if preset is None else _escaped(value, preset) for name, value in variables.items()}
    return {**found, **_secrets_of(endpoint)}


def _escaped(value: Any, preset: Preset) -> Any:
    if isinstance(value, str):
        return preset.escaped(value)
    if isinstance(value, list):
        return [_escaped(each, preset) for each in value]
    if isinstance(value, dict):
        return {name: _escaped(each, preset) for name, each in value.items()}
    return value


def _secrets_of(endpoint: Endpoint) -> dict[str, Any]:
    secrets = {} if endpoint.parameters is None else endpoint.parameters.body_secrets()
    return {"preset": {name: value.get_secret_value() for name, value in secrets.items()}} if secrets else {}


def _template_body(template: str, names: Mapping[str, Any]) -> bytes:
    text = compile_template(template, json_mode=True).render(names)
    if len(text) > _LARGEST_BODY:
        raise TemplateError(f"the body has {len(text)} characters, more than {_LARGEST_BODY} bytes", 1, 1)
    value = _parsed(text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can only hold escaped.
        return json.dumps(value).encode("ascii")


def _tree_body(endpoint: Endpoint, names: Mapping[str, Any]) -> bytes:
    tree = render_payload(payload_tree(endpoint), names)
    if endpoint.parameters is not None:
        tree = endpoint.parameters.fitted(tree)
    try:
        text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        raise NotJsonError("rendered payload is not valid JSON: a value has no form in JSON", 1, 1) from None
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(tree, separators=(",", ":")).encode("ascii")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        problem, line, column = error.msg, error.lineno, error.colno
    except RecursionError:
        problem, line, column = "it is nested too deep", 1, 1
    except ValueError:
        problem, line, column = "NaN, Infinity or a number too long", 1, 1
    raise NotJsonError(f"rendered payload template is not valid JSON: {problem}", line, column)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
