"""One try of one task: the ledgers that it reads, the checkpoint that it keeps, what it ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.operators import outcome
from airflow_provider_rfr.operators.checkpoints import CheckpointKeeper, open_store
from airflow_provider_rfr.operators.checkpoints.stores import TaskKey
from airflow_provider_rfr.operators.follower import LedgerFollower
from airflow_provider_rfr.operators.ledger_reader import LedgerReader
from airflow_provider_rfr.operators.run_keys import run_key
from airflow_provider_rfr.refresh.progress import ProgressBook
from airflow_provider_rfr.triggers.deferred import DeferredRefresh

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.hooks.cluster_driver import DriverAddress
    from airflow_provider_rfr.operators.lineage import Lineage


class Attempt:
    """A try, in one process or, where it was deferred, in two.

    :param lineage: what comes from where
    :param replace_where: the part of the targets, as in the refresh's options
    :ivar keeper: a context manager around the try
    :ivar lineage: with figures once there are some
    """

    def __init__(self, context: Context, lineage: Lineage, replace_where: str | None, checkpoint_store: str) -> None:
        self.lineage = lineage
        self.run_key = run_key(context)
        self.replace_where = replace_where
        self._reader = LedgerReader(lineage.lake, replace_where)
        self.keeper = CheckpointKeeper(
            open_store(checkpoint_store, context),
            str(TaskKey.of(context)),
            details=self._reader.details,
            known=lambda: self._reader.is_complete,
            first=getattr(context["ti"], "try_number", 1) == 1,
        )

    @property
    def tables(self) -> Mapping[str, str]:
        """Table by stream."""
        return self.lineage.tables

    def follower(self, tell: Callable[[str], None], poll_interval: float) -> LedgerFollower:
        """Shows how the refresh goes on, for as long as this process waits for Spark."""
        return LedgerFollower(
            tuple(self.tables.values()),
            self._reader.status,
            recall=self.keeper.recall,
            remember=self.keeper.remember,
            tell=tell,
            poll_interval=poll_interval,
        )

    def deferred(self, driver: DriverAddress, lake_conn_id: str) -> DeferredRefresh:
        """The try as another process finds it again."""
        before, stalled = self.keeper.before
        lineage = self.lineage
        return DeferredRefresh(
            lineage.tables,
            self.run_key,
            driver,
            lake_conn_id,
            self.replace_where,
            before,
            stalled,
            lineage.source,
            lineage.mode,
        )

    def published(self) -> dict[str, Any] | None:
        """What the task returns, by the ledgers; None where this run has not published every table."""
        book = ProgressBook(tell=lambda line: None)
        found: dict[str, Mapping[str, Any]] = {}
        for table in self.tables.values():
            figures = self._reader.published(table, self.run_key)
            found |= {} if figures is None else {table: figures}
            book.take(table, self._reader.latest(table))
        self.keeper.remember(book.checkpoint(), guarded=True)
        whole = len(found) == len(self.tables)
        return self._noted(outcome.result_of_ledger(self.tables, found)) if whole else None

    def result(self, word: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the task returns.

        :param word: the driver's last word, None where it ran elsewhere and did not say it here
        :raises RefreshFailedError: the ledgers do not say that every table was published
        """
        if word is not None:
            return self._noted(outcome.result_of(word))
        result = self.published()
        if result is None:
            tables = ", ".join(self.tables.values())
            raise RefreshFailedError(
                f"Spark ended well, but the ledger does not say that {tables} was published; see the driver's log"
            )
        return result

    def is_refused(self) -> bool:
        """Whether a publish was refused for what was read, as of the last look."""
        statuses = [self._reader.latest(table) for table in self.tables.values()]
        return any(status is not None and status.refused_under is not None for status in statuses)

    def _noted(self, result: dict[str, Any]) -> dict[str, Any]:
        self.lineage = replace(self.lineage, figures=outcome.figures_by_table(result))
        return result
