"""Parts of an endpoint: when it is called, how it is retried and signed."""

from __future__ import annotations

from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field, PlainValidator, StrictInt

from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.webhooks.configuration.durations import DURATION_SCHEMA, Duration, between, read_duration
from airflow_provider_rfr.webhooks.configuration.mistakes import mistake
from airflow_provider_rfr.webhooks.configuration.secret_values import SigningSecret, is_sealed_text, signing_key
from airflow_provider_rfr.webhooks.configuration.success import NONSENSITIVE
from airflow_provider_rfr.webhooks.configuration.trigger_model import TriggerModel

METHODS = ("POST", "PUT", "PATCH")
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 1, 300


class Schedule(str, Enum):
    """Waits between attempts: seconds, or up to days."""

    QUICK = "quick"
    STANDARD = "standard"


class OnFailure(str, Enum):
    """What happens once an event can't be delivered to the endpoint."""

    BLOCK = "block"
    DEAD_LETTER = "dead_letter"
    IGNORE = "ignore"


class Ordering(str, Enum):
    """Whether an event waits for the one before it."""

    NONE = "none"
    STRICT = "strict"


DEFAULT_ATTEMPTS = {Schedule.QUICK: 3, Schedule.STANDARD: 10}


class Retry(TriggerModel):
    """How attempts follow each other.

    :ivar max_elapsed: time since the first attempt after which no further one is made; None for no such limit
    """

    schedule: Schedule = Field(default=Schedule.QUICK, json_schema_extra=NONSENSITIVE)
    max_elapsed: Annotated[Duration, PlainValidator(between("1s", "30d")), DURATION_SCHEMA] | None = Field(
        default=None, json_schema_extra=NONSENSITIVE
    )


class When(TriggerModel):
    """Which commits the endpoint hears of.

    :ivar collections: patterns with ``*``, ``?`` and ``[...]``; None for all collections
    :ivar min_documents: fewest documents, of the collections that match
    """

    collections: tuple[str, ...] | None = Field(
        default=None, min_length=1, max_length=1000, json_schema_extra=NONSENSITIVE
    )
    min_documents: StrictInt = Field(default=1, ge=0, json_schema_extra=NONSENSITIVE)

    def accepts(self, event: CommitEvent) -> bool:
        """Whether this commit is one of them."""
        if self.collections is None:
            return event.documents >= self.min_documents
        bindings = [each for each in event.bindings if self._matches(each.collection)]
        heard = bool(bindings) or any(map(self._matches, event.collection_names))
        return heard and sum(each.documents for each in bindings) >= self.min_documents

    def _matches(self, collection: str) -> bool:
        return any(fnmatchcase(collection, pattern) for pattern in self.collections or ())


class Signing(TriggerModel):
    """Secrets that sign every call; with several the receiver may check with any, so that one can be replaced."""

    secrets: tuple[SigningSecret, ...] = Field(min_length=1, max_length=10)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys in the secrets' order; only of an opened document."""
        return tuple(map(signing_key, self.secrets))


def check_method(value: Any) -> str:
    """One of the methods that carry a body; a sealed one is told once it is opened."""
    if isinstance(value, str) and (value in METHODS or is_sealed_text(value)):
        return value
    raise mistake(f"must be {', '.join(METHODS[:-1])} or {METHODS[-1]}")


def check_timeout(value: Any) -> Duration:
    """Time for one attempt, from connecting to the answer's end."""
    duration = read_duration(value)
    _check_seconds(duration)
    return duration


def check_timeout_seconds(value: int) -> int:
    """The same as a number of seconds."""
    _check_seconds(value)
    return value


def _check_seconds(seconds: float) -> None:
    if seconds <= 0:
        raise mistake("timeout must be greater than 0", f"write {SHORTEST_TIMEOUT}s to {LONGEST_TIMEOUT}s", whole=True)
    if seconds > LONGEST_TIMEOUT:
        raise mistake(f"timeout must be at most {LONGEST_TIMEOUT}s", whole=True)
