"""Templates and paths of a definition, and the base of its components.

A text that is exactly one ``{{ expression }}`` gives the expression's value with its type; any other text with
expressions gives text. Templates are compiled once and run in Jinja2's sandbox; an unknown name is an error. In
``record.items`` a key of the record wins over a method of Python's mapping. Paths are dotted: ``data.items``,
``pages.0.next``, ``groups.*.members``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from jinja2 import ChainableUndefined, StrictUndefined, TemplateError, UndefinedError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from pydantic import BaseModel, ConfigDict

from airflow_provider_rfr.documents import nearest, suggestion
from airflow_provider_rfr.exceptions import SourceDefinitionError

CONFIG_NAMES: Final = frozenset({"config"})
REQUEST_NAMES: Final = frozenset({"config", "stream_slice", "token", "page_size"})
RESPONSE_NAMES: Final = frozenset(
    {"config", "stream_slice", "token", "response", "headers", "status", "last_record", "record_count"}
)
PREDICATE_NAMES: Final = RESPONSE_NAMES - {"last_record", "record_count"}
RECORD_NAMES: Final = frozenset({"config", "stream_slice", "record"})
_TEMPLATES_KEPT: Final = 1_000


class _Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


class _AbsentField(ChainableUndefined):
    """A field that a record lacks: it equals null, and so do the fields in it."""

    __slots__ = ()
    __ne__ = object.__ne__

    def __hash__(self) -> int:
        return hash(None)

    def __eq__(self, other: object) -> bool:
        # The other value may refuse the comparison, as an undefined value of the configuration does.
        return True if other is None or isinstance(other, _AbsentField) else NotImplemented


class _RequireSettings(NodeTransformer):
    """A rewriter that makes a missing value of the configuration or the slice an error in a filter."""

    def visit(self, node: nodes.Node, *args: Any, **options: Any) -> nodes.Node:
        root, keys = node, ""
        while isinstance(root, (nodes.Getattr, nodes.Getitem)):
            key = root.attr if isinstance(root, nodes.Getattr) else getattr(root.arg, "value", "?")
            root, keys = root.node, f".{key}{keys}"
        self.generic_visit(node)
        if not keys or not isinstance(root, nodes.Name) or root.name not in RECORD_NAMES - {"record"}:
            return node
        path = nodes.Const(root.name + keys)
        return nodes.Filter(node, "required", [path], [], None, None).set_environment(_filter_environment)


class _FilterEnvironment(_Environment):
    """An environment that evaluates conditions for records."""

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        _RequireSettings().generic_visit(source)
        return super()._generate(source, *args, **options)


def _require(value: Any, path: str) -> Any:
    """Return the value at a path; a missing one is an error wherever it is used."""
    return StrictUndefined(f"{path} is missing") if isinstance(value, _AbsentField) else value


class _Quoted(str):
    """Part of a path that needs no more quoting."""


def _quote_part(value: Any) -> str:
    if isinstance(value, _Quoted):
        return value
    if value is None or str(value) in ("", ".", ".."):
        raise TemplateError(f"a part of the path is {value!r}, which would ask for something else")
    return quote(str(value), safe="")


_text_environment = _Environment(undefined=StrictUndefined, autoescape=False)
_path_environment = _Environment(undefined=StrictUndefined, autoescape=False, finalize=_quote_part)
_path_environment.filters["as_path"] = lambda value: _Quoted(quote(str(value), safe="/"))
_filter_environment = _FilterEnvironment(undefined=_AbsentField, autoescape=False)
_filter_environment.filters["required"] = _require
_filter_environment.tests["none"] = lambda value: value is None or isinstance(value, _AbsentField)


class UndefinedValue(SourceDefinitionError):
    """A template uses a value that is missing this time."""


SourceTemplate: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""Evaluates a compiled value; raises SourceDefinitionError if it fails, UndefinedValue if a value is missing."""


