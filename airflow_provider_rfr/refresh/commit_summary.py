"""What the target's commit says of itself, in its snapshot summary."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timezone

from airflow_provider_rfr import __version__
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent, collections_of, published_span
from airflow_provider_rfr.refresh.config import RefreshConfig
from airflow_provider_rfr.refresh.header import PREFIX, LedgerHeader

IMAGE = f"airflow-provider-rfr:{__version__}"


def commit_summary(
    ledger: str,
    header: LedgerHeader,
    *,
    stream: str,
    mode: str,
    rows: int,
    removed: int,
    skipped: int,
    event: CommitEvent,
) -> Mapping[str, str]:
    """Properties of the commit that publishes ``header``'s generation; the commit id is the same for every try.

    :param removed: rows dropped because a later one has the same primary key
    :param skipped: pages without records, because an error of theirs was ignored
    :param event: what the webhooks tell of the commit
    """
    values = {
        "ledger": ledger,
        "generation": header.generation,
        "epoch": header.epoch,
        "attempts": header.attempts,
        "stream": stream,
        "mode": mode,
        "rows": rows,
        "duplicates-removed": removed,
        "pages": header.pages,
        "pages-skipped": skipped,
        "partitions": header.partitions,
        "opened-at": header.opened_at.isoformat(),
        "published-at": datetime.now(timezone.utc).isoformat(),
        "commit-id": event.commit_id,
        **({"run-key": header.run_key} if header.run_key else {}),
    }
    return {**{PREFIX + key: str(value) for key, value in values.items()}, **event.to_summary()}


def commit_event(
    ledger: str,
    header: LedgerHeader,
    config: RefreshConfig,
    binding: Binding,
    fetched: tuple[datetime | None, datetime | None],
) -> CommitEvent:
    """What the webhooks tell of the generation; what the snapshot itself tells is left out.

    :param fetched: when its earliest and its latest page were fetched
    """
    commit_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{ledger}:{header.generation}"))
    begin, end = published_span([fetched] if binding.documents else [])
    run = config.run.airflow
    return CommitEvent(
        commit_id=commit_id,
        target=binding.table,
        lake=config.lake.name,
        materialization_name=config.run.materialization_name or binding.table,
        flow_run_id=commit_id,
        generation=header.generation,
        collection_names=collections_of([binding]),
        connector_image=IMAGE,
        flow_published_at_min=begin,
        flow_published_at_max=end,
        bindings=(binding,),
        dag_id=run.dag_id if run else "",
        dag_run_id=run.dag_run_id if run else "",
        task_id=run.task_id if run else "",
        map_index=run.map_index if run else None,
        logical_date=(run.logical_date or "") if run else "",
    )
