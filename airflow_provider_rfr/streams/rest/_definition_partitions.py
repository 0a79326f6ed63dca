"""The routers of a document as pydantic models, which divide a stream into partitions."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from airflow_provider_rfr.streams.rest._definition_parts import Place
from airflow_provider_rfr.streams.rest._windows import Step, TimeFormat, moment_of, zone_of
from airflow_provider_rfr.streams.rest.templates import OF_CONFIG, Part, has_expressions


class ListRouter(Part):
    """One partition for each value."""

    type: Literal["list"]
    field: str
    values: Annotated[list[Any] | str, OF_CONFIG]


class SubstreamRouter(Part):
    """One partition for each record of another stream."""

    type: Literal["substream"]
    parent: str
    parent_key: str
    field: str
    extra_fields: dict[str, str] = Field(default_factory=dict)
    parent_slice_fields: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _distinct_names(self) -> SubstreamRouter:
        names = [self.field, *self.extra_fields, *self.parent_slice_fields]
        if len(set(names)) != len(names):
            raise ValueError("two fields of the partition have the same name")
        return self


WINDOW_FIELDS: Final = ("window_start", "window_end")
"""What templates call a window's start and end, in ``stream_slice``."""


class WindowPlaces(Part):
    """The places of a window's start and end in a request."""

    start: Place | None = None
    end: Place | None = None

    @model_validator(mode="after")
    def _at_least_one(self) -> WindowPlaces:
        if self.start is None and self.end is None:
            raise ValueError("name a place for start, end or both, e.g. {start: {query: since}, end: {query: until}}")
        return self


class DateWindowRouter(Part):
    """One partition for each window of time from ``start`` to ``end``; an end belongs to the next window."""

    type: Literal["date_window"]
    start: Annotated[str, OF_CONFIG]
    end: Annotated[str | None, OF_CONFIG] = None
    step: str
    format: str = "iso"
    timezone: str = "UTC"
    end_inclusive: bool = False
    send_as: WindowPlaces | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> DateWindowRouter:
        zone = zone_of(self.timezone)
        TimeFormat(self.format, zone).check_step(Step.parse(self.step))
        for name in ("start", "end"):
            text = getattr(self, name)
            if text is not None and not has_expressions(text):
                try:
                    moment_of(text, zone)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return self


class ProductRouter(Part):
    """Every combination of the partitions of several routers."""

    type: Literal["product"]
    of: list[Router] = Field(min_length=1)


Router = Annotated[ListRouter | SubstreamRouter | DateWindowRouter | ProductRouter, Field(discriminator="type")]
