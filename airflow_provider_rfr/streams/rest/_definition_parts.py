"""The parts that the models of a source's document share: marks of templates, and places in requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from airflow_provider_rfr.streams.rest.expressions import CONFIG_NAMES, Template, compile_value


@dataclass(frozen=True, slots=True)
class Templated:
    """A mark of a field that may hold templates.

    :ivar names: the variables that they may use
    :ivar compile: makes a template of the value, its place and those names
    """

    names: frozenset[str]
    compile: Callable[[Any, str, frozenset[str]], Template] = compile_value


OF_CONFIG: Final = Templated(CONFIG_NAMES)


class Part(BaseModel):
    """A part of the document.  Types are strict: ``page_size: true`` isn't 1, ``"5"`` isn't 5."""

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


def _values_only(value: dict[str, Any]) -> dict[str, Any]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            raise ValueError(f"{name!r} is a mapping; allowed are text, number, boolean, null, or a list of them")
    return value


TextMap = Annotated[dict[str, Any], AfterValidator(_values_only)]


class Place(Part):
    """The place of a value in a request: exactly one of the four."""

    query: str | None = None
    header: str | None = None
    json_: str | None = Field(default=None, alias="json")
    form: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Place:
        if sum(name is not None for name in (self.query, self.header, self.json_, self.form)) != 1:
            raise ValueError("name exactly one place: query, header, json or form")
        return self


class Origin(Part):
    """The origin of a value in an answer: a path of the body, or a header."""

    path: str | list[str] | None = None
    header: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Origin:
        names = [name for name in ("path", "header", "expression") if name in type(self).model_fields]
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"name exactly one origin: {', '.join(names[:-1])} or {names[-1]}")
        return self
