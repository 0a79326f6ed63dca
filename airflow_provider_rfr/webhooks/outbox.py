"""The outbox: makes the deliveries that commits call for, as rows of the control store.

The snapshots of the commits hold their events, and ids derive from commit and endpoint. So rows can be made at any
time, by any process, any number of times. The first commit of which an endpoint gets deliveries is decided once, and
kept in a property of the table as well, so that a lost store is filled with the same rows again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.lake.commits import CommitLog, write_table_properties
from airflow_provider_rfr.lake.expiry import hold_property
from airflow_provider_rfr.store import deliveries
from airflow_provider_rfr.store.deliveries import EndpointKey, EndpointRow
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.webhooks.block import Endpoint, TriggerBlock

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

_LONGEST_ID = 255
_MOST_PLACES = 50

StartFrom = Literal["latest", "earliest"]


def delivery_id(commit_id: str, endpoint_name: str) -> str:
    """Return the id of a delivery: 32 hexadecimal digits, a digest of the commit's id and :attr:`EndpointKey.name`."""
    return _digest("delivery", commit_id, endpoint_name)


def merged_id(endpoint_name: str, first_commit: str, last_commit: str) -> str:
    """Return the id of one delivery for all commits from the first to the last."""
    return _digest("merged", endpoint_name, first_commit, last_commit)


def _digest(*parts: str) -> str:
    # As JSON: if they were joined, different parts could make the same text.
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def endpoints_of(lake: str, table: str, block: TriggerBlock, default_name: str = "") -> dict[EndpointKey, Endpoint]:
    """Return the block's endpoints for one table, by key; ``default_name``: name of a block that gives none."""
    name = block.name or default_name
    return {EndpointKey(lake, table, trigger, name): endpoint for trigger, endpoint in block.config.items()}


def register_endpoints(store: ControlStore, endpoints: Mapping[EndpointKey, Endpoint], place: str) -> None:
    """Record that the endpoints are declared at this place. It must be called before anything is sent to them.

    An endpoint has one row, which holds all of its state. So two triggers of one name, in two blocks of one name, must
    call the same address. If a known place declares another address than before, the block was edited there.

    :param place: file or task that declares the block, for messages
    :raises ConfigurationError: a trigger calls another address than the one of the same name at other places
    """
    with store.read() as connection:
        rows = deliveries.load_endpoints(connection, endpoints)
    # In the keys' order, so that two processes that register the same endpoints lock rows in the same order.
    changed = [key for key, row in sorted(rows.items()) if _place_values(row, endpoints[key], place)]

    def work(connection: Connection) -> None:
        for key in changed:
            row = deliveries.ensure_endpoint(connection, key)
            deliveries.change_endpoints(connection, [row.id], **_place_values(row, endpoints[key], place))

    if changed:
        store.run(work)


def _place_values(row: EndpointRow, endpoint: Endpoint, place: str) -> dict[str, str | None]:
    """Return the columns of the row to update; an empty dict if it is up to date.

    :raises ConfigurationError: another place declares the endpoint with another address
    """
    places: list[str] = json.loads(row.places or "[]")
    address = endpoint.address_digest
    if row.address == address and place in places:
        return {}
    if row.address not in (None, address) and place not in places:
        name = row.key.block or "without a name"
        raise ConfigurationError(
            f"trigger {row.key.trigger}",
            f"{place} and {places[-1]} both have a block {name} with this trigger for {row.key.table}, and they call"
            " different addresses, so they can't be distinguished",
            "give one of the blocks a name of its own (name: ...). If it is one block that moved, say so:"
            f" airflow rfr triggers resume {row.key.table} {row.key.name}",
        )
    newest_last = [*(other for other in places if other != place), place]
    return {"address": address, "conn_id": endpoint.connection, "places": json.dumps(newest_last[-_MOST_PLACES:])}


def enqueue(store: ControlStore, events: Iterable[CommitEvent], endpoints: Mapping[EndpointKey, Endpoint]) -> int:
    """Make the missing deliveries of these commits, e.g. of one that was just published, and return their number.

    Commits before them are left to :func:`enqueue_commits`.
    """
    published = list(events)

    def work(connection: Connection) -> int:
        count = 0
        for key in sorted(key for key, endpoint in endpoints.items() if endpoint.enabled):
            owed = [event for event in published if (event.lake, event.target) == (key.lake, key.table)]
            if any(endpoints[key].when.accepts(event) for event in owed):
                row = deliveries.ensure_endpoint(connection, key)
                count += _add(connection, store.now(connection), row, endpoints[key], owed)
        return count

    return store.run(work) if published else 0


