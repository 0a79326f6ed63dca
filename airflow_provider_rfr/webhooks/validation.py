"""The check of a triggers block while a DAG is parsed.

It renders every template for placeholder events, so mistakes show before the first commit. Sealed values stay sealed,
no connection is looked up, and nothing is sent. Problems are cached by the block's content, since DAG files are parsed
again and again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from airflow_provider_rfr import __version__
from airflow_provider_rfr.documents import leaves
from airflow_provider_rfr.exceptions import Problem, TemplateError, TriggerConfigError
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
from airflow_provider_rfr.webhooks._fields import is_sealed_text, plain_tree
from airflow_provider_rfr.webhooks._model import path_of
from airflow_provider_rfr.webhooks.block import Endpoint, TriggerBlock, label, load_document, parse_triggers, unwrapped
from airflow_provider_rfr.webhooks.handlebars import compile_template
from airflow_provider_rfr.webhooks.payloads import (
    NotJsonError,
    payload_tree,
    render_body,
    template_names,
    template_variables,
)

_HOSTILE = "\"\\ \n\t\u2028</script>{{x}}'😀"
_HEADER = "placeholder"
_BEGAN = datetime(2024, 1, 1, tzinfo=timezone.utc)
_OUTCOMES = ("inserted", "updated", "unchanged", "stale", "deleted", "unknown_deletions", "older_versions")
_COLLECTIONS = ("acmeCo/example/collection", "acmeCo/example/another")


@dataclass(frozen=True, slots=True)
class _Trial:
    """A placeholder event, its description for error messages, and a placeholder for the values of exposed headers."""

    words: str
    event: CommitEvent
    header: str = _HEADER

    def variables(self, endpoint: Endpoint) -> dict[str, Any]:
        """Return the event's variables, with a placeholder value for every header that may be exposed."""
        # A sealed name in exposeHeaders may be that of any header.
        if any(map(is_sealed_text, endpoint.expose_headers)):
            names = [*endpoint.headers]
        else:
            names = [*endpoint.exposed_headers(), *endpoint.expose_headers]
        headers = {name.removesuffix(_SEALED_SUFFIX): self.header for name in names}
        return template_variables(
            self.event, delivery_id="0" * 32, attempt=1, trigger_name=endpoint.name, headers=headers
        )


def _placeholder(collections: int) -> CommitEvent:
    names = _COLLECTIONS[:collections]
    return CommitEvent(
        commit_id="00000000-0000-0000-0000-000000000000",
        target="example.table",
        lake="rfr",
        target_name="acmeCo/example/materialization",
        run_id="00000000-0000-0000-0000-000000000000",
        sequence=1,
        snapshot_id=1,
        committed_at=_BEGAN + timedelta(minutes=2),
        generation=1,
        collection_names=names,
        producer=f"airflow-provider-rfr:{__version__}",
        fetched_at_min=_BEGAN if collections else None,
        fetched_at_max=_BEGAN + timedelta(minutes=1) if collections else None,
        bindings=tuple(Binding("example.table", name, 10, 1000) for name in names),
        dag_id="example",
        dag_run_id="manual__2024-01-01T00:00:00+00:00",
        task_id="refresh",
        map_index=-1,
        logical_date="2024-01-01T00:00:00Z",
    )


_HOSTILE_TRIAL = _Trial(
    "with quotes and a line break in a value",
    replace(
        _placeholder(2),
        target_name=_HOSTILE,
        target=_HOSTILE,
        producer=_HOSTILE,
        dag_id=_HOSTILE,
        dag_run_id=_HOSTILE,
        task_id=_HOSTILE,
        collection_names=tuple(_HOSTILE + name for name in _COLLECTIONS),
        bindings=(Binding(_HOSTILE, _HOSTILE, 10, 1000),) * 2,
    ),
    header=f'{_HEADER}"\\',
)
_TRIALS = (
    # The likeliest to show a mistake first.
    _Trial("with 1 collection", _placeholder(1)),
    _Trial("with no collections", _placeholder(0)),
    _Trial("with 2 collections", _placeholder(2)),
    _Trial("of an incremental sync", replace(_placeholder(1), changes=dict.fromkeys(_OUTCOMES, 10))),
    _HOSTILE_TRIAL,
    _Trial("outside Airflow", replace(_placeholder(1), dag_id="", dag_run_id="", task_id="", map_index=None)),
)


def placeholder_events() -> tuple[CommitEvent, ...]:
    """Return the events that templates are tried with; the first one is an ordinary commit."""
    return tuple(trial.event for trial in _TRIALS)


_REMEMBERED = 512
_known: dict[bytes, tuple[Problem, ...]] = {}


def validate_block(block: TriggerBlock) -> None:
    """Render every template of the block for the placeholder events, and cache the problems.

    :raises TriggerConfigError: with the first problem of each template
    """
    # A digest, since the content holds secrets. Operations of a dict are atomic: at worst, two threads check one block.
    key = hashlib.blake2b(json.dumps(block.dump()).encode(), digest_size=32).digest()
    problems = _known.get(key)
    if problems is None:
        problems = tuple(problem for endpoint in block.endpoints for problem in template_problems(endpoint))
        if len(_known) >= _REMEMBERED:
            _known.clear()
        _known[key] = problems
    if problems:
        raise TriggerConfigError.of(problems)


