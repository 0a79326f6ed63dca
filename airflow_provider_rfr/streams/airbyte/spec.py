"""The parts of a manifest that can be read without a request: its configuration, its limits, a report of its streams.

The configuration has a specification, secrets and problems, and its fields are in a connection. The limits hold for all
processes of a refresh together; the CDK would apply ``api_budget`` in each, so ten would send ten times as many
requests.

Airflow's parser of DAGs imports this module. So it imports neither the CDK nor an HTTP client, and parses of a
manifest's file the specification alone.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import yaml

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.streams.incremental import CursorColumn, Write, writes_of

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.airbyte._cdk import Interpreted, Paging

_SPEC: Final = re.compile(r"^[\"']?spec[\"']?\s*:.*?(?=^[^\s#]|\Z)", re.MULTILINE | re.DOTALL)
_REFERENCE: Final = "$ref"
_ALTERNATIVES: Final = ("oneOf", "anyOf", "allOf")
# Names under which ApiHook puts a connection's password, and all of its fields, into the configuration.
_OF_PASSWORD: Final = frozenset({"password", "token", "api_key"})
_OF_EVERY_CONNECTION: Final = _OF_PASSWORD | {"base_url", "login", "username", "client_id"}


def merged(config: Mapping[str, Any], secrets: Mapping[str, Any]) -> dict[str, Any]:
    """Merge secrets into a configuration; mappings in both are merged, too, as secrets are often in ``credentials``."""
    both_settings = dict(config)
    for name, value in secrets.items():
        before = both_settings.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        both_settings[name] = merged(before, value) if both else value  # type: ignore[arg-type]  # both are mappings
    return both_settings


def fitting(config: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Remove unspecified fields that every connection has, if the manifest accepts only fields that it specifies."""
    specified = spec.get("properties") or {}
    refused = _OF_EVERY_CONNECTION - specified.keys() if spec.get("additionalProperties") is False else ()
    return {name: value for name, value in config.items() if name not in refused}


def specification(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of the configuration; empty if the manifest has none."""
    spec = _resolved(manifest.get("spec"), manifest)
    schema = spec.get("connection_specification") if isinstance(spec, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def written_specification(path: Path) -> Mapping[str, Any]:
    """Return the specification of a manifest's file, by its block of YAML alone; empty if that can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            return specification(json.loads(text))
        block = _SPEC.search(text)
        return specification(yaml.safe_load(block[0])) if block else {}
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return {}


def _resolved(value: Any, manifest: Mapping[str, Any]) -> Any:
    """Return the value with its references resolved as the CDK does; a reference to nothing is removed."""
    if isinstance(value, list):
        return [_resolved(item, manifest) for item in value]
    if not isinstance(value, Mapping):
        return value
    plain = {name: _resolved(item, manifest) for name, item in value.items() if name != _REFERENCE}
    if not isinstance(value.get(_REFERENCE), str):
        return plain
    target: Any = manifest
    for part in value[_REFERENCE].removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, Mapping) else None
    target = _resolved(target, manifest)
    return {**target, **plain} if isinstance(target, Mapping) else target if target is not None else plain