def enqueue_commits(
    store: ControlStore,
    catalog: Catalog,
    lake: str,
    table: str,
    endpoints: Mapping[EndpointKey, Endpoint],
    *,
    start_from: StartFrom = "latest",
) -> int:
    """Make the deliveries of all commits of the table that were not enqueued yet, and return their number.

    :param start_from: for a trigger that is new to the table: ``latest`` begins with the newest commit, ``earliest``
        with the oldest that there is
    """
    commits = CommitLog.load(catalog, table)
    if commits is None:
        return 0
    mine = {key: endpoint for key, endpoint in endpoints.items() if (key.lake, key.table) == (lake, table)}
    with store.read() as connection:
        rows = deliveries.load_endpoints(connection, mine)
    if missing := mine.keys() - rows.keys():
        _follow_rename(store, catalog, commits, lake, missing)
        with store.read() as connection:
            rows = deliveries.load_endpoints(connection, mine)
    since = {
        key: _first_sequence(commits, lake, key, rows.get(key), start_from)
        for key, endpoint in mine.items()
        if endpoint.enabled
    }
    new: dict[str, str | None] = {}
    for key, number in since.items():
        kept = _kept_since(commits, key)
        if kept is None or number < kept:
            # Both in one commit: with the start alone, an expiry could remove the first commits before they are
            # enqueued.
            new |= dict.fromkeys((_since_property(key.name), _hold_property(key)), str(number))
    if new:
        # Before the rows, so that there is no moment in which the store alone knows it.
        write_table_properties(catalog, table, new)
    return store.run(lambda connection: _enqueue_new(store, connection, commits, lake, mine, since))


def _follow_rename(
    store: ControlStore, catalog: Catalog, commits: CommitLog, lake: str, missing: Container[EndpointKey]
) -> None:
    """Give the rows of a renamed table's endpoints its new name.

    With new rows, pending deliveries would stay with the former name, and old ones would be sent again.

    :param missing: keys of the table's endpoints that have no row
    """
    with store.read() as connection:
        known = deliveries.endpoints_of_table(connection, lake)
    for row in known:
        if row.table_uuid == commits.table_uuid and row.key._replace(table=commits.name) in missing:
            former = CommitLog.load(catalog, row.key.table)
            # Two names of one table, e.g. of a copy of its metadata, are left alone.
            if former is None or former.table_uuid != commits.table_uuid:
                rename = partial(deliveries.change_endpoints, ids=[row.id], target=commits.name)
                store.run(rename)


def release_snapshots(
    store: ControlStore, catalog: Catalog, lake: str, table: str, endpoints: Container[EndpointKey]
) -> None:
    """Write into the table the sequence number of the first unsent commit of each endpoint.

    The expiry of snapshots reads only these properties, and keeps snapshots from there on. So a lost store can be
    filled again with all unsent deliveries.

    :param endpoints: keys of endpoints that are declared; other ones may be gone, and a hold of theirs that somebody
        has released is not written again
    """
    commits = CommitLog.load(catalog, table)
    if commits is None:
        return
    with store.read() as connection:
        rows = deliveries.endpoints_of_table(connection, lake, table)
        unsent = deliveries.first_unsent(connection, [row.id for row in rows])
    needed: dict[str, str | None] = {
        _hold_property(row.key): str(unsent.get(row.id, row.enqueued_until + 1))
        for row in rows
        if row.enqueued_until is not None
        and row.table_uuid == commits.table_uuid
        and (row.key in endpoints or _hold_property(row.key) in commits.properties)
    }
    if any(commits.properties.get(key) != value for key, value in needed.items()):
        write_table_properties(catalog, table, needed)


def _since_property(endpoint_name: str) -> str:
    """Return the table property with the sequence number of the first commit that the endpoint gets."""
    return f"rfr.webhooks.{endpoint_name}.since"


