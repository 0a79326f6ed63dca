"""Bodies of calls: the variables of an event, rendered by the templates of an endpoint.

A template is Handlebars, strict, without HTML escaping, and without running any code. It renders as in handlebars.js
4.7 with ``{strict: true, noEscape: true}``; ``docs/decisions/handlebars_differences.md`` lists the exceptions. In a
structured payload, a leaf that is exactly one expression gives the value with its type; any other leaf gives text; keys
are not templates. A body has to be JSON, and its size is limited.

Every failure is a :class:`~airflow_provider_rfr.exceptions.TemplateError` with line and column, which names variables
and never says what they hold. A template has at most 64 KB and a nesting of 32; rendering takes at most 200,000 steps
and gives at most 1 MB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NoReturn

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.lake.commit_event import CommitEvent, rfc3339
from airflow_provider_rfr.text import well_formed
from airflow_provider_rfr.webhooks.block import Endpoint
from airflow_provider_rfr.webhooks.handlebars import compile_template
from airflow_provider_rfr.webhooks.handlebars.values import RenderBudget

_LARGEST_BODY = 1024 * 1024


class NotJsonError(TemplateError):
    """An error for a template whose rendered text is not JSON; line and column refer to that text."""


_FLOW_ALIASES = {
    "materialization_name": "target_name",
    "connector_image": "producer",
    "flow_run_id": "run_id",
    "flow_published_at_min": "fetched_at_min",
    "flow_published_at_max": "fetched_at_max",
}
"""Estuary Flow's names of variables; templates written for Flow keep working."""


def template_variables(
    event: CommitEvent, *, delivery_id: str, attempt: int, trigger_name: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    """Return every variable by its name. Times are RFC 3339 in UTC with ``Z``; missing values are empty text.

    :param delivery_id: 32 hexadecimal digits, the same for every copy of this event at this endpoint
    :param attempt: number of the attempt to deliver, from 1
    :param trigger_name: name of the endpoint
    :param headers: values of the headers that are listed under ``exposeHeaders``
    """
    same = ("target_name", "producer", "run_id", "commit_id", "target", "lake", "generation", "snapshot_id", "sequence")
    texts = ("dag_id", "dag_run_id", "task_id", "logical_date")
    fields = asdict(event)
    variables = {
        **{name: fields[name] for name in (*same, "merged_commits", *texts)},
        **{name: rfc3339(fields[name]) for name in ("fetched_at_min", "fetched_at_max", "committed_at")},
        "map_index": "" if event.map_index is None else event.map_index,
        "collection_names": list(event.collection_names),
        "bindings": list(fields["bindings"]),
        "totals": {
            "documents": event.documents,
            "bytes": event.bytes,
            "tables": len({binding.table for binding in event.bindings}),
        },
        "changes": None if event.changes is None else dict(event.changes),
        "headers": dict(headers),
        "delivery_id": delivery_id,
        "trigger_name": trigger_name,
        "attempt": attempt,
    }
    return variables | {alias: variables[name] for alias, name in _FLOW_ALIASES.items()}


def render_payload(
    tree: Any, variables: Mapping[str, Any], budget: RenderBudget | None = None, pointer: str = ""
) -> Any:
    """Render a tree of templates with these variables, and return it as new lists and dicts.

    :param tree: JSON, as :data:`~airflow_provider_rfr.webhooks._fields.JsonTree` has checked it
    :param budget: limits that all templates of the tree share; by default those of one template
    :param pointer: JSON pointer of the tree in the payload, for errors
    :raises TemplateError: as ``CompiledTemplate.render``, with the place in the payload as a JSON pointer
    """
    budget = budget or RenderBudget()
    if isinstance(tree, str):
        try:
            return compile_template(tree).value(variables, budget=budget)
        except TemplateError as error:
            failure = error
        # Outside of the except clause, so that no context with values is attached to the error.
        problem = f"{failure.problem} (in the payload at {pointer or 'its top'})"
        raise TemplateError(problem, failure.line, failure.column)
    if isinstance(tree, (list, tuple)):
        return [render_payload(item, variables, budget, f"{pointer}/{n}") for n, item in enumerate(tree)]
    if isinstance(tree, Mapping):
        rendered = {}
        for key, item in tree.items():
            step = key.replace("~", "~0").replace("/", "~1")
            rendered[well_formed(key)] = render_payload(item, variables, budget, f"{pointer}/{step}")
        return rendered
    return tree


def render_body(endpoint: Endpoint, variables: Mapping[str, Any]) -> bytes:
    """Return the body in UTF-8.

    :raises TemplateError: the template is wrong, its result is not JSON (:class:`NotJsonError`), or too large
    """
    names = template_names(endpoint, variables)
    if endpoint.text_template is not None:
        body = _template_body(endpoint.text_template, names)
    else:
        tree = render_payload(payload_tree(endpoint), names)
        if endpoint.parameters is not None:
            tree = endpoint.parameters.fitted(tree)
        body = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > _LARGEST_BODY:
        raise TemplateError(f"the body has {len(body)} bytes, more than {_LARGEST_BODY}", 1, 1)
    return body


def payload_tree(endpoint: Endpoint) -> Any:
    """Return the body's tree of templates, the endpoint's own or its preset's; None with a ``payloadTemplate``."""
    if endpoint.text_template is not None:
        return None
    if endpoint.payload is not None or endpoint.parameters is None:
        return endpoint.payload
    return endpoint.parameters.payload()


def content_type(endpoint: Endpoint) -> str:
    """Return the content type of the endpoint's own header, else that of JSON."""
    own = (value.get_secret_value() for name, value in endpoint.headers.items() if name.lower() == "content-type")
    return next(own, "application/json")


def template_names(endpoint: Endpoint, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of templates: texts escaped for the receiver, and as ``preset`` its secrets for the body."""
    preset = endpoint.parameters
    if preset is None:
        return dict(variables)
    names = {name: _escaped(value, preset.escaped) for name, value in variables.items()}
    secrets = preset.body_secrets()
    return {**names, **({"preset": secrets} if secrets else {})}


def _escaped(value: Any, escape: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, list):
        return [_escaped(item, escape) for item in value]
    if isinstance(value, dict):
        return {name: _escaped(item, escape) for name, item in value.items()}
    return value


def _template_body(template: str, names: Mapping[str, Any]) -> bytes:
    def refused(constant: str) -> NoReturn:
        raise ValueError(constant)

    text = compile_template(template, json_mode=True).render(names)
    if len(text) > _LARGEST_BODY:
        raise TemplateError(f"the body has {len(text)} characters, more than {_LARGEST_BODY} bytes", 1, 1)
    try:
        json.loads(text, parse_constant=refused)
    except json.JSONDecodeError as error:
        problem, line, column = error.msg, error.lineno, error.colno
    except RecursionError:
        problem, line, column = "it is nested too deep", 1, 1
    except ValueError:
        problem, line, column = "NaN, Infinity or a number too long", 1, 1
    else:
        return text.encode()
    raise NotJsonError(f"rendered payload template is not valid JSON: {problem}", line, column)
