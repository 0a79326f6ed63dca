"""The base class of a triggers block's models, and their validation errors.

An error says what to write instead, and never shows a value, which may be secret. Inside the models it is a pydantic
error with problem and remedy as context (a *mistake*); :mod:`.block` converts it to a :class:`Problem`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    SecretStr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

from airflow_provider_rfr.documents import wording

if TYPE_CHECKING:
    from typing_extensions import Self

_KIND = "mistake"
_LONGEST_SHOWN_KEY = 40
_SHOWN_KEY = re.compile(r"[\w.\-]+", re.ASCII)
_LIKE_A_SECRET = ("whsec_", "xox", "ghp_", "github_pat_", "sk_", "eyJ")


def mistake(
    problem: str, remedy: str = "", *, whole: bool = False, at: Sequence[str | int] = ()
) -> PydanticCustomError:
    """Return an error to raise in a validator.

    :param problem: what is wrong with the value
    :param remedy: what to write instead
    :param whole: the problem names its place itself, so the field's path is left out of the message
    :param at: path from the validated value to the wrong one
    """
    context = {"problem": problem, "remedy": remedy, "whole": whole, "at": tuple(at)}
    return PydanticCustomError(_KIND, "{problem}", context)


def details(error: PydanticCustomError, location: Sequence[str | int] = ()) -> InitErrorDetails:
    """Convert a mistake to the form in which pydantic collects errors, without the input value."""
    context = dict(error.context or {})
    place = (*location, *context.pop("at", ()))
    return InitErrorDetails(type=PydanticCustomError(_KIND, "{problem}", context), loc=place, input=None)


def refusal(problems: list[InitErrorDetails]) -> ValidationError:
    """Return one validation error that contains all these errors."""
    return ValidationError.from_exception_data("triggers", problems, hide_input=True)


def as_mistakes(error: ValidationError, aliases: Mapping[str, str]) -> list[InitErrorDetails]:
    """Convert the errors of a validation to mistakes.

    :param aliases: aliases of the validated model's fields, by field name
    """
    items = error.errors(include_url=False, include_input=False)
    below = {item["loc"][:-1] for item in items}
    mistakes = []
    for item in items:
        kind, place = item["type"], item["loc"]
        # If entries of a list are refused, pydantic reports the list as too short, too.
        if kind == "too_short" and place in below:
            continue
        fault = mistake(**item["ctx"]) if kind == _KIND else mistake(*wording(item, aliases.values()))
        if place and kind != "extra_forbidden":
            # For a default that was validated, pydantic gives the field's name and not its alias.
            place = (aliases.get(str(place[0]), place[0]), *place[1:])
        mistakes.append(details(fault, place))
    return mistakes


def path_of(location: Sequence[str | int]) -> str:
    """Return a path like ``retry.maxElapsed`` or ``signing.secrets[0]``; keys that may be secrets are replaced."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{printable_key(part)}" for part in location)
    return text.removeprefix(".")


def printable_key(key: object) -> str:
    """Return the key for an error message; one that is no plain name, or may be a secret, is replaced."""
    text = str(key)
    plain = len(text) <= _LONGEST_SHOWN_KEY and _SHOWN_KEY.fullmatch(text) and not text.startswith(_LIKE_A_SECRET)
    return text if plain else "(a key that is not a name)"


_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(float):
    """A duration in seconds; ``text``: its form in the document, such as ``30m``."""

    text: str

    def __new__(cls, text: str) -> Duration:
        form = _DURATION.fullmatch(text)
        if form is None:
            raise ValueError("invalid duration")
        duration = super().__new__(cls, int(form[1]) * _SECONDS[form[2]])
        duration.text = text
        return duration

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text,)


