"""Maintenance after a publish, and reports to the history tables. A failure here is only a warning.

Snapshots of the target are expired, and ledgers of parts that will not be resumed are dropped. The history tables get
a row for each attempt, failed ones included, and a row for each commit to the target.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr import __version__
from airflow_provider_rfr.exceptions import RefreshFailedError, RfrError
from airflow_provider_rfr.http.redaction import redact
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.lake.commits import CommitLog, CommitRecord
from airflow_provider_rfr.lake.expiry import expire_table, is_ours
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.rows import REPORTED_AGAIN
from airflow_provider_rfr.refresh.config import RefreshConfig, RefreshOptions
from airflow_provider_rfr.refresh.state import GENERATION_KEY, PREFIX, LedgerHeader, RefreshState, read_header
from airflow_provider_rfr.timeouts import within

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.history import History

_log = logging.getLogger(__name__)

_LEDGER_SECONDS: Final = 7 * 86400.0
"""Seconds for which a part's ledger is kept after its last commit, or for ``resume_within`` where that is longer."""
_SAMPLE: Final = 20
"""Ledgers of parts that one publish checks at most, because each of them has to be loaded from the catalog."""


@dataclass(slots=True)
class RefreshFigures:
    """Figures that a refresh reports at its end.

    :ivar records_missing: records that the API counted but did not send
    :ivar rows: rows of the table after an incremental sync; rows that were published by a full refresh
    :ivar schema_changes: the changes of columns in words; None without any
    :ivar changes: counts of an incremental sync's records by outcome, as in
        :class:`~airflow_provider_rfr.refresh.merge.MergeCounts`; None for a full refresh
    :ivar already_published: whether an earlier attempt of this run published the table, so that nothing was read
    :ivar seconds: seconds spent in each phase, such as ``open``, ``read`` and ``publish``
    """

    stream: str
    target: str
    generation: int = 0
    snapshot_id: int | None = None
    pages: int = 0
    pages_fetched: int = 0
    pages_refetched: int = 0
    overlap_checks: int = 0
    pages_skipped: int = 0
    records_missing: int = 0
    partitions: int = 0
    rows: int = 0
    duplicates_removed: int = 0
    schema_changes: str | None = None
    changes: dict[str, int] | None = None
    attempts: int = 0
    epoch: int = 0
    rounds: int = 0
    snapshots_expired: int = 0
    files_deleted: int = 0
    files_undeleted: int = 0
    resumed: bool = False
    already_published: bool = False
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartLedger:
    """The ledger of a part of a target.

    :ivar table: ``namespace.table`` of the ledger itself
    :ivar header: header of its newest generation; None before the first one
    :ivar idle: seconds since its last commit
    """

    table: str
    header: LedgerHeader | None
    idle: float

    def is_expired(self, seconds: float, resume_within: float = _LEDGER_SECONDS) -> bool:
        """Tell whether the ledger has had no commit for ``seconds``.

        If its newest generation is not published, it has to be without a commit for ``resume_within``, too.
        """
        published = self.header is not None and self.header.state is RefreshState.PUBLISHED
        return self.idle > (seconds if published else max(seconds, resume_within))


def maintain(catalog: Catalog, options: RefreshOptions, figures: RefreshFigures) -> None:
    """Expire snapshots and drop ledgers after a publish, unless the option ``expire`` is False.

    A failure is logged as a warning, and the next publish tries again.

    :param figures: names the target, and gets the counts of expired snapshots and deleted files
    """
    if options.expire is False:
        return
    target = figures.target
    try:
        table = load_table(catalog, target)
        if table is not None and (options.expire or is_ours(table.properties)):
            done = expire_table(catalog, target)
            figures.snapshots_expired = done.snapshots
            figures.files_deleted, figures.files_undeleted = done.files, done.undeleted
            if done.snapshots:
                _log.info("%s: %s snapshots expired, %s files deleted", target, done.snapshots, done.files)
            for holder, count in done.held.items():
                _log.warning(
                    "%s: %s snapshots that would expire are kept for %s, which has not read them; if it does not exist"
                    " any more: airflow rfr tables expire --release %s %s",
                    *(target, count, holder, holder, target),
                )
        seconds = max(_LEDGER_SECONDS, options.resume_within)
        if options.replace_where is not None:
            drop_part_ledgers(catalog, target, seconds, seconds, sample=_SAMPLE)
    except Exception as error:  # noqa: BLE001 - catalogs and stores fail in their own ways
        # Messages of other errors may contain credentials.
        reason = str(error) if isinstance(error, RfrError) else type(error).__name__
        _log.warning("%s is published, but could not be tidied up: %s", target, reason)
        _log.debug("tidying up failed", exc_info=error)


