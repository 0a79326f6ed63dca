"""Reading of the YAML documents that users write, and messages about their invalid fields.

All documents are strict YAML 1.2 without its rarer forms. Only ``true`` and ``false`` are booleans (``no`` is Norway),
dates, versions and times stay text, numbers are decimal, and a duplicate key is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import yaml

from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.text import cut

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_LONGEST_NUMBER: Final = 100
_MOST_MERGED: Final = 20_000
_PREFIX: Final = "tag:yaml.org,2002:"
_TAGS: Final = (None, *(f"{_PREFIX}{kind}" for kind in ("str", "map", "seq")))
_INT: Final = re.compile(r"[-+]?[0-9]+$")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def plain_value(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar: null, a boolean, a number, or else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER or not _FLOAT.match(text):
        return text
    number = int(text) if _INT.match(text) else float(text)
    return number if math.isfinite(number) else text


class DocumentError(ValueError):
    """A document that can't be parsed. The message quotes none of its content, which may be secret.

    :ivar line: line of the error, from 1, as is ``column``; None if unknown
    :ivar problem: the message without line and column
    :ivar key: the duplicate key, if that is the problem
    :ivar detail: the parser's own message, which may quote the document: only for documents without secrets
    """

    def __init__(
        self, problem: str, line: int | None = None, column: int | None = None, key: str | None = None, detail: str = ""
    ) -> None:
        self.problem = problem
        self.line = line
        self.column = column
        self.key = key
        self.detail = detail
        super().__init__(f"line {line}, column {column}: {problem}" if line else problem)


class StrictLoader(yaml.SafeLoader):
    """A YAML loader that refuses tags, duplicate keys, and more than :data:`_MOST_MERGED` merged keys.

    :ivar explicit: whether anchors, and keys that are not text, are refused, too
    """

    explicit = False
    _merged = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.explicit and event.anchor:
            raise _at(event.start_mark, "anchors and aliases are not allowed; write the value out")
        if getattr(event, "tag", None) not in _TAGS:
            raise _at(event.start_mark, "tags are not read; leave it out")
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Copy merged keys into the mapping, but refuse merges of merges, by which a few lines make any number."""
        for key, value in node.value:
            if key.tag == f"{_PREFIX}merge":
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(part, yaml.MappingNode):
                        self.flatten_mapping(part)
                        self._merged += len(part.value)
                    if self._merged > _MOST_MERGED:
                        raise _at(key.start_mark, f"merges make more than {_MOST_MERGED:,} keys; write fewer")
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if self.explicit and key.tag != f"{_PREFIX}str":
                raise _at(key.start_mark, "a key must be text; put it in quotes")
            if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_PREFIX}merge":
                continue
            # By value: Python takes 1 and 1.0, and 1 and true, for the same key.
            value = self.construct_object(key)
            if value in seen:
                raise _at(key.start_mark, "duplicate key", key.value)
            seen.add(value)
        return super().construct_mapping(node, deep)


def _at(mark: Any, problem: str, key: str | None = None) -> DocumentError:
    return DocumentError(problem, mark.line + 1, mark.column + 1, key)


class _ExplicitLoader(StrictLoader):
    """A strict loader that also refuses anchors, aliases, merges, and keys that are not text."""

    explicit = True


StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag == f"{_PREFIX}merge"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in (
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    StrictLoader.add_implicit_resolver(f"{_PREFIX}{_kind}", _pattern, _first)
StrictLoader.add_constructor(f"{_PREFIX}float", lambda _, node: plain_value(node.value))


def read_yaml(text: str | bytes, *, explicit: bool = False) -> Any:
    """Parse a text that holds one YAML document.

    :param explicit: refuse anchors, aliases, merges, and keys that are not text
    :raises DocumentError: it is not YAML, has a duplicate key or tags, or is nested too deeply
    """
    problem, detail, line, column = "is not YAML", "", None, None
    try:
        return yaml.load(text, _ExplicitLoader if explicit else StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark, detail = error.problem_mark or error.context_mark, str(error.problem or error.context)
        if mark is not None:
            line, column = mark.line + 1, mark.column + 1
    except yaml.YAMLError:
        pass
    except DocumentError:
        raise
    except RecursionError:
        problem = "is nested too deeply"
    # Raised outside of the except blocks, so that its context is no parser error, which may quote the text.
    raise DocumentError(problem, line, column, detail=detail)


_MOST_LISTED: Final = 25
_MOST_BESIDE_GUESS: Final = 12
_MOST_COMPARED: Final = 500
_LONGEST_COMPARED: Final = 100


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the valid name nearest to ``name``; None if none is near, if there are too many, or if it is valid."""
    by_lower_case = {valid.lower(): valid for valid in reversed(list(names))}
    if len(by_lower_case) > _MOST_COMPARED:
        return None
    close = difflib.get_close_matches(name[:_LONGEST_COMPARED].lower(), by_lower_case, 1)
    near = by_lower_case[close[0]] if close else None
    return None if near == name else near


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the nearest valid name, and all valid names if they are few."""
    valid = sorted(names)
    near = nearest(name, valid)
    guess = f"did you mean {near}?" if near else ""
    if guess and len(valid) > _MOST_BESIDE_GUESS:
        return guess
    more = ", ..." if len(valid) > _MOST_LISTED else ""
    return f"{guess} allowed: {', '.join(valid[:_MOST_LISTED]) or 'nothing'}{more}".lstrip()


Location: TypeAlias = tuple[str | int, ...]


def leaves(tree: Any, place: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Yield the values of a tree that are neither mappings nor lists, each with its path from the root."""
    if isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from leaves(item, (*place, key))
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            yield from leaves(item, (*place, index))
    else:
        yield place, tree


_LONGEST_VALUE: Final = 60
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")
_WITHOUT_VALUE: Final = (*_UNKNOWN, "missing", "union_tag_not_found", "union_tag_invalid", "value_error", "too_short")
_NO_MAPPING: Final = ("model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type")
_SENTENCES: Final = {
    "missing": "is missing",
    "union_tag_not_found": "is missing",
    "union_tag_invalid": "is unknown",
    "string_unicode": "is not text: it holds half a character",
    "string_type": "must be text; if it is text to you, put it in quotes",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "must be a UUID"),
    **dict.fromkeys(_NO_MAPPING, "must be a mapping"),
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_long": "must have at most {max_length} entries",
    **dict.fromkeys(("too_short", "string_too_short"), "must not be empty"),
    "string_too_long": "must have at most {max_length} characters",
}
"""Messages by pydantic's types of errors; a remedy may follow after a semicolon."""


def wording(error: ErrorDetails, names: Iterable[str] = ()) -> tuple[str, str]:
    """Return problem and remedy for an error of pydantic. Neither has the invalid value.

    :param names: names of the valid fields, for an error about an unknown field
    """
    kind, context = error["type"], error.get("ctx", {})
    if "problem" in context:
        return str(context["problem"]), str(context["remedy"])
    if kind in _UNKNOWN:
        return "unknown field", suggestion(str(error["loc"][-1]), names)
    if kind == "value_error":
        return error["msg"].removeprefix("Value error, "), ""
    if kind in _SENTENCES:
        problem, _, remedy = _SENTENCES[kind].format(**context).partition("; ")
        return problem, remedy
    message = re.sub("^Input should be ", "must be ", error["msg"])
    return message[:1].lower() + message[1:], ""


def problems_of(
    error: ValidationError,
    model: Any,
    *,
    shows: Callable[[str], bool] = lambda path: False,
    hidden: Collection[str] = (),
) -> dict[Location, Problem]:
    """Translate pydantic's errors into problems, by their places in the document.

    Pydantic reports an error for each branch of a union. They become one problem.

    :param model: the type of the document
    :param shows: tells whether the value at a path may be shown; by default, none is
    :param hidden: fields of the model that documents can't have, so that they are never suggested
    """
    problems: dict[Location, Problem] = {}
    for item in error.errors(include_url=False):
        place, holder, wanted = _walk(item["loc"], model)
        kind, value, tags = item["type"], item["input"], [tag for choice in wanted if (tag := _tag_of(choice))]
        problem, remedy = wording(item, _fields_of(holder).keys() - set(hidden))
        if kind in ("union_tag_not_found", "union_tag_invalid"):
            value, place = item.get("ctx", {}).get("tag"), (*place, "type")
            remedy = f"allowed: {', '.join(tags)}" if value is None else suggestion(str(value), tags)
        path = ".".join(map(str, place))
        text = ""
        if shows(path):
            text = "null" if value is None else type(value).__name__
            if isinstance(value, (str, int, float)):
                text = cut(repr(value), _LONGEST_VALUE)
        if kind in _NO_MAPPING:
            remedy = _mapping_remedy(wanted, tags, text if isinstance(value, str) else "")
        elif kind == "string_type" and not isinstance(value, (bool, int, float)):
            is_required = holder is None or place[-1] in _required_of(holder)
            remedy = "" if value is not None else "write a value" if is_required else "write a value, or leave it out"
        shown = f" (it is {text})" if text and kind not in _WITHOUT_VALUE else ""
        if kind == "union_tag_invalid":
            problem = f"{text} {problem}".strip()
        elif (first := problems.get(place)) is not None:
            others, other = first.problem.removesuffix(shown), problem.removeprefix("must be ")
            problem, remedy = others if other in others else f"{others}, or {other}", first.remedy
        problems[place] = Problem(path, problem + shown, remedy)
    return problems


def _mapping_remedy(wanted: Sequence[Any], tags: Sequence[str], value: str) -> str:
    """Return a remedy with an example of the required fields, or of the first field if none is required.

    :param value: value of the first field of the example; empty for dots
    """
    if tags:
        return f"write type and its fields; allowed: {', '.join(tags)}"
    names = [name for choice in wanted for name in _fields_of(choice)]
    needed = [name for choice in wanted for name in _required_of(choice)] or names[:1]
    example = ", ".join(f"{name}: {value if value and not n else '...'}" for n, name in enumerate(needed))
    return f"write e.g. {{{example}}}; allowed: {', '.join(names)}" if names else ""


# Names that pydantic gives to the branches of a union that are not models.
_BRANCH: Final = re.compile(r"(str|int|bool|float|(list|dict|tuple)\[.*\])$")


def _walk(location: Sequence[str | int], model: Any) -> tuple[Location, Any, list[Any]]:
    """Return the place in the document, the model that holds its last part, and the types that it may have.

    Pydantic's location also names the branches of unions that it tried, which are not part of the document.
    """
    choices, holder, place = [model], model, list[str | int]()
    for part in location:
        is_union = len(choices) > 1
        branch = [choice for choice in choices if part in (_tag_of(choice), getattr(choice, "__name__", None))]
        if is_union and branch and _fields_of(branch[0]):
            choices = branch[:1]
        elif not (is_union and _BRANCH.match(str(part))):
            holder = next(filter(_fields_of, choices), None)
            choices = _choices(_type_at(choices, part))
            place.append(part)
    return tuple(place), holder, choices


def _choices(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, without None."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [choice for item in get_args(annotation) for choice in _choices(item) if choice is not type(None)]
    return [annotation]


def _fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of a model's fields by their names in documents; empty if ``kind`` is no model."""
    model: Any = kind if isinstance(kind, type) else None
    if hasattr(model, "model_fields"):
        model.model_rebuild()  # resolves names of models that are declared further down
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return get_type_hints(model) if dataclasses.is_dataclass(model) else {}


def _required_of(kind: Any) -> list[str]:
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return [field.name for field in dataclasses.fields(kind) if field.default is field.default_factory is missing]
    fields = getattr(kind, "model_fields", {})
    return [field.alias or name for name, field in fields.items() if field.is_required()]


def _tag_of(kind: Any) -> str | None:
    """Return the ``type`` by which a model is recognised in a union."""
    annotation = _fields_of(kind).get("type")
    # A model that allows several values of ``type`` can't be recognised by it.
    values = get_args(annotation) if get_origin(annotation) is Literal else ()
    return str(values[0]) if len(values) == 1 else None


def _type_at(choices: Sequence[Any], part: str | int) -> Any:
    """Return the type of a field, of a mapping's values or of a sequence's items."""
    for choice in choices:
        if part in (fields := _fields_of(choice)):
            return fields[str(part)]
        if get_origin(choice) in (dict, Mapping, list, tuple):
            return [item for item in get_args(choice) if item is not ...][-1]
    return Any