def check_triggers(
    document: Mapping[str, Any] | Sequence[Any] | TriggerBlock, *, where: str = "triggers"
) -> TriggerBlock:
    """Read a block and try its templates, as a DAG does while it is parsed.

    :param where: origin of the document, such as a file's path, for problems of the block as a whole
    :raises TriggerConfigError: with every problem; templates are tried even if other fields are wrong
    """
    try:
        block = parse_triggers(document, where=where)
    except TriggerConfigError as error:
        problems = error.problems
    else:
        validate_block(block)
        return block
    raw = unwrapped(document)
    endpoints = raw.get("config") if isinstance(raw, Mapping) else None
    if isinstance(endpoints, Sequence) and not isinstance(endpoints, str):
        endpoints = {f"trigger{number}": endpoint for number, endpoint in enumerate(endpoints)}
    order: dict[str, int] = {}
    for name, written in endpoints.items() if isinstance(endpoints, Mapping) else ():
        if isinstance(name, str):
            order[f"trigger {label(name)}"] = len(order)
            endpoint = _without_faults(written)
            if endpoint is not None:
                problems = (*problems, *template_problems(endpoint.placed(label(name), 0)))
    raise TriggerConfigError.of(sorted(problems, key=lambda problem: order.get(problem.place, -1)))


def check_file(path: str | Path) -> TriggerBlock:
    """Check a YAML or JSON file as :func:`check_triggers` does a document."""
    return check_triggers(load_document(path), where=str(path))


def _without_faults(written: Any) -> Endpoint | None:
    """Return the endpoint without the fields that are wrong; None if that leaves nothing to try."""
    if not isinstance(written, Mapping):
        return None
    remaining = dict(written)
    # Twice: the first try shows which fields are wrong, the second is without them.
    for _ in range(2):
        try:
            return Endpoint.model_validate(plain_tree(remaining))
        except ValidationError as error:
            wrong = {str(item["loc"][0]) for item in error.errors(include_input=False) if item["loc"]}
            wrong |= {"url", "connection"}
            remaining = {key: value for key, value in written.items() if not {str(key), to_camel(str(key))} & wrong}
            remaining["url"] = "https://placeholder.invalid"
    return None


_MOST_LEAVES = 500
_SEALED_SUFFIX = "_sops"
_HEADER_IN_TEMPLATE = re.compile(r"headers\.\[?([!#$%&'*+\-^_`|~0-9A-Za-z]+)")


def template_problems(endpoint: Endpoint) -> list[Problem]:
    """Return the first problem of each of the endpoint's templates. A sealed one is not tried."""
    if is_sealed_text(endpoint.text_template):
        return []
    whole = _first_problem(endpoint, (), None)
    if whole is None:
        return []
    # Most payloads are right. Leaves are tried one by one only after a failure, to name those that are wrong.
    places: dict[str, tuple[str | int, ...]] = {}
    for place, leaf in leaves(payload_tree(endpoint)):
        if isinstance(leaf, str) and "{{" in leaf:
            places.setdefault(leaf, place)
    tried = (_first_problem(endpoint, place, leaf) for leaf, place in islice(places.items(), _MOST_LEAVES))
    return [problem for problem in tried if problem is not None] or [whole]


def _first_problem(endpoint: Endpoint, place: tuple[str | int, ...], leaf: str | None) -> Problem | None:
    """Return the first problem of a leaf of the payload, or of the whole body if ``leaf`` is None; None for none."""
    trial: _Trial | None = None
    try:
        template = compile_template(leaf or endpoint.text_template or "")
        for trial in _TRIALS:
            variables = trial.variables(endpoint)
            if leaf is None:
                render_body(endpoint, variables)
            else:
                template.value(template_names(endpoint, variables))
    except TemplateError as error:
        failure = error
    else:
        return None
    root = "payload" if endpoint.payload is not None else "body"
    path = "" if endpoint.text_template is not None else path_of((root, *place))
    if isinstance(failure, NotJsonError) and trial is not None:
        remedy = "outside quotes write {{json name}}" if trial is _HOSTILE_TRIAL else ""
        place_in_text = f"line {failure.line}, column {failure.column} of the rendered text"
        problem = f"{failure.problem} ({place_in_text}), {trial.words}"
        return Problem(path, problem, remedy, f"trigger {endpoint.name}")
    problem = f"payload template is invalid: {failure}" + (f", {trial.words}" if trial else "")
    # The missing name may be a header that exposeHeaders does not list: Estuary Flow exposes all headers.
    text = endpoint.text_template or json.dumps(payload_tree(endpoint))
    own_names = {name.lower(): name for name in endpoint.headers}
    exposed = {name.lower() for name in endpoint.expose_headers}
    hidden = [name for name in _HEADER_IN_TEMPLATE.findall(text) if name.lower() in own_names.keys() - exposed]
    remedy = f"list {own_names[hidden[0].lower()]} in exposeHeaders, if the body may hold it" if hidden else ""
    if trial is not None and trial.event.changes is None and "'changes." in failure.problem:
        remedy = "write it inside of {{#if changes}}: a full refresh has no changes"
    return Problem(path, problem, remedy, f"trigger {endpoint.name}")
