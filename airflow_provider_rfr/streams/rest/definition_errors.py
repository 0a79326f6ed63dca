"""Models of the error handler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_rfr.streams.rest.definition_base import Part

ActionName = Literal["SUCCESS", "RETRY", "FAIL", "IGNORE", "RATE_LIMITED", "TOKEN_EXPIRED", "END"]


class Constant(Part):
    """Always the same wait."""

    type: Literal["constant"]
    seconds: float = Field(gt=0)


class Exponential(Part):
    """Longer after each failure, with jitter: between half of the wait and all of it."""

    type: Literal["exponential"]
    initial: float = Field(default=1, gt=0)
    multiplier: float = Field(default=2, ge=1)
    max: float = Field(default=60, gt=0)
    jitter: bool = True


class RetryAfter(Part):
    """What a header says, in seconds or as an HTTP date."""

    type: Literal["retry_after"]
    header: str = "Retry-After"


class ResetTime(Part):
    """Until the time that a header names, as seconds or milliseconds since 1970."""

    type: Literal["reset_time"]
    header: str
    unit: Literal["seconds", "milliseconds"] = "seconds"


Backoff = Annotated[Constant | Exponential | RetryAfter | ResetTime, Field(discriminator="type")]


class Rule(Part):
    """All conditions that are named must hold."""

    action: ActionName
    status: list[int | str] | None = None
    text: str | None = None
    predicate: str | None = None
    message: str | None = None
    backoff: list[Backoff] = Field(default_factory=list)

    @field_validator("status", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [value] if isinstance(value, (int, str)) and not isinstance(value, bool) else value

    @field_validator("status", mode="after")
    @classmethod
    def _are_statuses(cls, value: list[int | str] | None) -> list[int | str] | None:
        for item in value or ():
            known = item in ("1xx", "2xx", "3xx", "4xx", "5xx") if isinstance(item, str) else 100 <= item <= 599
            if not known:
                raise ValueError(f"{item!r} is no status; write a number such as 404, or a class such as 5xx")
        return value

    @model_validator(mode="after")
    def _has_a_condition(self) -> Rule:
        if self.status is None and self.text is None and self.predicate is None:
            raise ValueError("a rule has a condition: status, text or predicate")
        return self


class ErrorHandler(Part):
    """What is done about errors; seconds."""

    rules: list[Rule] = Field(default_factory=list)
    expired_token_status: list[int] | None = None
    max_retries: int = Field(default=5, ge=0)
    max_time: float = Field(default=600, gt=0)
    max_rate_limit_wait: float = Field(default=3600, ge=0)
    max_skipped_pages: int = Field(default=100, ge=1)
    on_bad_json: Literal["fail", "replace", "skip"] = "fail"
    error_keys: list[str] = Field(default_factory=lambda: ["error", "errors"])
    backoff: list[Backoff] = Field(default_factory=list)
