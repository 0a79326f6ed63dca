"""What templates can print, and the ids that follow from a commit and an endpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_rfr.lake.commit_event import CommitEvent, rfc3339

_ID_BYTES = 16


def delivery_id(commit_id: str, endpoint_name: str) -> str:
    """32 hexadecimal digits, the same for this commit and endpoint whoever asks, and whenever.

    :param endpoint_name: with its block's, as :attr:`EndpointKey.name` has it
    """
    return _digest("delivery", commit_id, endpoint_name)


def merged_id(endpoint_name: str, first_commit: str, last_commit: str) -> str:
    """The same for all commits from the first to the last, delivered as one."""
    return _digest("merged", endpoint_name, first_commit, last_commit)


def template_variables(
    event: CommitEvent,
    *,
    delivery_id: str,
    attempt: int,
    trigger_name: str,
    headers: Mapping[str, str],
) -> dict[str, Any]:
    """Every variable by its name. Times are RFC 3339 in UTC with ``Z``; what there is none of is empty text.

    :param attempt: from 1
    :param headers: those that the endpoint exposes, and no others
    """
    return {
        "materialization_name": event.materialization_name,
        "collection_names": list(event.collection_names),
        "connector_image": event.connector_image,
        "flow_published_at_min": rfc3339(event.flow_published_at_min),
        "flow_published_at_max": rfc3339(event.flow_published_at_max),
        "flow_run_id": event.flow_run_id,
        "run_id": event.flow_run_id,
        "headers": dict(headers),
        "delivery_id": delivery_id,
        "trigger_name": trigger_name,
        "attempt": attempt,
        **_of_the_commit(event),
        **_of_the_run(event),
    }


def _of_the_commit(event: CommitEvent) -> dict[str, Any]:
    return {
        "commit_id": event.commit_id,
        "target": event.target,
        "lake": event.lake,
        "generation": event.generation,
        "snapshot_id": event.snapshot_id,
        "committed_at": rfc3339(event.committed_at),
        "sequence": event.sequence,
        "merged_commits": event.merged_commits,
        "bindings": [
            {"table": each.table, "collection": each.collection, "documents": each.documents, "bytes": each.bytes}
            for each in event.bindings
        ],
        "totals": {
            "documents": event.documents,
            "bytes": event.bytes,
            "tables": len({b.table for b in event.bindings}),
        },
    }


def _of_the_run(event: CommitEvent) -> dict[str, Any]:
    return {
        "dag_id": event.dag_id,
        "dag_run_id": event.dag_run_id,
        "task_id": event.task_id,
        "map_index": "" if event.map_index is None else event.map_index,
        "logical_date": event.logical_date,
    }


def _digest(*parts: str) -> str:
    # As JSON, so that no two lists of parts make one text.
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=_ID_BYTES).hexdigest()
