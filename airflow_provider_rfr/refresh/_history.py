"""History tables of refreshes: how each attempt ended, and what was committed to the target."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr import __version__
from airflow_provider_rfr.exceptions import RefreshFailedError, RfrError
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.lake.commits import CommitLog, CommitRecord, append_once
from airflow_provider_rfr.refresh.config import RefreshConfig
from airflow_provider_rfr.refresh.errors import redact
from airflow_provider_rfr.refresh.header import PREFIX, LedgerHeader

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.refresh._messages import RefreshFigures

_log = logging.getLogger(__name__)

_REFRESHES: Final = "rfr_system.refresh_history"
_COMMITS: Final = "rfr_system.commit_history"
_MAX_FAILURES: Final = 1000


def record_attempt(
    catalog: Catalog,
    config: RefreshConfig,
    figures: RefreshFigures,
    header: LedgerHeader | None,
    *,
    began: datetime,
    error: BaseException | None,
    secrets: Sequence[str] = (),
) -> None:
    """Record how an attempt ended; a history that can't be written is logged as a warning.

    :param header: of the ledger, which may be a later attempt's by now
    :param secrets: values that no error's text may show
    """
    if not figures.epoch:
        # The attempt never held its refresh: it has no epoch, and the header is another attempt's.
        return
    try:
        row = _attempt_row(config, figures, header, began, error, secrets)
        scope = {name: row[name] for name in ("target", "generation", "epoch")}
        append_once(catalog, _REFRESHES, [row], keys=("target", "part", "generation", "epoch"), scope=scope)
        if error is not None:
            return
        # Every commit of the target that the history lacks, also those whose driver died before it got here.
        found = CommitLog.load(catalog, figures.target)
        commits = (_commit_row(figures.target, each) for each in (found.commits() if found else []))
        rows = [each for each in commits if each is not None]
        append_once(catalog, _COMMITS, rows, keys=("commit_id",), scope={"target": figures.target})
    except Exception as failure:  # noqa: BLE001 - each catalog refuses in its own way
        _log.warning("%s: its history can't be written (%s); the refresh is not affected", figures.target, failure)


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
        "bindings": [
            {"table": each.table, "collection": each.collection, "documents": each.documents, "bytes": each.bytes}
            for each in event.bindings
        ],
        "documents": event.documents,
        "bytes": event.bytes,
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
