"""Errors of a refresh: its ledger, its schema, its publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_rfr.exceptions.base import EXIT_FENCED, RfrError, rebuild


class SchemaError(RfrError):
    """Rows, declared schema and table don't fit together."""

    retryable = False
    refuses_generation = True
    advice = "correct it and clear the task: pages are fetched again only where a transformation or the source changed"


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

    retryable = False
    exit_code = EXIT_FENCED
    outcome = "fenced"
    advice = "another run refreshes this table; let it finish"

    def __init__(self, message: str, *, epoch: int, newer_epoch: int) -> None:
        self.message = message
        self.epoch = epoch
        self.newer_epoch = newer_epoch
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), self.message, dict(self.__dict__))


class ReconciliationError(LedgerError):
    """Fetched, staged and published counts differ; nothing was published."""

    refuses_generation = True


class PublishRefusedError(RfrError):
    """A guard stopped the publish; readers keep the old table, the ledger keeps the new rows."""

    retryable = False
    refuses_generation = True
    advice = "if the source is right, relax allow_empty or max_shrink and clear the task"


class RefreshBusyError(RfrError):
    """Another run is at the same refresh; nothing was read or written."""

    excused = True


class CatalogError(RfrError):
    """The lake's catalog does not answer, or refuses; the message names it, without its password."""


class SparkJobError(RfrError):
    """Spark could not start or finish a job; the message is its cause, not the Java stack."""


class RefreshStoppedError(RfrError):
    """The refresh was told to stop; what was read is committed and the next attempt goes on."""

    excused = True
    outcome = "stopped"


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
