"""Errors of the platform's own objects: their declaration, their plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions.base import ConfigurationError, RfrError


@dataclass(frozen=True, slots=True)
class DeclarationProblem:
    """One thing wrong in what is declared.

    :ivar place: file and line, or words where there is no file
    :ivar name: the object; empty where it is not known, or where it is about none
    :ivar problem: what is wrong
    :ivar remedy: what to write instead
    """

    place: str
    name: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        told = ": ".join(part for part in (self.place, self.name, self.problem) if part)
        return told + (f"; {self.remedy}" if self.remedy else "")


class DeclarationError(RfrError):
    """What is declared is wrong.

    :ivar problems: all of them, sorted by place
    """

    def __init__(self, problems: Sequence[DeclarationProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class QueryError(ConfigurationError):
    """A query is not one that a view can have, or can't be understood well enough to be kept up to date."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__("query", problem, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.remedy)


class UnreadableQueryError(QueryError):
    """A query can't be parsed here; Spark may understand it all the same."""


class PlanError(RfrError):
    """No plan can be made, or what was saved is none."""


class StalePlanError(PlanError):
    """The plan was made from a state that is no longer the present one."""
