"""Bodies of webhooks: rendered, checked to be JSON, and no larger than receivers take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.webhooks.configuration.endpoint import Endpoint
from airflow_provider_rfr.webhooks.configuration.preset_base import Preset
from airflow_provider_rfr.webhooks.payload_templates import render_payload
from airflow_provider_rfr.webhooks.templates import compile_template

LARGEST_BODY = 1024 * 1024
JSON_TYPE = "application/json"


class NotJsonError(TemplateError):
    """The template renders to something that is no JSON; line and column are of the rendered text."""


def render_body(endpoint: Endpoint, variables: Mapping[str, Any]) -> bytes:
    """The body in UTF-8.

    :param variables: see :func:`~.variables.template_variables`
    :raises TemplateError: the template is wrong, its result is no JSON (:class:`NotJsonError`), or too large
    """
    names = _names(endpoint, variables)
    if endpoint.payload_template is not None:
        body = _template_body(endpoint.payload_template, names)
    else:
        body = _tree_body(endpoint, names)
    if len(body) > LARGEST_BODY:
        raise TemplateError(f"the body has {len(body)} bytes, more than {LARGEST_BODY}", 1, 1)
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
    return JSON_TYPE if found is None else found.get_secret_value()


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
    if len(text) > LARGEST_BODY:
        raise TemplateError(f"the body has {len(text)} characters, more than {LARGEST_BODY} bytes", 1, 1)
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
