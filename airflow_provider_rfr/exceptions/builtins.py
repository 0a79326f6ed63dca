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

    retryable = False


class BlockedPlanError(PlanError):
    """Something stops the plan; nothing was done.

    :ivar problems: everything that stops it, by object
    """

    retryable = False

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"the plan is blocked, nothing was done: {'; '.join(self.problems)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class DeployError(RfrError):
    """A deploy could not be finished; what is done stays done, and the next one goes on from there."""


class StepError(DeployError):
    """A step of a deploy failed.

    :ivar object: name of the object
    :ivar action: the step's verb
    :ivar problem: what went wrong
    :ivar remedy: what to do about it
    """

    def __init__(self, object: str, action: str, problem: str, remedy: str = "") -> None:
        self.object = object
        self.action = action
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{action} {object}: {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.object, self.action, self.problem, self.remedy)


class DeployBusyError(DeployError):
    """Somebody else is deploying the same project.

    :ivar holder: who
    :ivar token: of their lease, for ``force_unlock``
    """

    def __init__(self, project: str, holder: str, token: int) -> None:
        self.project = project
        self.holder = holder
        self.token = token
        super().__init__(
            f"project {project} is being deployed by {holder}; wait for it, "
            f"or, if that process is dead, force-unlock with token {token}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.project, self.holder, self.token)


class LeaseLostError(DeployError):
    """Another deploy took over; this one must not write any more.

    :ivar token: ours
    :ivar newer_token: the one that took over
    """

    def __init__(self, project: str, token: int, newer_token: int) -> None:
        self.project = project
        self.token = token
        self.newer_token = newer_token
        super().__init__(f"the lease on project {project} is no longer ours: token {token}, now {newer_token}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.project, self.token, self.newer_token)
