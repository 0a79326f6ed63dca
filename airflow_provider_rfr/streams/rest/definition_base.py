"""What all parts of a source definition share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


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
        """No values: a credential may be written into the document itself."""
        return []


def _values_only(value: dict[str, Any]) -> dict[str, Any]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            raise ValueError(f"{name!r} is a mapping; allowed are text, number, boolean, null, or a list of them")
    return value


TextMap = Annotated[dict[str, Any], AfterValidator(_values_only)]


class Place(Part):
    """Where in a request a value is put: exactly one of the four."""

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
    """Where in an answer a value is found: at a path of the body, or in a header."""

    path: str | list[str] | None = None
    header: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Origin:
        if (self.path is None) == (self.header is None):
            raise ValueError("name exactly one origin: path or header")
        return self