def without_secrets(config: Mapping[str, Any], secrets: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the configuration that may be stored.

    It has neither ``secrets``, nor fields that are secret by the specification or by their name.
    """
    public: dict[str, Any] = {}
    for name, value in config.items():
        below = list(_properties(spec, name))
        hidden = secrets.get(name)
        if isinstance(value, Mapping):
            inner = {"oneOf": below}
            public[name] = without_secrets(value, hidden if isinstance(hidden, Mapping) else {}, inner)
        elif name not in secrets and not is_secret(name) and not any(schema.get("airbyte_secret") for schema in below):
            public[name] = value
    return public


def secret_values(config: Mapping[str, Any], public: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values that ``without_secrets`` has removed."""
    for name, value in config.items():
        if name not in public:
            yield value
        elif isinstance(value, Mapping):
            yield from secret_values(value, public[name])


def _properties(spec: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of a property, from each of a schema's alternatives."""
    properties = spec.get("properties")
    if isinstance(properties, Mapping) and isinstance(properties.get(name), Mapping):
        yield properties[name]
    for key in _ALTERNATIVES:
        for alternative in spec.get(key) or ():
            if isinstance(alternative, Mapping):
                yield from _properties(alternative, name)


def secret_places(spec: Mapping[str, Any], config: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the places of fields that are in the configuration although the manifest calls them secret.

    A place has the names from the outermost to the field's own.
    """
    for name, value in config.items() if isinstance(config, Mapping) else ():
        below = list(_properties(spec, name))
        if any(schema.get("airbyte_secret") for schema in below):
            yield (*above, name)
        else:
            yield from secret_places({"allOf": below}, value, *above, name)


def connection_field(place: tuple[str, ...], *, secret: bool) -> str:
    """Return the field of a connection from which the source takes this field of its configuration."""
    if not secret:
        return "extra." + ".".join(place)
    is_password = len(place) == 1 and place[0] in _OF_PASSWORD
    return "password" if is_password else "extra.secrets." + ".".join(place)


@dataclass(frozen=True, slots=True)
class ConfigField:
    """A field of the configuration that holds a value, and not other fields.

    :ivar place: names from the outermost to its own
    :ivar kind: type of its values, or the allowed values
    :ivar choice: title of the alternative that it belongs to
    """

    place: tuple[str, ...]
    kind: str
    is_secret: bool
    is_required: bool
    title: str
    choice: str = ""


def config_fields(spec: Mapping[str, Any], *above: str, choice: str = "") -> Iterator[ConfigField]:
    """Yield the fields that a manifest specifies, in its order."""
    properties, required = spec.get("properties"), spec.get("required") or ()
    for name, field in properties.items() if isinstance(properties, Mapping) else ():
        alternatives = [
            alternative for key in _ALTERNATIVES for alternative in field.get(key) or () if "properties" in alternative
        ]
        if "properties" in field or alternatives:
            yield from config_fields(field, *above, name, choice=choice)
            continue
        values = field.get("enum") or ([field["const"]] if "const" in field else [])
        kinds = list(map(repr, values)) or field.get("type", "string")
        kind = " or ".join(kinds if isinstance(kinds, list) else [kinds])
        title = str(field.get("title") or "")
        is_hidden = bool(field.get("airbyte_secret"))
        yield ConfigField((*above, name), kind, is_hidden, name in required, title, choice)
    for alternative in (
        alternative for key in _ALTERNATIVES for alternative in spec.get(key) or () if isinstance(alternative, Mapping)
    ):
        yield from config_fields(alternative, *above, choice=str(alternative.get("title") or choice))


def config_problems(specification: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield field and problem for each mismatch with the manifest's specification. No value is named."""
    from jsonschema import Draft7Validator

    for error in Draft7Validator(specification).iter_errors(config):
        place = ".".join(["config", *map(str, error.absolute_path)])
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield from ((f"{place}.{name}", "is missing") for name in missing)
        else:
            yield place, f"does not fit the manifest's specification, {_constraint(error)}"


def manifest_problem(error: Any) -> str | None:
    """Return place and problem of a manifest that does not fit the CDK's schema; None for any other error.

    No value is named.
    """
    from jsonschema import ValidationError

    while error is not None and not (isinstance(error, ValidationError) and error.absolute_path):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    while error.context:
        # Several components are allowed here: report the errors of the one whose type matches.
        others = {cause.schema_path[0] for cause in error.context if "type" in cause.relative_path}
        fitting = [cause for cause in error.context if cause.schema_path[0] not in others]
        if not fitting:
            if error.instance.get("type") == "CustomIncrementalSync":
                problem = "CustomIncrementalSync is code for airbyte-cdk before 7, which 7 does not run"
                return f"{_place(error)}: {problem}: take a newer manifest, or write a DatetimeBasedCursor"
            types = {kind for cause in error.context if cause.validator == "enum" for kind in cause.validator_value}
            return f"{_place(error)}.type: must be one of {', '.join(sorted(types))}"
        error = max(fitting, key=lambda cause: len(cause.absolute_path))
    return f"{_place(error)}: does not fit the CDK's schema, {_constraint(error)}"


def _place(error: Any) -> str:
    return ".".join(map(str, error.absolute_path))


def _constraint(error: Any) -> str:
    """Return the violated rule of the schema, e.g. ``type: integer``."""
    wanted = error.validator_value
    return f"{error.validator}: {', '.join(map(str, wanted)) if isinstance(wanted, list) else wanted}"[:300]


_REQUESTERS: Final = ("requester", "creation_requester")
_DAY: Final = "2025-12-01"
_DAY_PATTERN: Final = r"\d{4}-\d\d-\d\d"
_TIMES: Final = (
    f"{_DAY}T00:00:00Z",
    f"{_DAY}T00:00:00.000Z",
    _DAY,
    f"{_DAY} 00:00:00",
    f"{_DAY}T00:00:00",
    "12/01/2025",
    "01/12/2025 00:00",
)
_TIME_NAME: Final = re.compile(r"date|start|since|until|(^|_)end(_|$)")
_TEXTS: Final = (
    "made-up",
    "madeup",
    "MADEUP",
    "1",
    "12345678",
    "made.up.example",
    "https://made-up.example",
    "2025",
    "P1D",
)


def sample_config(schema: Mapping[str, Any], *, all_fields: bool = False) -> dict[str, Any]:
    """Return values for the fields that are required, have a default, or look like a start time.

    :param all_fields: also for all other fields
    """
    values: dict[str, Any] = {}
    for part in [schema, *(schema.get("oneOf") or schema.get("anyOf") or [])[:1]]:
        required = set(part.get("required") or ())
        for name, field in (part.get("properties") or {}).items():
            is_needed = name in required or {"const", "default"} & field.keys() or "start" in name
            if all_fields or is_needed or field.get("type") == "object":
                values[name] = _stand_in(field, name, all_fields)
    return values


def _stand_in(schema: Mapping[str, Any], name: str, all_fields: bool) -> Any:
    for key in ("const", "default"):
        if schema.get(key) not in (None, ""):
            return copy.deepcopy(schema[key])
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = schema.get("type") or ("object" if "oneOf" in schema or "properties" in schema else "string")
    kind = kinds if isinstance(kinds, str) else next(kind for kind in kinds if kind != "null")
    if kind == "object":
        return sample_config(schema, all_fields=all_fields)
    if kind == "array":
        return [_stand_in(schema.get("items") or {}, name, all_fields)]
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return False if kind == "boolean" else _text(schema, name)


def _text(schema: Mapping[str, Any], name: str) -> str:
    """Return a text that fits the pattern, if any candidate does."""
    written = schema.get("examples") or []
    examples = [str(example) for example in (written if isinstance(written, list) else [written])]
    pattern = schema.get("pattern") or ""
    is_time = "date" in str(schema.get("format")) or _TIME_NAME.search(name) is not None
    if is_time and not pattern and examples and re.fullmatch(_DAY_PATTERN, examples[0]):
        return _DAY
    times = (_DAY,) if schema.get("format") == "date" else _TIMES
    candidates: list[str] = [*(times if is_time else ()), *examples, *_TEXTS, *times]
    return next((text for text in candidates if re.search(pattern, text)), candidates[0])


#: Fields of a budget that concern answers of the API. A refresh slows down only for 429.
_OF_ANSWERS: Final = ("ratelimit_reset_header", "ratelimit_remaining_header", "status_codes_for_ratelimit_hit")

#: Key of the definition that reads changes, where a stream has two.
OF_CHANGES: Final = "incremental_stream"
_DATETIME: Final = "DatetimeBasedCursor"
#: Formats of the CDK that are no formats of strftime.
_FORMATS: Final = {"%s": "epoch", "%s_as_float": "epoch", "%ms": "epoch_ms", "%epoch_microseconds": "epoch_us"}

Render = Callable[[str, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """Limits of one stream; None where the manifest sets none.

    :ivar concurrency: requests in flight
    :ivar not_kept: fields of ``api_budget`` that have no effect
    """

    requests_per_second: float | None = None
    concurrency: int | None = None
    not_kept: tuple[str, ...] = ()

    def words(self) -> Iterator[str]:
        """Yield the limits as text for messages."""
        if self.requests_per_second is not None:
            yield f"at most {self.requests_per_second:.4g} requests per second"
        if self.concurrency is not None:
            yield f"at most {self.concurrency} requests at the same time"


def limits_of(
    budget: Any, nodes: Iterable[Mapping[str, Any]], concurrency: int | None, render: Render
) -> ManifestLimits:
    """Return the limits of a stream.

    :param budget: ``api_budget`` of the manifest
    :param nodes: all mappings in the definition of the stream, which includes its parents
    :param render: renders a template with the configuration; returns an empty text if it needs more
    :raises ConfigurationError: a rate is invalid
    """
    if not isinstance(budget, Mapping):
        return ManifestLimits(concurrency=concurrency)
    requests = [_request(node, render) for node in nodes if {"url_base", "url"} & node.keys()]
    rates = [rate for policy in budget.get("policies") or () for rate in _rates(policy, requests, render)]
    if not rates:
        return ManifestLimits(concurrency=concurrency)
    not_kept = tuple(name for name in _OF_ANSWERS if budget.get(name) not in (None, [429]))
    return ManifestLimits(min(rates), concurrency, not_kept)


def _request(requester: Mapping[str, Any], render: Render) -> tuple[str, str]:
    """Return method and address of a requester; the address is empty if it depends on the slice."""
    parameters = requester.get("$parameters") or {}
    base = render(str(requester.get("url") or requester.get("url_base")), parameters)
    path = str(requester.get("path") or "")
    rendered = render(path, parameters)
    is_known = base.startswith("http") and bool(rendered or not path)
    address = f"{base.rstrip('/')}/{rendered.lstrip('/')}" if is_known else ""
    return str(requester.get("http_method") or "GET").upper(), address


def _rates(policy: Mapping[str, Any], requests: list[tuple[str, str]], render: Render) -> Iterator[float]:
    """Yield the rates of a policy that may apply to one of the requests."""
    matchers = policy.get("matchers") or [{}]
    concerned = [matcher for matcher in matchers if any(_may_match(matcher, *request) for request in requests)]
    if not concerned:
        return
    weight = max(_number(matcher.get("weight") or 1, render) for matcher in concerned)
    if policy.get("type") == "FixedWindowCallRatePolicy":
        yield _number(policy["call_limit"], render) / _seconds(policy["period"]) / weight
    for rate in policy.get("rates") or ():
        yield _number(rate["limit"], render) / _seconds(rate["interval"]) / weight


def _may_match(matcher: Mapping[str, Any], method: str, address: str) -> bool:
    """Return True if the matcher may apply to a request of this method and address."""
    if str(matcher.get("method") or method).upper() != method:
        return False
    if not address:
        return True
    parts = urlsplit(address)
    base, pattern = matcher.get("url_base"), matcher.get("url_path_pattern")
    if base and base.rstrip("/") != f"{parts.scheme}://{parts.netloc}":
        return False
    return not pattern or re.search(pattern, parts.path.rstrip("/")) is not None


def _number(value: Any, render: Render) -> int:
    text = render(str(value), {})
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError("source.manifest", f"api_budget: {value!r} is not a positive number of requests")
    return int(text)


def _seconds(duration: str) -> float:
    from isodate import ISO8601Error, parse_duration

    try:
        parsed = parse_duration(duration)
    except ISO8601Error:
        parsed = None
    if not isinstance(parsed, timedelta) or parsed <= timedelta():
        problem = f"api_budget: {duration!r} is not a duration in days or smaller units"
        raise ConfigurationError("source.manifest", problem, "write one such as PT1S or PT1M")
    return parsed.total_seconds()


Resumable: TypeAlias = Literal["by page", "by slice", "one request", "no"]


def address_of(definition: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the address that a stream is read from, as a template with its parameters; empty text for none."""
    retriever = definition.get("retriever")
    requesters = (retriever.get(name) for name in _REQUESTERS) if isinstance(retriever, Mapping) else ()
    requester = next((requester for requester in requesters if isinstance(requester, Mapping)), {})
    address, parameters = requester.get("url_base") or requester.get("url"), requester.get("$parameters")
    return str(address or ""), parameters if isinstance(parameters, Mapping) else {}


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A report of one stream.

    :ivar resumable: the unit after which an interrupted refresh continues; None where that is not known
    :ivar why: the reason for ``resumable``, for people
    :ivar partitions: kinds of the routers that divide it, with their parents or steps; its partitions are their product
    :ivar schema: ``declared``, ``none``, or its origin
    :ivar json_schema: the schema that the manifest declares; None where the API is asked for it, or code makes it
    :ivar is_readable: whether it can be read at all
    :ivar incremental: the ways to write an incremental sync
    :ivar why_incremental: the reason for these ways, for people
    :ivar notes: its limits, and the parts of the manifest that have no effect
    """

    name: str
    resumable: Resumable | None
    why: str
    partitions: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    schema: str = "declared"
    json_schema: Mapping[str, Any] | None = None
    is_readable: bool = True
    notes: tuple[str, ...] = ()
    incremental: tuple[Write, ...] = ()
    why_incremental: str = ""


def report_of(stream: Interpreted, paging: Paging, limits: ManifestLimits, column: CursorColumn | None) -> StreamReport:
    """Return the report of a stream that the manifest declares.

    :param column: as of :func:`cursor_column`
    """
    partitions, schema = tuple(_partitions(stream.definition)), _schema(stream.definition)
    resumable: Resumable = "by page" if paging.by_page else "by slice"
    why = paging.why
    if not partitions and paging.is_one_page:
        resumable, why = "one request", "no paging, no partitions"
    elif not partitions and not paging.by_page:
        resumable, why = "no", f"{why}, and there is one slice"
    json_schema = with_cursor(stream.schema, column) if schema == "declared" else None
    if schema == "declared" and json_schema is None:
        schema = "none"
    key, notes = tuple(stream.primary_key or ()), (*limits.words(), *warnings_of(stream.definition, limits))
    writes, why_writes = _writes(stream.declared, column, has_key=bool(key))
    return StreamReport(
        *(stream.name, resumable, why, partitions, key, schema, json_schema),
        notes=notes,
        incremental=writes,
        why_incremental=why_writes,
    )


def with_cursor(schema: Mapping[str, Any], column: CursorColumn | None) -> Mapping[str, Any] | None:
    """Return the schema of a stream's rows, with the cursor column; None where it has no fields."""
    properties = schema.get("properties")
    if properties and column is not None and column.name not in properties:
        # The column is kept, because its values tell which version of a row is newer, and how far the stream was read.
        return {**schema, "properties": {**properties, column.name: {"type": ["null", "string"]}}}
    return schema if properties else None


def _writes(
    declared: Mapping[str, Any], column: CursorColumn | None, *, has_key: bool
) -> tuple[tuple[Write, ...], str]:
    """Return the ways to write an incremental sync of a stream, and the reason for them."""
    if column is None:
        return (), why_not_incremental(declared)
    why = f"by {column.name}"
    if OF_CHANGES in declared:
        why = f"{why}, changes by {OF_CHANGES}"
    return writes_of(has_key, why)


def warnings_of(definition: Mapping[str, Any], limits: ManifestLimits) -> Iterator[str]:
    """Yield a warning for each setting of the manifest that a refresh does not support."""
    if definition.get("file_uploader"):
        yield "only rows are read, and files are not fetched (file_uploader)"
    yield from (
        f"api_budget.{field} has no effect; only answers 429 slow the refresh down" for field in limits.not_kept
    )


def cursor_column(declared: Mapping[str, Any], render: Render) -> CursorColumn | None:
    """Return the column by which a stream is read incrementally; None if it can't be.

    :param declared: definition of the stream in the manifest
    :param render: as of :func:`limits_of`
    """
    cursor = _cursor_of(declared)
    if cursor.get("type") != _DATETIME:
        return None
    name = render(str(cursor["cursor_field"]), cursor.get("$parameters") or {})
    formats = [*(cursor.get("cursor_datetime_formats") or ()), cursor["datetime_format"]]
    *before, last = [_FORMATS.get(form, form.replace("%_ms", "%f")) for form in formats]
    return CursorColumn(name, format=last, tried_before=tuple(before))


def why_not_incremental(declared: Mapping[str, Any]) -> str:
    """Return the problem of a stream that can't be read incrementally."""
    kind = _cursor_of(declared).get("type")
    if kind is None:
        return "the manifest has no incremental_sync for this stream"
    return f"the stream's incremental_sync is of type {kind}, and only {_DATETIME} is read incrementally"


def _cursor_of(declared: Mapping[str, Any]) -> Mapping[str, Any]:
    cursor = (declared.get(OF_CHANGES) or declared).get("incremental_sync")
    return cursor if isinstance(cursor, Mapping) else {}


def custom_classes(definition: Mapping[str, Any]) -> list[str]:
    """Return the names of the connector's own classes that help to read a slice."""
    retriever = definition.get("retriever") or {}
    names: list[str] = []
    for node in nodes_of([{**retriever, "partition_router": None}, definition.get("transformations")]):
        name = str(node.get("class_name") or "")
        # An authenticator keeps a token, which is the same for each page.
        if name and not name.startswith("airbyte_cdk.") and node.get("type") != "CustomAuthenticator":
            names.append(name.rpartition(".")[2])
    return list(dict.fromkeys(names))


def nodes_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings in a part of a manifest."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from nodes_of(item)


def report_of_listing(definition: Mapping[str, Any]) -> StreamReport:
    """Return the report of streams that only the API can list."""
    template = definition.get("stream_template")
    template = template if isinstance(template, Mapping) else {}
    name = str(definition.get("name") or template.get("name") or "dynamic_streams")
    why = "not known before the API lists these streams"
    column, partitions = cursor_column(template, lambda text, parameters: text), tuple(_partitions(template))
    writes, why_writes = _writes(template, column, has_key=bool(template.get("primary_key")))
    return StreamReport(
        name, None, why, partitions, schema=_schema(template), incremental=writes, why_incremental=why_writes
    )


def _partitions(definition: Mapping[str, Any]) -> Iterator[str]:
    routers = (definition.get("retriever") or {}).get("partition_router") or []
    for router in routers if isinstance(routers, list) else [routers]:
        yield _router(router)
    cursor = definition.get("incremental_sync") or {}
    if cursor.get("type") == _DATETIME:
        yield f"DatetimeBasedCursor by {cursor['step']}" if cursor.get("step") else "DatetimeBasedCursor, one window"


def _router(router: Mapping[str, Any]) -> str:
    kind = str(router.get("class_name") or router.get("type"))
    parents = [
        str(parent_stream_config.get("stream", {}).get("name"))
        for parent_stream_config in router.get("parent_stream_configs") or ()
    ]
    inner = router.get("underlying_partition_router")
    if isinstance(inner, Mapping):
        return f"{kind} of {_router(inner)}"
    values = router.get("values")
    if isinstance(values, list):
        return f"{kind} of {len(values)} values"
    return f"{kind} of {', '.join(parents)}" if parents else kind


def _schema(definition: Mapping[str, Any]) -> str:
    loaders = definition.get("schema_loader") or []
    kinds = {str(loader.get("type")) for loader in (loaders if isinstance(loaders, list) else [loaders])}
    if "DynamicSchemaLoader" in kinds:
        return "asked of the API"
    return "made by code" if "CustomSchemaLoader" in kinds else "declared"
