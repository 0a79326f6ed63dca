"""What is checked while a DAG is parsed: every template is tried, so that no commit is the first to show a mistake.

Nothing is opened, asked or sent, and the same block is tried once in a process.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from airflow_provider_rfr.exceptions import TemplateError, TriggerConfigError, TriggerProblem
from airflow_provider_rfr.webhooks.config import TriggerBlock, load_document, parse_triggers, unwrapped
from airflow_provider_rfr.webhooks.config_errors import label, path_of
from airflow_provider_rfr.webhooks.endpoint import Endpoint
from airflow_provider_rfr.webhooks.fields import Trial, is_sealed_text, leaves, placeholder_events, plain_tree, trials
from airflow_provider_rfr.webhooks.handlebars.template import compile_template
from airflow_provider_rfr.webhooks.templates import (
    NotJsonError,
    payload_tree,
    render_body,
    render_leaf,
)
from airflow_provider_rfr.webhooks.variables import delivery_id, template_variables

_SOMEWHERE = "https://placeholder.invalid"
_REMEMBERED = 512
_MOST_LEAVES = 500
_SUFFIX = "_sops"
_HEADER_IN_TEMPLATE = re.compile(r"headers\.\[?([!#$%&'*+\-^_`|~0-9A-Za-z]+)")


class _Memory:
    """Problems of blocks by their content; bounded, and safe on threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[TriggerProblem, ...]] = OrderedDict()

    def recall(self, key: bytes) -> tuple[TriggerProblem, ...] | None:
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
            return found

    def remember(self, key: bytes, problems: tuple[TriggerProblem, ...]) -> None:
        with self._lock:
            self._known[key] = problems
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)


_memory = _Memory()


def validate_block(block: TriggerBlock) -> None:
    """Try every template of the block; raises :class:`TriggerConfigError` with all that is wrong."""
    key = _digest(block)
    problems = _memory.recall(key)
    if problems is None:
        problems = tuple(problem for endpoint in block.endpoints for problem in template_problems(endpoint))
        _memory.remember(key, problems)
    if problems:
        raise TriggerConfigError(problems)


def check_triggers(
    document: Mapping[str, Any] | Sequence[Any] | TriggerBlock, *, where: str = "triggers"
) -> TriggerBlock:
    """Read a block and try its templates: what a DAG does while it is parsed.

    :raises TriggerConfigError: with every problem; templates are tried also where other things are wrong
    """
    try:
        block = parse_triggers(document, where=where)
    except TriggerConfigError as error:
        endpoints = _written(document)
        order = {label(name): place for place, name in enumerate(endpoints)}
        found = [*error.problems, *_of_the_rest(endpoints)]
        raise TriggerConfigError(sorted(found, key=lambda each: order.get(each.trigger, -1))) from None
    validate_block(block)
    return block


def check_file(path: str | Path) -> TriggerBlock:
    """The same for a file."""
    return check_triggers(load_document(path), where=str(path))


def template_problems(endpoint: Endpoint) -> list[TriggerProblem]:
    """What is wrong with the endpoint's templates: the first mistake of each. A sealed one is not tried."""
    if is_sealed_text(endpoint.payload_template):
        return []
    whole = list(_first(endpoint, (), None))
    if not whole or endpoint.payload_template is not None:
        return whole
    places: dict[str, tuple[str | int, ...]] = {}
    for place, leaf in leaves(payload_tree(endpoint)):
        if isinstance(leaf, str) and "{{" in leaf:
            places.setdefault(leaf, place)
    tried = islice(places.items(), _MOST_LEAVES)
    return [problem for leaf, place in tried for problem in _first(endpoint, place, leaf)] or whole


def _written(document: Any) -> dict[str, Any]:
    """Endpoints of a block that can't be read, by their names."""
    block = unwrapped(document)
    config = block.get("config") if isinstance(block, Mapping) else None
    if isinstance(config, Sequence) and not isinstance(config, str):
        return {f"trigger{number}": each for number, each in enumerate(config)}
    return {name: each for name, each in config.items() if isinstance(name, str)} if isinstance(config, Mapping) else {}


