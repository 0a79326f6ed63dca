"""Errors of an API source."""

from __future__ import annotations

from typing import Any

from airflow_provider_rfr.exceptions.base import ConfigurationError, RfrError, rebuild


class SourceDefinitionError(ConfigurationError):
    """A source definition is wrong.

    :ivar file: the document, or None for an inline definition
    :ivar path: place in the document, e.g. ``streams.orders.paginator.type``
    """

    def __init__(self, path: str, problem: str, remedy: str = "", file: str | None = None) -> None:
        self.path = path
        self.file = file
        super().__init__(f"{file}: {path}" if file else path, problem, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.problem, self.remedy, self.file)


class SourceError(RfrError):
    """The API answered with an error, or did not answer.

    :ivar status: HTTP status, None without an answer
    :ivar request: method and address without credentials
    :ivar partition: canonical key of the partition, once known
    :ivar page: number of the page in its chain, from 1, once known
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request: str | None = None,
        partition: str | None = None,
        page: int | None = None,
    ) -> None:
        self.message = message
        self.status = status
        self.request = request
        self.partition = partition
        self.page = page
        super().__init__(message)

    @property
    def told(self) -> str:
        """Message and request, without the place."""
        return f"{self.message} [{self.request}]" if self.request else self.message

    def __str__(self) -> str:
        place = f" (partition {self.partition}, page {self.page})" if self.partition is not None else ""
        return f"{self.told}{place}"

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), self.message, dict(self.__dict__))


class AuthenticationError(SourceError):
    """The API does not accept the credentials."""

    retryable = False
    advice = "check the credentials and clear the task: it goes on where it stopped"


class RateLimitedError(SourceError):
    """The API asks for a longer wait than the refresh may spend.

    :ivar retry_after: seconds to wait
    """

    excused = True

    def __init__(self, message: str, *, retry_after: float, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after = retry_after


class TokenExpiredError(SourceError):
    """The API no longer accepts the page token; the chain starts again."""


class RepeatedPageError(SourceError):
    """A token or a page's content came twice in one chain."""


class SourceChangedError(RfrError):
    """A committed page reads differently now, and ``on_source_change`` is ``fail``."""

    retryable = False
    advice = "set on_source_change to restart or accept, and clear the task"


class ReadInterrupted(Exception):
    """The reader was asked to stop before this page was complete; nothing of it counts."""


class BackoffInterrupted(ReadInterrupted):
    """The reader waited to repeat a request that had failed; what that request may still spend must not start anew."""
