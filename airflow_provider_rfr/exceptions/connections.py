"""Errors of ALTER CONNECTION. None of them holds the value of a secret, nor text of a statement that could be one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions.base import ConfigurationError, RfrError


class StatementError(ConfigurationError):
    """A statement can't be read.

    :ivar line: where, from 1
    :ivar column: ... and from 1
    """

    def __init__(self, problem: str, line: int, column: int, remedy: str = "") -> None:
        self.line = line
        self.column = column
        super().__init__(f"line {line}, column {column}", problem, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.line, self.column, self.remedy)


@dataclass(frozen=True, slots=True)
class AlterationProblem:
    """One thing wrong in what is to be changed.

    :ivar option: e.g. ``extra.sslmode``; empty for the connection as a whole
    :ivar problem: what is wrong, without values of secrets
    :ivar remedy: what to write instead
    :ivar line: where in the statement, from 1; 0 where it came from Python, or from no place
    :ivar column: ... and from 1
    """

    option: str
    problem: str
    remedy: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}" if self.line else ""
        told = ": ".join(part for part in (place, self.option, self.problem) if part)
        return told + (f"; {self.remedy}" if self.remedy else "")


class AlterConnectionError(RfrError):
    """A connection was not altered, and is as it was.

    :ivar connection: its id
    """

    def __init__(self, connection: str, message: str) -> None:
        self.connection = connection
        self.message = message
        super().__init__(f"connection {connection}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.connection, self.message)


class AlterationRefusedError(AlterConnectionError):
    """What is to be changed is wrong, or something that uses the connection can't adopt it.

    :ivar problems: all of them, in the statement's order
    """

    retryable = False

    def __init__(self, connection: str, problems: Sequence[AlterationProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(connection, "\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.connection, self.problems)


class ConnectionNotFoundError(AlterConnectionError):
    """There is no such connection."""

    retryable = False


class ConnectionShadowedError(AlterConnectionError):
    """What is used comes from a place that can't be written; editing the database would change nothing."""

    retryable = False


class ConnectionRightsError(AlterConnectionError):
    """The caller lacks a right; nothing was read that needs it."""

    retryable = False


class ConnectionValidationError(AlterConnectionError):
    """The new settings do not work, or lead to another upstream."""


class ConnectionConflictError(AlterConnectionError):
    """Somebody else alters the connection, or just did: try again, from what it is now."""
