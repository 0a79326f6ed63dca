"""Every error this package raises on purpose.

::

    RfrError
    ├── ConfigurationError           what the user wrote is wrong; a retry can't help
    │   └── SourceDefinitionError    ... in a source's YAML file or definition
    ├── PreflightError               the machine lacks what a refresh needs
    ├── SourceError                  the API's answer, or its silence
    │   ├── AuthenticationError      401, 403, a token that can't be obtained
    │   ├── RateLimitedError         the API asked to wait longer than a refresh waits
    │   ├── TokenExpiredError        a page token is no longer accepted
    │   └── RepeatedPageError        a token or a page came twice: the chain would never end
    ├── SourceChangedError           committed pages no longer match the source
    ├── SchemaError                  rows, declared schema and table don't fit together
    │   ├── TypeMismatchError        values that don't fit their column, with the first offenders
    │   └── SchemaEvolutionError     the table can't take the new schema
    ├── LedgerError                  the ledger refuses
    │   ├── FencedError              a newer attempt took over
    │   └── ReconciliationError      fetched, staged and published counts differ
    ├── PublishRefusedError          a guard (empty, shrunken) stopped the publish
    ├── RefreshBusyError             another run is at the same refresh, and on_busy is fail
    ├── SparkJobError                Spark could not start, or could not finish a job
    ├── RefreshStoppedError          the refresh was told to stop; the next attempt goes on
    └── RefreshFailedError           partitions failed; what was fetched stays for the retry

    ReadInterrupted                  not an error: the reader was asked to stop
    └── BackoffInterrupted           ... while it waited to repeat a request
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class PreflightError(RfrError):
    """The machine lacks something; the message says what to install or set."""


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
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class AuthenticationError(SourceError):
    """The API does not accept the credentials."""


class RateLimitedError(SourceError):
    """The API asks for a longer wait than the refresh may spend.

    :ivar retry_after: seconds to wait
    """

    def __init__(self, message: str, *, retry_after: float, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after = retry_after


class TokenExpiredError(SourceError):
    """The API no longer accepts the page token; the chain starts again."""


class RepeatedPageError(SourceError):
    """A token or a page's content came twice in one chain."""


class SourceChangedError(RfrError):
    """A committed page reads differently now, and ``on_source_change`` is ``fail``."""


class SchemaError(RfrError):
    """Rows, declared schema and table don't fit together."""


class TypeMismatchError(SchemaError):
    """Values don't fit their columns.

    :ivar offenders: the first of them: partition, page, record, column, value, expected
    """

    def __init__(self, message: str, offenders: Sequence[Mapping[str, Any]] = ()) -> None:
        self.message = message
        self.offenders = tuple(offenders)
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.offenders)


class SchemaEvolutionError(SchemaError):
    """The published table can't take the new schema."""


class LedgerError(RfrError):
    """The ledger refuses what was asked."""


class FencedError(LedgerError):
    """A newer attempt took the refresh over; this one must not write any more.

    :ivar epoch: ours
    :ivar newer_epoch: the one that took over
    """

    def __init__(self, message: str, *, epoch: int, newer_epoch: int) -> None:
        self.message = message
        self.epoch = epoch
        self.newer_epoch = newer_epoch
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class ReconciliationError(LedgerError):
    """Fetched, staged and published counts differ; nothing was published."""


class PublishRefusedError(RfrError):
    """A guard stopped the publish; readers keep the old table, the ledger keeps the new rows."""


class RefreshBusyError(RfrError):
    """Another run is at the same refresh; nothing was read or written."""


class SparkJobError(RfrError):
    """Spark could not start or finish a job; the message is its cause, not the Java stack."""


class RefreshStoppedError(RfrError):
    """The refresh was told to stop; what was read is committed and the next attempt goes on."""


class RefreshFailedError(RfrError):
    """Some partitions could not be read; the others were, and are kept.

    :ivar failures: partition key to reason
    """

    def __init__(self, message: str, failures: Mapping[str, str] | None = None) -> None:
        self.message = message
        self.failures = dict(failures or {})
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.failures)


class ReadInterrupted(Exception):
    """The reader was asked to stop before this page was complete; nothing of it counts."""


class BackoffInterrupted(ReadInterrupted):
    """The reader waited to repeat a request that had failed; what that request may still spend must not start anew."""


def _rebuild(kind: type[Exception], message: str, attributes: dict[str, Any]) -> Any:
    """Unpickle an error whose constructor takes keywords (errors cross from executors to the driver)."""
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error
