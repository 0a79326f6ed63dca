"""What every part raises."""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_FAILED, EXIT_CONFIGURATION, EXIT_FENCED = 1, 2, 3


class RfrError(Exception):
    """Base of all errors of this package. What an error means is an attribute of its class, and of nothing else.

    :cvar retryable: whether another try may end otherwise, with nothing changed by hand
    :cvar refuses_generation: of an error of the publish: whether the same rows would meet it again, so that the next
        run has to read them again
    :cvar excused: whether an attempt that ends with it was not let read, so that it is not blamed for no progress
    :cvar exit_code: that an application ends with
    :cvar outcome: what the history calls such an end
    :cvar advice: what to do, where the message does not say so itself
    """

    retryable: ClassVar[bool] = True
    refuses_generation: ClassVar[bool] = False
    excused: ClassVar[bool] = False
    exit_code: ClassVar[int] = EXIT_FAILED
    outcome: ClassVar[str] = "failed"
    advice: ClassVar[str] = ""


class ConfigurationError(RfrError):
    """A setting is wrong.

    :ivar field: dotted name of the setting
    :ivar problem: what is wrong with it
    :ivar remedy: what to write instead
    """

    retryable = False
    refuses_generation = True
    exit_code = EXIT_CONFIGURATION
    advice = "correct it and clear the task"

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field}: {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.problem, self.remedy)


class PreflightError(RfrError):
    """The machine lacks something; the message says what to install or set."""

    retryable = False
    exit_code = EXIT_CONFIGURATION


def rebuild(kind: type[Exception], message: str, attributes: dict[str, Any]) -> Any:
    """Unpickle an error whose constructor takes keywords (errors cross from executors to the driver)."""
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error