def part_ledgers(catalog: Catalog, target: str) -> Iterator[PartLedger]:
    """Yield the ledgers of the target's parts; each is loaded from the catalog."""
    return (found for _, found in _loaded(catalog, target, None))


def drop_part_ledgers(
    catalog: Catalog, target: str, seconds: float, resume_within: float = _LEDGER_SECONDS, *, sample: int | None = None
) -> list[PartLedger]:
    """Drop the expired ledgers of the target's parts, with their files; return them.

    The next refresh of such a part begins with generation 1.

    :param seconds: seconds after its last commit for which a ledger is kept
    :param resume_within: the same for a ledger whose newest generation is not published, where this is longer
    :param sample: number of ledgers to load at most, chosen at random; None for all
    """
    dropped = []
    for ledger, found in _loaded(catalog, target, sample):
        if found.is_expired(seconds, resume_within):
            ledger.drop()
            _log.info("%s: dropped, nothing was committed to it for %.1f days", found.table, found.idle / 86400)
            dropped.append(found)
    return dropped


def _loaded(catalog: Catalog, target: str, sample: int | None) -> Iterator[tuple[LedgerTable, PartLedger]]:
    parts = LedgerTable.parts(catalog, target)
    for part in parts if sample is None else random.sample(parts, min(sample, len(parts))):
        ledger = LedgerTable.load(catalog, target, part)
        if ledger is not None:
            idle = max(0.0, time.time() - ledger.changed_ms / 1000)
            yield ledger, PartLedger(ledger.name, read_header(ledger.summary(GENERATION_KEY)), idle)


_REFRESHES: Final = "rfr_system.refresh_history"
_COMMITS: Final = "rfr_system.commit_history"
_REFRESH_KEYS: Final = ("target", "part", "generation", "epoch")
_COMMIT_KEYS: Final = ("commit_id",)
_MAX_FAILURES: Final = 1000
_REPORT_SECONDS: Final = 20.0
_MAINTAIN_SECONDS: Final = 120.0
_MISSED: Final = (
    f"this attempt is missing in {_REFRESHES}; its commit is added to {_COMMITS} by the table's next refresh within"
    f" {REPORTED_AGAIN.days} days that reaches the control store"
)


class AttemptHistory:
    """A writer of the attempts of one application to the history tables.

    Its errors are logged and never fail a refresh, and its calls have a time limit.

    :param open_history: opens the history of a catalog; None without a control store
    """

    def __init__(self, open_history: Callable[[Catalog], History] | None) -> None:
        self._open = open_history
        self._history: History | None = None
        self._has_failed = False

    def record(
        self,
        catalog: Catalog,
        config: RefreshConfig,
        figures: RefreshFigures,
        header: LedgerHeader | None,
        *,
        began: datetime,
        error: BaseException | None,
        secrets: Sequence[str] = (),
    ) -> None:
        """Report a row for an attempt that ended and, if it succeeded, rows for the recent commits of its target.

        :param header: the newest header of the ledger, which may belong to a later attempt by now
        :param began: when the attempt began
        :param error: the error that ended the attempt; None if it succeeded
        :param secrets: values to redact in error messages
        """
        if not figures.epoch:
            # The attempt never opened or took over a generation: it has no epoch, and the header is of another attempt.
            return

        def report() -> None:
            if self._open is None:
                if catalog.table_exists(_REFRESHES):
                    _log.warning("%s: the driver has no control store; %s", figures.target, _MISSED)
                return
            if self._has_failed:
                # After one failure no other stream tries the store: each would wait for the whole time limit.
                raise TimeoutError
            history = self._history = self._open(catalog)
            history.report(_REFRESHES, [_attempt_row(config, figures, header, began, error, secrets)], _REFRESH_KEYS)
            if error is None and (commit_log := CommitLog.load(catalog, figures.target)) is not None:
                # Commits of the last days are reported, too: their drivers may have died before they reported them.
                since = (datetime.now(timezone.utc) - REPORTED_AGAIN).timestamp() * 1000
                commits = (
                    commit
                    for commit in commit_log.commits()
                    if commit.timestamp_ms >= since or commit.snapshot_id == figures.snapshot_id
                )
                rows = [row for commit in commits if (row := _commit_row(figures.target, commit)) is not None]
                history.report(_COMMITS, rows, _COMMIT_KEYS)

        try:
            within(_REPORT_SECONDS, report)
        except Exception as failure:  # noqa: BLE001 - each fails in its own way, with a text that may hold secrets
            self._has_failed, self._history = True, None
            _log.warning("%s: the history can't be written (%s); %s", figures.target, type(failure).__name__, _MISSED)

    def maintain(self) -> None:
        """Append the rows that wait in the control store to the tables, if it is time and no other process does it."""
        try:
            if self._history is not None:
                within(_MAINTAIN_SECONDS, self._history.maintain)
        except Exception as failure:  # noqa: BLE001 - as above
            _log.warning(
                "rows can't be added to the history tables now (%s); another process does it", type(failure).__name__
            )


