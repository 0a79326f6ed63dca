"""What all models of a triggers block have in common: spelling, refusals, and the way back to the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, SecretStr, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.webhooks.configuration.durations import Duration
from airflow_provider_rfr.webhooks.configuration.mistakes import details, mistake, refusal, worded

if TYPE_CHECKING:
    from typing_extensions import Self


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