def _of_the_rest(endpoints: Mapping[str, Any]) -> Iterator[TriggerProblem]:
    """Problems of the templates of a block that is wrong otherwise."""
    for name, raw in endpoints.items():
        endpoint = _mended(raw)
        if endpoint is not None:
            yield from template_problems(endpoint.placed(label(name), 0))


def _mended(raw: Any) -> Endpoint | None:
    """The endpoint without what is wrong in it; None where that leaves nothing to try."""
    if not isinstance(raw, Mapping):
        return None
    given = dict(raw)
    for _ in range(2):
        try:
            return Endpoint.model_validate(plain_tree(given))
        except ValidationError as error:
            wrong = {str(item["loc"][0]) for item in error.errors(include_input=False) if item["loc"]}
            wrong |= {"url", "connection"}
            given = {key: value for key, value in raw.items() if not {str(key), _spelled(key)} & wrong}
            given["url"] = _SOMEWHERE
    return None


def _spelled(key: Any) -> str:
    text = str(key)
    return to_camel(text) if "_" in text else text


def _first(endpoint: Endpoint, place: tuple[str | int, ...], leaf: str | None) -> Iterator[TriggerProblem]:
    """The first mistake of a leaf of the payload, or (None) of the body as a whole."""
    try:
        compile_template(leaf or endpoint.payload_template or "")
    except TemplateError as error:
        yield _problem(endpoint, place, None, error)
        return
    for trial in trials():
        variables = template_variables(
            trial.event,
            delivery_id=delivery_id(trial.event.commit_id, endpoint.name),
            attempt=1,
            trigger_name=endpoint.name,
            headers=_headers(endpoint, trial),
        )
        try:
            if leaf is None:
                render_body(endpoint, variables)
            else:
                render_leaf(endpoint, leaf, variables)
        except TemplateError as error:
            yield _problem(endpoint, place, trial, error)
            return


def _problem(
    endpoint: Endpoint, place: tuple[str | int, ...], trial: Trial | None, error: TemplateError
) -> TriggerProblem:
    path = "" if endpoint.payload_template is not None else path_of((_root(endpoint), *place))
    if trial is not None and isinstance(error, NotJsonError):
        remedy = "outside quotes write {{json name}}" if trial.hostile else ""
        place_there = f"line {error.line}, column {error.column} of the rendered text"
        return TriggerProblem(endpoint.name, path, f"{error.problem} ({place_there}), {trial.words}", remedy)
    problem = f"payload template is invalid: {error}" + (f", {trial.words}" if trial else "")
    return TriggerProblem(endpoint.name, path, problem, _remedy(endpoint))


def _root(endpoint: Endpoint) -> str:
    return "payload" if endpoint.payload is not None else "body"


def _remedy(endpoint: Endpoint) -> str:
    """A header that is there, but that templates may not print, is the mistake of who comes from elsewhere."""
    text = endpoint.payload_template or json.dumps(payload_tree(endpoint))
    known = {name.lower(): name for name in endpoint.headers}
    exposed = {name.lower() for name in endpoint.expose_headers}
    hidden = [name for name in _HEADER_IN_TEMPLATE.findall(text) if name.lower() in known.keys() - exposed]
    return f"list {known[hidden[0].lower()]} in exposeHeaders, if the body may hold it" if hidden else ""


def _headers(endpoint: Endpoint, trial: Trial) -> dict[str, str]:
    """Every header that may be printed, without its value. Of sealed names and connections all could be."""
    unknown = any(map(is_sealed_text, endpoint.expose_headers))
    names = [*endpoint.headers] if unknown else [*endpoint.exposed_headers(), *endpoint.expose_headers]
    return {name.removesuffix(_SUFFIX): trial.header for name in names}


def _digest(block: TriggerBlock) -> bytes:
    """Of the whole content, of which nothing can be told from it."""
    return hashlib.blake2b(json.dumps(block.dump()).encode(), digest_size=32).digest()


__all__ = ["check_file", "check_triggers", "placeholder_events", "template_problems", "validate_block"]