def _attempt_row(
    config: RefreshConfig,
    figures: RefreshFigures,
    header: LedgerHeader | None,
    began: datetime,
    error: BaseException | None,
    secrets: Sequence[str],
) -> dict[str, Any]:
    failures = list(error.failures.items())[:_MAX_FAILURES] if isinstance(error, RefreshFailedError) else []
    run = config.run.airflow
    ours = header is not None and (header.generation, header.epoch) == (figures.generation, figures.epoch)
    if ours and header is not None and header.refused_under is not None:
        outcome = "refused"
    elif error is None:
        outcome = "published"
    else:
        outcome = error.outcome if isinstance(error, RfrError) else RfrError.outcome
    return {
        **{name: getattr(header if ours else figures, name, None) for name in _OF_THE_HEADER},
        "target": figures.target,
        "part": config.options.replace_where or "",
        "mode": (header.mode if ours and header is not None else None) or "replace",
        "stream": figures.stream,
        "epoch": figures.epoch,
        "outcome": outcome,
        "error_type": type(error).__name__ if error is not None else None,
        "error": redact(str(error), secrets) if error is not None else None,
        "started_at": began,
        "ended_at": datetime.now(timezone.utc),
        "pages_skipped": figures.pages_skipped,
        "failures": [{"partition": key, "reason": redact(reason, secrets)} for key, reason in failures] or None,
        **{name: getattr(run, name, None) for name in ("dag_id", "dag_run_id", "task_id", "map_index")},
        "package_version": __version__,
    }


_OF_THE_HEADER: Final = (
    *("generation", "opened_at", "progressed_at", "attempts", "rounds", "pages", "pages_refetched", "records"),
    *("partitions", "partitions_done", "previous_rows", "published_rows", "snapshot_id"),
    *("window_from", "window_to", "fixed_window", "changes"),
)


def _commit_row(target: str, record: CommitRecord) -> dict[str, Any] | None:
    event = CommitEvent.from_summary(target, record.snapshot_id, record.sequence, record.timestamp_ms, record.summary)
    if event is None:
        return None
    stated = {name: record.summary.get(PREFIX + name.replace("_", "-")) for name in (*_TEXTS, *_COUNTS, "opened_at")}
    opened = stated["opened_at"]
    return {
        **{name: getattr(event, name) or None for name in _OF_THE_EVENT},
        **{name: stated[name] for name in _TEXTS},
        **{name: int(value) for name in _COUNTS if (value := stated[name]) is not None},
        "collection_names": list(event.collection_names),
        "bindings": [asdict(binding) for binding in event.bindings],
        "documents": event.documents,
        "bytes": event.bytes,
        "changes": event.changes,
        "opened_at": datetime.fromisoformat(opened) if opened else None,
        "map_index": event.map_index,
    }


_TEXTS: Final = ("mode", "stream", "ledger")
_COUNTS: Final = ("rows", "duplicates_removed", "pages", "pages_skipped", "partitions", "attempts")
_OF_THE_EVENT: Final = (
    *("commit_id", "target", "lake", "snapshot_id", "sequence", "generation", "committed_at", "target_name"),
    *("producer", "run_id", "fetched_at_min", "fetched_at_max"),
    *("dag_id", "dag_run_id", "task_id", "logical_date"),
)