class ConstantTemplate:
    """A value without expressions, which needs no variables."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, variables: Mapping[str, Any]) -> Any:
        return self.value


class _ExpressionTemplate:
    """A text with expressions."""

    __slots__ = ("_place", "_render")

    def __init__(self, render: Callable[..., Any], place: str) -> None:
        self._render = render
        self._place = place

    def __call__(self, variables: Mapping[str, Any]) -> Any:
        kind = SourceDefinitionError
        try:
            value = self._render(variables)
            if not isinstance(value, StrictUndefined):
                return value
            kind, problem = UndefinedValue, str(value._undefined_message)
        except UndefinedError as error:
            kind, problem = UndefinedValue, str(error.message)
        except TemplateError as error:
            problem = str(error.message)
        except Exception as error:  # noqa: BLE001 - an expression may fail in any way
            problem = f"the expression fails with {type(error).__name__}"
        # Raised outside of the handler: the first error may hold secrets, and must not become the context.
        raise kind(self._place, problem, f"known are {', '.join(sorted(variables))}")


def compile_value(
    value: Any, place: str, names: Iterable[str], config: Mapping[str, Any] | None = None
) -> SourceTemplate:
    """Compile any JSON value, with templates in its texts.

    :param place: place of the value in the document
    :param names: the variables that templates may use
    :param config: if given, names after ``config.`` are checked against it now
    :raises SourceDefinitionError: wrong syntax, or an unknown name
    """
    if isinstance(value, str):
        return _compile_text(value, place, frozenset(names), config)
    if isinstance(value, Mapping):
        fields = {str(key): compile_value(item, f"{place}.{key}", names, config) for key, item in value.items()}
        if _are_constant(fields.values()):
            return ConstantTemplate(dict(value))
        return lambda variables: {key: item(variables) for key, item in fields.items()}
    if isinstance(value, list):
        items = [compile_value(item, f"{place}.{number}", names, config) for number, item in enumerate(value)]
        if _are_constant(items):
            return ConstantTemplate(list(value))
        return lambda variables: [item(variables) for item in items]
    return ConstantTemplate(value)


def _are_constant(templates: Iterable[SourceTemplate]) -> bool:
    return all(isinstance(template, ConstantTemplate) for template in templates)


def compile_path(
    text: str, place: str, names: Iterable[str], config: Mapping[str, Any] | None = None
) -> SourceTemplate:
    """Compile a URL path: each inserted value is one quoted part of it (``| as_path`` keeps its slashes)."""
    return _compile_text(text, place, frozenset(names), config, _path_environment)


def compile_condition(
    text: str, place: str, names: Iterable[str], config: Mapping[str, Any] | None = None
) -> SourceTemplate:
    """Compile an expression, with or without its braces."""
    return _compile_text(_with_braces(text), place, frozenset(names), config)


def compile_filter(
    text: str, place: str, config: Mapping[str, Any], slice_fields: Iterable[str]
) -> tuple[SourceTemplate, frozenset[str]]:
    """Compile a condition for records, in which a missing field of a record counts as null rather than as an error.

    :param slice_fields: names after ``stream_slice.`` are checked against them
    :return: the condition, and the fields that it expects in the records
    :raises SourceDefinitionError: wrong syntax, or an unknown name
    """
    text = _with_braces(text)
    condition = _compile_text(text, place, RECORD_NAMES, config, _filter_environment)
    tree, _ = _compiled(text, _filter_environment)
    if _allows_missing(tree):
        return condition, frozenset()
    for name in sorted(_fields_of("stream_slice", tree) - set(slice_fields)):
        remedy = suggestion(name, slice_fields) if slice_fields else "the stream has no partitions; declare them"
        raise SourceDefinitionError(place, f"stream_slice has no {name!r}", remedy)
    return condition, frozenset(_fields_of("record", tree))


def _with_braces(text: str) -> str:
    return text if has_expressions(text) else "{{ " + text + " }}"


def has_expressions(text: str) -> bool:
    """Tell whether a text has template syntax in it."""
    return "{{" in text or "{%" in text or "{#" in text


def _compile_text(
    text: str,
    place: str,
    names: frozenset[str],
    config: Mapping[str, Any] | None,
    environment: _Environment = _text_environment,
) -> SourceTemplate:
    if not has_expressions(text):
        return ConstantTemplate(text)
    problem = ""
    try:
        tree, render = _compiled(text, environment)
    except TemplateError as error:
        problem = str(error.message)
    if problem:
        raise SourceDefinitionError(place, f"{text!r} is not a template: {problem}")
    for name in sorted(meta.find_undeclared_variables(tree) - names - environment.globals.keys()):
        raise SourceDefinitionError(place, f"unknown name {name!r}", suggestion(name, names))
    if config is not None and not _allows_missing(tree):
        for key in sorted(_fields_of("config", tree) - config.keys()):
            raise SourceDefinitionError(place, f"config has no {key!r}", config_remedy(key, config))
    return _ExpressionTemplate(render, place)


def config_remedy(key: str, config: Mapping[str, Any]) -> str:
    """Return the remedy for a key that the configuration does not have."""
    if config:
        return suggestion(key, config)
    return "add it to config of the source, or name the connection that has it (api_conn_id); secrets are for requests"


@lru_cache(_TEMPLATES_KEPT)
def _compiled(text: str, environment: _Environment) -> tuple[nodes.Template, Callable[..., Any]]:
    """Return a template's tree, and the function that renders it; streams of one source share most of their texts.

    :raises TemplateError: the text is not a template
    """
    tree = environment.parse(text)
    outputs = tree.body[0].nodes if len(tree.body) == 1 and isinstance(tree.body[0], nodes.Output) else []
    stripped = text.strip()
    if environment is not _path_environment and len(outputs) == 1 and stripped.startswith("{{"):
        inner = stripped[2:-2].strip("-+").strip()
        return tree, environment.compile_expression(inner, undefined_to_none=False)
    return tree, environment.from_string(text).render


def _allows_missing(tree: nodes.Template) -> bool:
    """Return True if a template handles missing values itself."""
    return any(node.name in ("default", "d") for node in tree.find_all(nodes.Filter)) or any(
        node.name in ("defined", "undefined") for node in tree.find_all(nodes.Test)
    )


def _fields_of(variable: str, tree: nodes.Template) -> set[str]:
    """Return the names that a template reads from a variable, without methods of a mapping."""
    taken: list[tuple[nodes.Expr, Any]] = [(node.node, node.attr) for node in tree.find_all(nodes.Getattr)]
    taken += [(node.node, getattr(node.arg, "value", None)) for node in tree.find_all(nodes.Getitem)]
    return {
        key
        for holder, key in taken
        if isinstance(holder, nodes.Name) and holder.name == variable
        if isinstance(key, str) and not hasattr(dict, key)
    }


Path: TypeAlias = tuple[str, ...]
_WILDCARD: Final = "*"
_SHOWN_KEYS: Final = 12


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()


def parse_path(text: str | Sequence[str]) -> Path:
    """Parse a path: ``""`` is the value itself; a list of keys is for keys with dots in them."""
    if isinstance(text, str):
        return tuple(text.split(".")) if text else ()
    return tuple(text)


def lookup(value: Any, path: Path) -> Any:
    """Return the value at ``path``, or MISSING."""
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key, MISSING)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
        if value is MISSING:
            return MISSING
    return value


def lookup_each(value: Any, path: Path) -> Iterator[Any]:
    """Yield the values at all places that ``path`` matches; ``*`` matches each item of a list or an object."""
    if _WILDCARD not in path:
        yield lookup(value, path)
        return
    at = path.index(_WILDCARD)
    items = lookup(value, path[:at])
    if isinstance(items, Mapping):
        items = list(items.values())
    if not isinstance(items, list):
        yield MISSING
        return
    for item in items:
        yield from lookup_each(item, path[at + 1 :])


def assign(record: MutableMapping[str, Any], path: Path, value: Any) -> None:
    """Set a value, making the objects on the way; an object replaces a value that is not an object."""
    for key in path[:-1]:
        inner = record.get(key)
        if not isinstance(inner, MutableMapping):
            inner = record[key] = {}
        record = inner
    record[path[-1]] = value


def take(record: MutableMapping[str, Any], path: Path) -> Any:
    """Remove the value at ``path`` and return it, or MISSING."""
    holder = lookup(record, path[:-1])
    return holder.pop(path[-1], MISSING) if isinstance(holder, MutableMapping) else MISSING


def describe(value: Any) -> str:
    """Describe the shape of a value without its content, for messages."""
    if value is MISSING:
        return "nothing"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        keys = [str(key) for key in list(value)[:_SHOWN_KEYS]]
        more = ", ..." if len(value) > _SHOWN_KEYS else ""
        return f"an object with the keys {', '.join(keys)}{more}" if keys else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def similar_path(value: Any, path: Path) -> str | None:
    """Return the path of a field at most two levels deep that was probably meant; None if none is similar."""
    ends = {name: name.rpartition(".")[2] for name in _shallow_fields(value)}
    same_key = [name for name, end in ends.items() if end == path[-1]]
    # E.g. next_cursor for next.
    same_word = [name for name, end in ends.items() if path[-1].lower() in end.lower().split("_")]
    return next(iter((*same_key, *same_word)), None) or nearest(".".join(path), list(ends))


def paths_of_lists(value: Any) -> list[str]:
    """Return the paths of all lists of objects at most two levels deep."""
    fields = _shallow_fields(value).items()
    return [path for path, inner in fields if isinstance(inner, list) and inner and isinstance(inner[0], dict)]


def _shallow_fields(value: Any) -> dict[str, Any]:
    """Return the fields of an object and of the objects in it, by their paths; none if it is no object."""
    if not isinstance(value, Mapping):
        return {}
    fields = {str(key): inner for key, inner in value.items()}
    inside = {
        f"{key}.{name}": item
        for key, inner in fields.items()
        if isinstance(inner, Mapping)
        for name, item in inner.items()
    }
    return fields | inside


def where_missing(value: Any, path: Path) -> str:
    """Describe how far ``path`` leads into ``value``, and the value that is there instead."""
    walked: list[str] = []
    for key in path:
        inner = value if key == _WILDCARD else lookup(value, (key,))
        if inner is MISSING:
            break
        value = inner
        walked.append(key)
    place = f"at {'.'.join(walked)} it has" if walked else "it is"
    return f"{place} {describe(value)}"


@dataclass(frozen=True, slots=True)
class Templated:
    """A mark of a field that may hold templates.

    :ivar names: the variables that they may use
    :ivar compile: makes a template of the value, its place and those names
    """

    names: frozenset[str]
    compile: Callable[[Any, str, frozenset[str]], SourceTemplate] = compile_value


OF_CONFIG: Final = Templated(CONFIG_NAMES)


@dataclass(frozen=True, slots=True)
class Scope:
    """The place of a component in the document, and the configuration that its templates know."""

    place: str
    config: Mapping[str, Any] = field(repr=False)

    def at(self, name: str) -> Scope:
        """Return the scope of a field."""
        return Scope(f"{self.place}.{name}" if self.place else name, self.config)

    def resolve(self, value: Any, name: str) -> Any:
        """Return the value of a field whose templates know only the configuration.

        :raises SourceDefinitionError: the template is wrong, or fails
        """
        return self.compile(value, name, CONFIG_NAMES)({"config": self.config})

    def compile(
        self, value: Any, name: str, names: frozenset[str], by: Callable[..., SourceTemplate] = compile_value
    ) -> SourceTemplate:
        """Compile a field; names after ``config.`` are checked now.

        :param names: the variables that templates may use
        :param by: the function of this module that compiles
        :raises SourceDefinitionError: wrong syntax, or an unknown name
        """
        return by(value, self.at(name).place, names, self.config)

    def error(self, name: str, problem: str, remedy: str = "") -> SourceDefinitionError:
        """Return an error that names a field of the component."""
        return SourceDefinitionError(self.at(name).place, problem, remedy)


class Part(BaseModel):
    """A part of the document, and the component that carries it out.

    Most components are bound once, before the first request: ``bind`` returns a copy whose private attributes hold
    the compiled templates and whatever the methods need of the configuration; it raises SourceDefinitionError if a
    template is wrong. The unbound one stays what the fingerprint is made of. Types are strict: ``page_size: true``
    isn't 1, ``"5"`` isn't 5.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        # Every executor imports this: only the models that are used are built.
        defer_build=True,
    )

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """Return no values: a credential may be written into the document itself."""
        return []
