"""Errors of commit webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions.base import RfrError


class TemplateError(RfrError):
    """A template can't be read or rendered. It names variables and never says what they hold.

    :ivar problem: what is wrong, and what to write instead
    :ivar line: where in the template, from 1
    :ivar column: ... and from 1
    """

    def __init__(self, problem: str, line: int, column: int) -> None:
        self.problem = problem
        self.line = line
        self.column = column
        super().__init__(f"line {line}, column {column}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.line, self.column)


@dataclass(frozen=True, slots=True)
class TriggerProblem:
    """One thing wrong in a triggers block.

    :ivar trigger: name of the endpoint; empty for the block as a whole
    :ivar path: place in the endpoint, e.g. ``retry.maxElapsed``; empty for the endpoint as a whole
    :ivar problem: what is wrong, without values that may be secret
    :ivar remedy: what to write instead
    """

    trigger: str
    path: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        place = ": ".join(
            part for part in (f"trigger {self.trigger}" if self.trigger else "triggers", self.path) if part
        )
        return f"{place}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


class TriggerConfigError(RfrError):
    """A triggers block is wrong.

    :ivar problems: all of them, in the block's order
    """

    def __init__(self, problems: Sequence[TriggerProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class SealError(RfrError):
    """A sealed document can't be opened, or is not as it was sealed; the message holds nothing of what is sealed."""


class DeliveryError(RfrError):
    """Webhooks could not be delivered; the message names triggers and hosts, never a path or a secret."""
