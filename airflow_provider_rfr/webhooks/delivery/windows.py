"""Debounced commits: several events as one delivery."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from airflow_provider_rfr.lake.commit_event import CommitEvent, merge
from airflow_provider_rfr.store.claims import Window
from airflow_provider_rfr.store.endpoints import EndpointRow
from airflow_provider_rfr.webhooks.variables import merged_id


def merge_events(endpoint: EndpointRow, events: Sequence[str]) -> Window:
    """One delivery for these events, the oldest first; its id follows from the first and the last commit.

    :raises ValueError: one of them can't be read
    """
    found = [CommitEvent.from_json(each) for each in events]
    merged = reduce(merge, found)
    return Window(merged_id(endpoint.key.name, found[0].commit_id, found[-1].commit_id), merged.to_json())
