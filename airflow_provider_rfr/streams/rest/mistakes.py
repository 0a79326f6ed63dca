"""Turns what the models refuse into one error that says where, what, and what is allowed."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.secret_names import is_secret
from airflow_provider_rfr.streams.rest.definition import SourceDefinition
from airflow_provider_rfr.streams.rest.interpolation import nearest

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong."""

    path: str
    problem: str
    remedy: str = ""


def validated(document: Mapping[str, Any], file: str | None) -> SourceDefinition:
    """The document as models.

    :raises SourceDefinitionError: naming every mistake
    """
    details: Sequence[ErrorDetails] = ()
    try:
        return SourceDefinition.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False)
    # Raised out here: the validation error holds the document's values.
    raise combined([_mistake(item) for item in details], file)


def combined(mistakes: Sequence[Mistake], file: str | None) -> SourceDefinitionError:
    """One error for several mistakes; its path is the first one's."""
    unique = list({item.path: item for item in reversed(mistakes)}.values())[::-1]
    first, rest = unique[0], unique[1:]
    others = "".join(f"\n  and {m.path}: {m.problem}" + (f"; {m.remedy}" if m.remedy else "") for m in rest)
    if first.remedy:
        return SourceDefinitionError(first.path, first.problem, first.remedy + others, file=file)
    return SourceDefinitionError(first.path, first.problem + others, file=file)


def _mistake(error: ErrorDetails) -> Mistake:
    location, kind = error["loc"], error["type"]
    path, holder, wanted = _walk(location)
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        return Mistake(path, "unknown field", nearest(str(location[-1]), _names(holder)))
    if kind == "missing":
        return Mistake(path, "is missing")
    if kind == "union_tag_not_found":
        return Mistake(f"{path}.type", "is missing", f"allowed: {', '.join(_tags(wanted))}")
    if kind == "union_tag_invalid":
        tag = str(context.get("tag", ""))
        return Mistake(f"{path}.type", f"{tag!r} is unknown", nearest(tag, _tags(wanted)))
    if kind == "value_error":
        return Mistake(path or "document", error["msg"].removeprefix("Value error, "))
    value = "" if _is_secret(path) else _shown(error["input"])
    if kind == "literal_error":
        return Mistake(path, f"{value} is not allowed".strip(), f"allowed: {context.get('expected', '')}")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Mistake(path or "document", f"{value or 'what it is'} is not a mapping", _as_mapping(wanted, value))
    message = error["msg"][:1].lower() + error["msg"][1:]
    return Mistake(path or "document", f"{message} (it is {value})" if value else message)


def _as_mapping(wanted: Any, value: str) -> str:
    """What to write where a mapping is wanted, with the value in its first field."""
    if tags := _tags(wanted):
        return f"write type and its fields; allowed: {', '.join(tags)}"
    names = [name for choice in _choices(wanted) for name in _names(choice)]
    return f"write e.g. {{{names[0]}: {value or '...'}}}; allowed: {', '.join(names)}" if names else ""


def _tags(annotation: Any) -> list[str]:
    return [tag for choice in _choices(annotation) if (tag := _tag_of(choice)) is not None]


def _is_secret(path: str) -> bool:
    return ".authenticator" in f".{path}" or any(is_secret(part) for part in path.split("."))


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _names(holder: Any) -> list[str]:
    if not (isinstance(holder, type) and issubclass(holder, BaseModel)):
        return []
    return [field.alias or name for name, field in holder.model_fields.items()]


def _walk(location: Sequence[str | int]) -> tuple[str, Any, Any]:
    """The path as the document has it, the model that holds its last part, and what is wanted there.

    Pydantic's location also names the branches of unions that it tried; those are no part of the document.
    """
    current: Any = SourceDefinition
    holder: Any = current
    shown: list[str] = []
    for part in location:
        choices = _choices(current)
        branch = next((c for c in choices if _tag_of(c) == part), None) if len(choices) > 1 else None
        if branch is not None:
            current = branch
            continue
        if len(choices) > 1 and part in _BRANCHES:
            continue
        holder = next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)
        current = _inside(choices, part)
        shown.append(str(part))
    return ".".join(shown), holder, current


_BRANCHES = frozenset({"str", "int", "bool", "list[str]", "list[list[str]]", "list[any]", "float"})


def _choices(annotation: Any) -> list[Any]:
    """The types that may stand here, without None."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [c for item in get_args(annotation) for c in _choices(item) if c is not type(None)]
    return [annotation]


def _tag_of(model: Any) -> str | None:
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or "type" not in model.model_fields:
        return None
    annotation = model.model_fields["type"].annotation
    return str(get_args(annotation)[0]) if get_origin(annotation) is Literal else None


def _inside(choices: Sequence[Any], part: str | int) -> Any:
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, BaseModel):
            choice.model_rebuild()  # resolves names of models that are declared further down
            for name, field in choice.model_fields.items():
                if part in (name, field.alias):
                    return field.annotation
        elif get_origin(choice) is dict:
            return get_args(choice)[1]
        elif get_origin(choice) is list:
            return get_args(choice)[0]
    return Any
