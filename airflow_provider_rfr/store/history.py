"""Rows of history tables that wait to be appended, and the keys of those that were appended in the last days.

A key stays for some days after its row was appended, so that a process that reports the row again adds nothing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, exists, func, select, update

from airflow_provider_rfr.store.engine import in_chunks, insert_missing
from airflow_provider_rfr.store.tables import HISTORY

_H: Final = HISTORY.c
_LONGEST_KEY: Final = 255


def key_text(values: Iterable[object]) -> str:
    """Return the values of a row's key columns as one text."""
    text = "/".join(map(str, values))
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


def add_rows(connection: Connection, now: int, lake: str, table: str, rows: Mapping[str, str]) -> None:
    """Let rows wait, except those whose key is there already.

    :param rows: JSON by key
    """
    same = {"lake": lake, "table": table, "reported_at": now}
    insert_missing(connection, HISTORY, [{**same, "key": key, "row": row} for key, row in rows.items()])


def is_new(lake: str, table: str, key: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that no row with this key waits or was appended in the last days."""
    return ~exists().where(_H.lake == lake, _H.table == table, _H.key == key)


def waiting(connection: Connection, lake: str) -> tuple[int, int | None]:
    """Return how many rows of the lake wait, and when the oldest was reported."""
    query = select(func.count(), func.min(_H.reported_at)).where(_H.lake == lake, _H.appended_at.is_(None))
    count, oldest = connection.execute(query).one()
    return int(count), oldest


def oldest_rows(connection: Connection, lake: str, limit: int) -> dict[str, dict[str, str]]:
    """Return waiting rows, the oldest first: by table, JSON by key."""
    query = select(_H.table, _H.key, _H.row).where(_H.lake == lake, _H.appended_at.is_(None))
    rows: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for table, key, row in connection.execute(query.order_by(_H.reported_at).limit(limit)):
        rows[table][key] = row
    return dict(rows)


def mark_appended(connection: Connection, now: int, lake: str, table: str, keys: Collection[str]) -> None:
    """Keep only the keys of rows that the table has by now."""
    for chunk in in_chunks(keys):
        ours = (_H.lake == lake) & (_H.table == table) & _H.key.in_(chunk)
        connection.execute(update(HISTORY).where(ours).values(row=None, appended_at=now))


def drop_rows(connection: Connection, lake: str, table: str, keys: Collection[str]) -> None:
    """Delete rows with their keys, so that they may be reported again."""
    for chunk in in_chunks(keys):
        connection.execute(delete(HISTORY).where(_H.lake == lake, _H.table == table, _H.key.in_(chunk)))


def drop_old(connection: Connection, lake: str, *, appended_before: int, reported_before: int) -> int:
    """Delete old keys of appended rows, and rows that wait for too long; return how many rows are lost by it."""
    connection.execute(delete(HISTORY).where(_H.lake == lake, _H.appended_at < appended_before))
    too_old = (_H.lake == lake) & _H.appended_at.is_(None) & (_H.reported_at < reported_before)
    return connection.execute(delete(HISTORY).where(too_old)).rowcount