def _hold_property(key: EndpointKey) -> str:
    return hold_property(f"webhook.{key.name}")


def _kept_since(commits: CommitLog, key: EndpointKey) -> int | None:
    text = commits.properties.get(_since_property(key.name), "")
    return int(text) if text.isdecimal() and text.isascii() else None


def _first_sequence(
    commits: CommitLog, lake: str, key: EndpointKey, row: EndpointRow | None, start_from: StartFrom
) -> int:
    """Return the sequence number of the first commit that the endpoint gets.

    It is the number that was recorded for the endpoint, or else that of ``start_from``.
    """
    kept = _kept_since(commits, key)
    if row is not None and row.since is not None:
        if row.table_uuid != commits.table_uuid:
            # The trigger is known, but the table was dropped and made again: all of it is new to the trigger.
            return 0 if kept is None else kept
        return row.since if kept is None else min(kept, row.since)
    if kept is not None:
        return kept
    events = _events(commits, lake) if start_from == "latest" else []
    return events[-1].sequence if events else 0


def _enqueue_new(
    store: ControlStore,
    connection: Connection,
    commits: CommitLog,
    lake: str,
    endpoints: Mapping[EndpointKey, Endpoint],
    since: Mapping[EndpointKey, int],
) -> int:
    count, now = 0, store.now(connection)
    newest = max((record.sequence for record in commits.commits()), default=0)
    rows = deliveries.load_endpoints(connection, endpoints)
    for key in sorted(endpoints):
        if key not in since and key not in rows:
            # It is disabled and has no row yet: there is nothing to record.
            continue
        row = deliveries.ensure_endpoint(connection, key)
        # Another process may have seen later commits, and have written a greater number. To set it back is harmless:
        # those commits are enqueued once more, and their deliveries have the same ids.
        values = {"table_uuid": commits.table_uuid, "enqueued_until": newest}
        if key in since:
            after, first = since[key] - 1, since[key]
            if row.since is not None and row.table_uuid == commits.table_uuid:
                if row.enqueued_until is not None and since[key] >= row.since:
                    # Commits up to this one were enqueued.
                    after, first = row.enqueued_until, row.since
                else:
                    # The start was moved back. What was enqueued before is enqueued again under the same ids, so it
                    # stays one delivery.
                    first = min(since[key], row.since)
                    after = first - 1
            values["since"] = first
            count += _add(connection, now, row, endpoints[key], _events(commits, lake, after))
        # A disabled trigger gets no deliveries for commits that are made meanwhile.
        deliveries.change_endpoints(connection, [row.id], **values)
    return count


def _events(commits: CommitLog, lake: str, after: int | None = None) -> list[CommitEvent]:
    """Return events of the table's commits; ``after``: only of those with a greater sequence number."""
    events = []
    for record in commits.commits(after):
        at = (record.snapshot_id, record.sequence, record.timestamp_ms)
        try:
            event = CommitEvent.from_summary(commits.name, *at, record.summary, lake=lake)
        except (ValueError, OverflowError) as error:
            # Other programs may write anything into a summary; it must not hide the commits around it.
            log.warning("%s: snapshot %s can't be read: %s", commits.name, record.snapshot_id, type(error).__name__)
            continue
        if event is not None:
            events.append(event)
    return events


def _add(connection: Connection, now: int, row: EndpointRow, endpoint: Endpoint, events: Sequence[CommitEvent]) -> int:
    owed = []
    for event in events:
        if not endpoint.when.accepts(event):
            continue
        commit_id = event.commit_id
        # Another program may have written an id that a database refuses.
        if len(commit_id) > _LONGEST_ID or not commit_id.isprintable():
            commit_id = hashlib.sha256(commit_id.encode("utf-8", "replace")).hexdigest()
        owed.append(
            {
                "id": delivery_id(event.commit_id, row.key.name),
                "endpoint_id": row.id,
                "first_commit": commit_id,
                "last_commit": commit_id,
                "sequence": event.sequence,
                "snapshot_id": event.snapshot_id,
                "event": event.to_json(),
                "dag_ids": frozenset({(event.dag_id or None) if event.dag_id.isprintable() else None}),
            }
        )
    return deliveries.add_deliveries(connection, now, owed)
