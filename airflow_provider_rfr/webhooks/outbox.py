"""The outbox: what is owed for commits, as rows of the control store.

The commits themselves say what they owe, in their snapshots. So rows can be made at any time, by anybody, any number
of times: ids follow from commit and trigger. From which commit on a trigger is owed anything is decided once, and kept
in a property of the table as well, so that a store that was lost is filled with the same rows again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.lake.commits import CommitLog, CommitRecord, write_table_properties
from airflow_provider_rfr.lake.expiry import hold_property
from airflow_provider_rfr.store.deliveries import (
    EndpointKey,
    EndpointRow,
    NewDelivery,
    add_deliveries,
    change_endpoints,
    endpoints_of_table,
    ensure_endpoint,
    first_unsent,
    load_endpoints,
)
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.webhooks.config import TriggerBlock
from airflow_provider_rfr.webhooks.endpoint import Endpoint
from airflow_provider_rfr.webhooks.variables import delivery_id

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

_LONGEST_ID = 255
_MOST_PLACES = 50

StartFrom = Literal["latest", "earliest"]


def endpoints_of(lake: str, table: str, block: TriggerBlock, default_name: str = "") -> dict[EndpointKey, Endpoint]:
    """The block's endpoints, for one table.

    :param default_name: of a block that gives none
    """
    name = block.name or default_name
    return {EndpointKey(lake, table, trigger, name): endpoint for trigger, endpoint in block.config.items()}


def _since_property(endpoint_name: str) -> str:
    """The table property that says from which sequence number on the endpoint (``block/trigger``) is owed commits."""
    return f"rfr.webhooks.{endpoint_name}.since"


def register_endpoints(store: ControlStore, endpoints: Mapping[EndpointKey, Endpoint], place: str) -> None:
    """Note that the endpoints are declared at this place; to be called before anything is sent to them.

    An endpoint has one row, with all that is known of it. So two triggers of one name, in two blocks of one name, must
    call the same address. Where a known place has another address now, it was edited there.

    :param place: for people: a file, or a task
    :raises ConfigurationError: a trigger calls another address than the one of the same name at other places
    """
    with store.read() as connection:
        known = load_endpoints(connection, endpoints)
    news = [key for key, row in sorted(known.items()) if _met(row, endpoints[key], place) is not None]

    def work(connection: Connection) -> None:
        for key in news:
            row = ensure_endpoint(connection, key)
            change_endpoints(connection, [row.id], **(_met(row, endpoints[key], place) or {}))

    if news:
        store.run(work)


def _met(row: EndpointRow, endpoint: Endpoint, place: str) -> dict[str, str] | None:
    """What to write to the row; None where it says so already."""
    places: list[str] = json.loads(row.places or "[]")
    address = endpoint.address_digest
    if row.address == address and place in places:
        return None
    if row.address not in (None, address) and place not in places:
        name = row.key.block or "without a name"
        raise ConfigurationError(
            f"trigger {row.key.trigger}",
            f"{place} and {places[-1]} both have a block {name} with this trigger for {row.key.table}, and they call"
            " different addresses, so they can't be told apart",
            "give one of the blocks a name of its own (name: ...). If it is one block that moved, say so:"
            f" airflow rfr triggers resume {row.key.table} {row.key.name}",
        )
    return {
        "address": address,
        "places": json.dumps([*(each for each in places if each != place), place][-_MOST_PLACES:]),
    }


def enqueue(store: ControlStore, events: Iterable[CommitEvent], endpoints: Mapping[EndpointKey, Endpoint]) -> int:
    """Make the deliveries of these commits that are missing; returns how many were.

    For commits at hand, e.g. the one that was just published. It says nothing about commits before them:
    :func:`enqueue_commits` looks at those.
    """
    found = list(events)

    def work(connection: Connection) -> int:
        made = 0
        for key in sorted(key for key, endpoint in endpoints.items() if endpoint.enabled):
            owed = [event for event in found if (event.lake, event.target) == (key.lake, key.table)]
            if any(endpoints[key].accepts_commit(event) for event in owed):
                row = ensure_endpoint(connection, key)
                made += _add(connection, store.now(connection), row, endpoints[key], owed)
        return made

    return store.run(work) if found else 0


def enqueue_commits(
    store: ControlStore,
    catalog: Catalog,
    lake: str,
    table: str,
    endpoints: Mapping[EndpointKey, Endpoint],
    *,
    start_from: StartFrom = "latest",
) -> int:
    """Make the deliveries of all commits of the table that were not looked at yet; returns how many were made.

    :param start_from: for a trigger that the table never had: ``latest`` is the newest commit and all after it,
        ``earliest`` is all that there are
    """
    commits = CommitLog.load(catalog, table)
    if commits is None:
        return 0
    mine = {key: endpoint for key, endpoint in endpoints.items() if (key.lake, key.table) == (lake, table)}
    with store.read() as connection:
        rows = load_endpoints(connection, mine)
    since = {
        key: _since(commits, lake, key, rows.get(key), start_from) for key, endpoint in mine.items() if endpoint.enabled
    }
    new = {
        name: str(number)
        for key, number in since.items()
        if _is_earlier(number, _kept(commits, key))
        for name in (_since_property(key.name), _hold(key))
    }
    if new:
        # Before the rows, so that there is no moment in which the store alone knows it.
        write_table_properties(catalog, table, new)
    return store.run(lambda connection: _enqueue_all(store, connection, commits, lake, mine, since))


def release_snapshots(store: ControlStore, catalog: Catalog, lake: str, table: str) -> None:
    """Write into the table which snapshots its endpoints still need: those from the first commit on that is unsent.

    An expiry asks nobody else. A store that was lost can be filled again with whatever is unsent.
    """
    commits = CommitLog.load(catalog, table)
    if commits is None:
        return
    with store.read() as connection:
        rows = endpoints_of_table(connection, lake, table)
        unsent = first_unsent(connection, [row.id for row in rows])
    needed: dict[str, str | None] = {
        _hold(row.key): str(unsent.get(row.id, row.enqueued_until + 1))
        for row in rows
        if row.enqueued_until is not None and row.table_uuid == commits.table_uuid
    }
    if any(commits.properties.get(key) != value for key, value in needed.items()):
        write_table_properties(catalog, table, needed)


def _hold(key: EndpointKey) -> str:
    return hold_property(f"webhook.{key.name}")


def _enqueue_all(
    store: ControlStore,
    connection: Connection,
    commits: CommitLog,
    lake: str,
    endpoints: Mapping[EndpointKey, Endpoint],
    since: Mapping[EndpointKey, int],
) -> int:
    made, now = 0, store.now(connection)
    newest = max((record.sequence for record in commits.commits()), default=0)
    known = load_endpoints(connection, endpoints)
    for key in sorted(endpoints):
        if key not in since and key not in known:
            continue
        row = ensure_endpoint(connection, key)
        values = {"table_uuid": commits.table_uuid, "enqueued_until": newest}
        if key in since:
            floor, values["since"] = _floor(row, commits.table_uuid, since[key])
            events = _events(commits.commits(floor), lake, commits.name)
            made += _add(connection, now, row, endpoints[key], events)
        # A trigger that is switched off is owed nothing of what is committed meanwhile.
        change_endpoints(connection, [row.id], **values)
    return made


def _floor(row: EndpointRow, table_uuid: str, since: int) -> tuple[int, int]:
    """Up to which sequence number all has been looked at, and from which on anything is owed."""
    if row.since is None or row.table_uuid != table_uuid:
        return since - 1, since
    if since < row.since or row.enqueued_until is None:
        return min(since, row.since) - 1, min(since, row.since)
    return row.enqueued_until, row.since


def _since(commits: CommitLog, lake: str, key: EndpointKey, row: EndpointRow | None, start_from: StartFrom) -> int:
    kept = _kept(commits, key)
    if row is not None and row.since is not None:
        if row.table_uuid != commits.table_uuid:
            # The trigger is known, but the table was made anew: all of it is new to the trigger.
            return 0 if kept is None else kept
        return row.since if kept is None else min(kept, row.since)
    if kept is not None:
        return kept
    if start_from == "earliest":
        return 0
    owing = _events(commits.commits(), lake, commits.name)
    return owing[-1].sequence if owing else 0


def _is_earlier(number: int, kept: int | None) -> bool:
    return kept is None or number < kept


def _kept(commits: CommitLog, key: EndpointKey) -> int | None:
    text = commits.properties.get(_since_property(key.name), "")
    return int(text) if text.isdecimal() and text.isascii() else None


def _events(records: Sequence[CommitRecord], lake: str, table: str) -> list[CommitEvent]:
    found = (_event(each, lake, table) for each in records)
    return [event for event in found if event is not None]


def _event(record: CommitRecord, lake: str, table: str) -> CommitEvent | None:
    """None also where others wrote what no event can hold: it must not hide the commits around it."""
    at = (record.snapshot_id, record.sequence, record.timestamp_ms)
    try:
        return CommitEvent.from_summary(table, *at, record.summary, lake=lake)
    except (ValueError, OverflowError) as error:
        log.warning("%s: snapshot %s can't be told: %s", table, record.snapshot_id, type(error).__name__)
        return None


def _add(connection: Connection, now: int, row: EndpointRow, endpoint: Endpoint, events: Sequence[CommitEvent]) -> int:
    owed = [
        NewDelivery(
            id=delivery_id(event.commit_id, row.key.name),
            endpoint_id=row.id,
            commit_id=_column(event.commit_id),
            sequence=event.sequence,
            snapshot_id=event.snapshot_id,
            event=event.to_json(),
        )
        for event in events
        if endpoint.accepts_commit(event)
    ]
    return add_deliveries(connection, now, owed)


def _column(commit_id: str) -> str:
    """The commit's id as every database takes it; others than ours may write anything into a snapshot."""
    usual = len(commit_id) <= _LONGEST_ID and commit_id.isprintable()
    return commit_id if usual else hashlib.sha256(commit_id.encode("utf-8", "replace")).hexdigest()
