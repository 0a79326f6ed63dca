"""The parts that the models of a source's document share: marks of templates, and places in requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from airflow_provider_rfr.streams.rest.templates import Part


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
