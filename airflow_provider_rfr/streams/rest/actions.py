"""What is done about an answer, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from airflow_provider_rfr.streams.rest.answer import Answer
from airflow_provider_rfr.streams.rest.backoff import Backoff


class Action(str, Enum):
    """What a rule may say."""

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    FAIL = "FAIL"
    IGNORE = "IGNORE"
    RATE_LIMITED = "RATE_LIMITED"
    TOKEN_EXPIRED = "TOKEN_EXPIRED"
    END = "END"


REPEATING: Final = frozenset({Action.RETRY, Action.RATE_LIMITED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one request.

    :ivar reason: for the log and the error, without credentials; empty for a success
    :ivar answer: None if there was none
    :ivar backoff: of the rule that matched; empty for the handler's own
    """

    action: Action
    reason: str = ""
    answer: Answer | None = None
    request: str | None = None
    backoff: tuple[Backoff, ...] = field(default=(), repr=False)

    @property
    def status(self) -> int | None:
        """HTTP status, None without an answer."""
        return self.answer.status if self.answer is not None else None