def read_duration(value: Any) -> Duration:
    """Convert text to seconds; raise a mistake for anything that is not exactly a number and a unit."""
    if isinstance(value, Duration):
        return value
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return Duration(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        raise mistake("a duration needs its unit", f"write {value}s")
    raise mistake("is not a duration", "write a whole number and s, m, h or d, e.g. 45s or 30m")


def between(shortest: str, longest: str) -> Callable[[Any], Duration]:
    """Return a validator of durations within these bounds."""

    def check(value: Any) -> Duration:
        duration = read_duration(value)
        if not Duration(shortest) <= duration <= Duration(longest):
            raise mistake(f"must be from {shortest} to {longest}")
        return duration

    return check


DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": r"^\d+(s|m|h|d)$"})
Wait = Annotated[Duration, PlainValidator(between("0s", "30d")), DURATION_SCHEMA]
"""A duration of at most 30 days."""


@dataclass(frozen=True, slots=True)
class OtherSpelling:
    """Another spelling of a field, with values of another type: ``timeoutSecs: 30`` for ``timeout: 30s``.

    :ivar field: name of the field in documents
    :ivar type: type of the values of this spelling
    :ivar read: converts such a value to one of the field
    :ivar write: converts a value of the field back
    """

    field: str
    type: TypeAdapter[Any]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


class TriggerModel(BaseModel):
    """A frozen model that reads ``camelCase`` and ``snake_case``, writes ``camelCase``, and refuses unknown fields.

    :cvar other_spellings: other spellings by name; their ``camelCase`` form is derived from it
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, hide_input_in_errors=True, revalidate_instances="never"
    )
    other_spellings: ClassVar[Mapping[str, OtherSpelling]] = {}

    _spelled: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _validate_document(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise mistake("must be a mapping")
        aliases = cls._aliases()
        written: dict[Any, Any] = {}
        problems: list[InitErrorDetails] = []
        for key, value in data.items():
            # Where the alias is another word than the field's name (``with``), documents may use the alias only.
            name = aliases[key] if key in aliases and aliases[key] == to_camel(key) else key
            if name in written:
                problems.append(details(mistake("is given in two spellings", f"keep {name}"), [str(name)]))
            written[name] = value
        problems += map(details, cls.contradictions(written))
        spelled = cls._resolve_spellings(written, problems)
        try:
            model = handler(written)
        except ValidationError as error:
            raise refusal([*as_mistakes(error, aliases), *problems]) from None
        if problems:
            raise refusal(problems)
        if spelled:
            model._spelled = spelled
        return model

    @classmethod
    def _resolve_spellings(cls, written: dict[Any, Any], problems: list[InitErrorDetails]) -> dict[str, str]:
        """Replace other spellings by their fields, and return the spelling that was used, by field."""
        spelled = {}
        for key, other in cls.other_spellings.items():
            name = to_camel(key)
            value = written.pop(name, None)
            if value is not None and written.get(other.field) is not None:
                problems.append(details(mistake(f"{other.field} and {name} are both given", "keep one of them")))
            elif value is not None and other.field not in written:
                spelled[other.field] = key
                try:
                    written[other.field] = other.read(other.type.validate_python(value))
                except ValidationError as error:
                    # Reported at the spelling in the document. The field has its default until the error is raised.
                    problems += [{**item, "loc": (name, *item.get("loc", ()))} for item in as_mistakes(error, {})]
        return spelled

    @classmethod
    def _aliases(cls) -> dict[str, str]:
        """Return the alias of each field by its name, and the ``camelCase`` form of each other spelling by its key."""
        aliases: dict[str, str] = {}
        for name, field in cls.model_fields.items():
            alias = field.alias or name
            aliases |= {key: to_camel(key) for key, other in cls.other_spellings.items() if other.field == alias}
            aliases[name] = alias
        return aliases

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """Return the problems that concern several fields together.

        :param written: the fields that the document has, by alias, not validated yet
        """
        return []

    @classmethod
    def spellings(cls) -> list[str]:
        """Return the names of the fields as documents spell them."""
        return list(cls._aliases().values())

    def dump(self) -> dict[str, Any]:
        """Return the document that was read, in plain JSON values, secrets included."""
        written = {}
        for name, field in type(self).model_fields.items():
            if name in self.model_fields_set:
                alias, value = field.alias or name, getattr(self, name)
                key = self._spelled.get(alias)
                if key is not None:
                    alias, value = to_camel(key), self.other_spellings[key].write(value)
                written[alias] = _as_written(value)
        return {name: value for name, value in written.items() if value is not None}

    def secret_texts(self) -> Iterator[str]:
        """Yield every secret of the model, to be masked."""
        yield from _secrets_in([getattr(self, name) for name in type(self).model_fields])


def _as_written(value: Any) -> Any:
    if isinstance(value, TriggerModel):
        return value.dump()
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Duration):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _as_written(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_written(item) for item in value]
    return value


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, TriggerModel):
        yield from value.secret_texts()
    elif isinstance(value, Mapping):
        yield from _secrets_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _secrets_in(item)
