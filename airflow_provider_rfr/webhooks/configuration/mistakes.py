"""Mistakes of a triggers block in words: what is wrong and what to write, never a value that may be secret.

Inside the models a mistake is a pydantic error; at the block it becomes a :class:`TriggerProblem`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from airflow_provider_rfr.exceptions import TriggerProblem

KIND = "mistake"
_LONGEST_SHOWN_KEY = 40
_SHOWN_KEY = re.compile(r"[\w.\-]+", re.ASCII)
_LIKE_A_SECRET = ("whsec_", "xox", "ghp_", "github_pat_", "sk_", "eyJ")
_WORDS = {
    "missing": "is missing",
    "string_unicode": "is no text: it holds half a character",
    "string_type": "must be text; if it is text to you, put it in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "model_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
}
_NOISE = frozenset({"default_factory_not_called"})


def mistake(
    problem: str, remedy: str = "", *, whole: bool = False, at: Sequence[str | int] = ()
) -> PydanticCustomError:
    """An error to raise in a validator.

    :param whole: the sentence names its place itself
    :param at: place below the validated value
    """
    context = {"problem": problem, "remedy": remedy, "whole": whole, "at": tuple(at)}
    return PydanticCustomError(KIND, "{problem}", context)


def worded(error: ValidationError, known: Mapping[str, str]) -> list[InitErrorDetails]:
    """The same errors as mistakes.

    :param known: fields of the model that refused, by name in Python, as documents have them
    """
    fields = list(known.values())
    items = error.errors(include_url=False, include_input=False)
    below = {item["loc"][:-1] for item in items}
    return [
        details(_mistake_of(item, fields), _place(item, known))
        for item in items
        # A list whose entries are refused is too short as well.
        if item["type"] not in _NOISE and not (item["type"] == "too_short" and item["loc"] in below)
    ]


def _place(item: Mapping[str, Any], known: Mapping[str, str]) -> tuple[str | int, ...]:
    """Where it is; of a field that is not there, pydantic tells the name in Python."""
    place: tuple[str | int, ...] = item["loc"]
    if not place or item["type"] == "extra_forbidden":
        return place
    return known.get(str(place[0]), place[0]), *place[1:]


def details(error: PydanticCustomError, location: Sequence[str | int] = ()) -> InitErrorDetails:
    """The mistake as pydantic collects it; what was written is not kept."""
    context = dict(error.context or {})
    place = (*location, *context.pop("at", ()))
    return InitErrorDetails(type=PydanticCustomError(KIND, "{problem}", context), loc=place, input=None)


def refusal(title: str, found: list[InitErrorDetails]) -> ValidationError:
    """One error for all of them."""
    return ValidationError.from_exception_data(title, found, hide_input=True)


def problem_of(item: Mapping[str, Any], trigger: str, location: Sequence[str | int]) -> TriggerProblem:
    """What the user reads of one pydantic error."""
    context = item.get("ctx", {})
    path = "" if context.get("whole") else path_of(location)
    return TriggerProblem(trigger, path, str(context.get("problem", item["msg"])), str(context.get("remedy", "")))


def path_of(location: Sequence[str | int]) -> str:
    """``retry.maxElapsed``, ``signing.secrets[0]``; a key that may hold a secret is not written out."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{shown(part)}"
    return text.removeprefix(".")


def shown(key: object) -> str:
    """The key as errors may name it."""
    text = str(key)
    plain = len(text) <= _LONGEST_SHOWN_KEY and _SHOWN_KEY.fullmatch(text) and not text.startswith(_LIKE_A_SECRET)
    return text if plain else "(a key that is no name)"


def nearest(name: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown name."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(
        name.lower(), [each.lower() for each in names], 1
    )
    matching = [each for each in names if near and each.lower() == near[0].lower()]
    if matching:
        return f"did you mean {shown(matching[0])}?"
    return f"known are {', '.join(map(shown, names))}" if names else "there are none"


def _mistake_of(item: Mapping[str, Any], fields: list[str]) -> PydanticCustomError:
    kind, context = item["type"], dict(item.get("ctx", {}))
    if kind == KIND:
        return mistake(**context)
    if kind == "extra_forbidden":
        return mistake("unknown field", nearest(str(item["loc"][-1]), fields))
    if kind in _WORDS:
        return mistake(_WORDS[kind].format(**context))
    return mistake(str(item["msg"]).removeprefix("Value error, "))
