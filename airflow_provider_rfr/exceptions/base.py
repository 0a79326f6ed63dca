"""What every part raises."""

from __future__ import annotations

from typing import Any


class RfrError(Exception):
    """Base of all errors of this package."""


class ConfigurationError(RfrError):
    """A setting is wrong.

    :ivar field: dotted name of the setting
    :ivar problem: what is wrong with it
    :ivar remedy: what to write instead
    """

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field}: {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.problem, self.remedy)


class PreflightError(RfrError):
    """The machine lacks something; the message says what to install or set."""


def rebuild(kind: type[Exception], message: str, attributes: dict[str, Any]) -> Any:
    """Unpickle an error whose constructor takes keywords (errors cross from executors to the driver)."""
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error
