"""Names, durations and errors of a triggers block. An error says what to write, and never a value that may be secret.

Inside the models an error is a pydantic error; at the block it becomes a :class:`TriggerProblem`.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainValidator,
    SecretStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

from airflow_provider_rfr.exceptions import TriggerProblem

if TYPE_CHECKING:
    from typing_extensions import Self


_KIND = "mistake"
_LONGEST_SHOWN_KEY = 40
_SHOWN_KEY = re.compile(r"[\w.\-]+", re.ASCII)
_LIKE_A_SECRET = ("whsec_", "xox", "ghp_", "github_pat_", "sk_", "eyJ")
_WORDS = {
    "missing": "is missing",
    "string_unicode": "is not text: it holds half a character",
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
    return PydanticCustomError(_KIND, "{problem}", context)


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
    return InitErrorDetails(type=PydanticCustomError(_KIND, "{problem}", context), loc=place, input=None)


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
    return text if plain else "(a key that is not a name)"


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
    if kind == _KIND:
        return mistake(**context)
    if kind == "extra_forbidden":
        return mistake("unknown field", nearest(str(item["loc"][-1]), fields))
    if kind in _WORDS:
        return mistake(_WORDS[kind].format(**context))
    return mistake(str(item["msg"]).removeprefix("Value error, "))


LONGEST_NAME = 128
NAME_PATTERN = r"^[\w.\-]+$"
"""For JSON schema; as near as regular expressions of both Python and JavaScript come."""

_LONGEST_QUOTED = 60
_REMEDY = "use letters, numbers, - _ ."


def check_name(name: str, of: str = "trigger") -> str:
    """Raises a mistake that shows the first part that is wrong."""
    fault = _fault(name)
    if fault is not None:
        raise mistake(f"{quoted(name)} cannot be used as name for {of} ({fault})", _REMEDY)
    return name


def made_name(text: str) -> str:
    """A name made of any text."""
    usable = "".join(part if _fault(part) is None else "_" for part in text[:LONGEST_NAME])
    return usable or "_"


def label(name: str) -> str:
    """The name as errors show it, also where it is none."""
    return name if _fault(name) is None else quoted(name)


def quoted(text: str) -> str:
    """In quotes, on one line, and not too long."""
    cut = text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}…"
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def _fault(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > LONGEST_NAME:
        return f"it has more than {LONGEST_NAME} characters"
    wrong = next((part for part in name if part not in "-_." and unicodedata.category(part)[0] not in "LN"), None)
    return None if wrong is None else f"{quoted(wrong)} is invalid"


_DURATION_PATTERN = r"^\d+(s|m|h|d)$"
_FORM = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(float):
    """Seconds.

    :ivar text: as it was written
    """

    text: str

    def __new__(cls, text: str) -> Duration:
        form = _FORM.fullmatch(text)
        if form is None:
            raise ValueError("no duration")
        made = super().__new__(cls, int(form[1]) * _SECONDS[form[2]])
        made.text = text
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text,)


def read_duration(value: Any) -> Duration:
    """Text to seconds; raises a mistake for anything that is not exactly a number and a unit."""
    if isinstance(value, Duration):
        return value
    if isinstance(value, str) and _FORM.fullmatch(value):
        return Duration(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        raise mistake("a duration needs its unit", f"write {value}s")
    raise mistake("is not a duration", "write a whole number and s, m, h or d, e.g. 45s or 30m")


def between(shortest: str, longest: str) -> Callable[[Any], Duration]:
    """A validator of durations within these bounds."""
    low, high = Duration(shortest), Duration(longest)

    def check(value: Any) -> Duration:
        duration = read_duration(value)
        if not low <= duration <= high:
            raise mistake(f"must be from {shortest} to {longest}")
        return duration

    return check


DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": _DURATION_PATTERN})
Wait = Annotated[Duration, PlainValidator(between("0s", "30d")), DURATION_SCHEMA]
"""Any duration up to a month."""


class TriggerModel(BaseModel):
    """Frozen; reads ``camelCase`` and ``snake_case``, writes ``camelCase``, refuses what it does not know."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        revalidate_instances="never",
    )

    camel_case_only: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise mistake("must be a mapping")
        written, twice = cls._spelled(data)
        found = [details(each) for each in (*twice, *cls.contradictions(written))]
        try:
            model = handler(written)
        except ValidationError as error:
            raise refusal(cls.__name__, [*worded(error, cls._by_name()), *found]) from None
        if found:
            raise refusal(cls.__name__, found)
        return model

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """What does not go together, or is lacking, told from the fields that are written (by their ``camelCase``)."""
        return []

    @classmethod
    def spellings(cls) -> list[str]:
        """Names of the fields as documents have them."""
        return list(cls._by_name().values())

    def dump(self) -> dict[str, Any]:
        """The document that was read, in plain JSON values: secrets stand in it."""
        written = {
            field.alias or name: plain(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set
        }
        return {name: value for name, value in written.items() if value is not None}

    def secret_texts(self) -> Iterator[str]:
        """Every secret in it, for those who have to mask them."""
        yield from _secrets_in([getattr(self, name) for name in type(self).model_fields])

    @classmethod
    def _by_name(cls) -> dict[str, str]:
        """Fields by their names in Python, as documents have them."""
        return {name: field.alias or name for name, field in cls.model_fields.items()}

    @classmethod
    def _spelled(cls, data: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[PydanticCustomError]]:
        # A field whose name in Python is another word goes by its alias alone, and so does one of the design document.
        aliases = {
            name: to_camel(name)
            for name, field in cls.model_fields.items()
            if field.alias == to_camel(name) and name not in cls.camel_case_only
        }
        written: dict[Any, Any] = {}
        twice: list[PydanticCustomError] = []
        for key, value in data.items():
            name = aliases.get(key, key) if isinstance(key, str) else key
            if name in written:
                twice.append(mistake("is given in two spellings", f"keep {name}", at=(str(name),)))
            written[name] = value
        return written, twice


def plain(value: Any) -> Any:
    """The value as JSON has it; secrets are written out."""
    if isinstance(value, TriggerModel):
        return value.dump()
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Duration):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, TriggerModel):
        yield from value.secret_texts()
    elif isinstance(value, Mapping):
        yield from _secrets_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _secrets_in(each)
