"""Rows of endpoints: what is known of one trigger of one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, RowMapping, Table, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from airflow_provider_rfr.store.tables import ENDPOINTS

_KEY: Final = ("lake", "target", "trigger", "block")
LONGEST_REST: Final = 25 * 3600 * 1000
"""Milliseconds. A rest that ends later was written by a clock that ran ahead, and does not count."""


class EndpointKey(NamedTuple):
    """Which trigger of which block at which table.

    :ivar lake: the catalog's name
    :ivar block: the block's name; two blocks may have triggers of one name
    """

    lake: str
    table: str
    trigger: str
    block: str = ""

    @property
    def name(self) -> str:
        """The trigger as people write it, and as ids are made of it: ``block/trigger``."""
        return f"{self.block}/{self.trigger}" if self.block else self.trigger

    def __str__(self) -> str:
        return f"trigger {self.name} of {self.lake}.{self.table}"


def parts_of(name: str) -> tuple[str, str | None]:
    """Trigger and block of ``block/trigger``; no block where only a trigger is named."""
    block, found, trigger = name.rpartition("/")
    return trigger, block if found else None


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint as the store knows it.

    :ivar address: a digest of whom the trigger calls, as its block says it; None before a deliverer came
    :ivar places: where the block was met, as JSON, the newest last
    :ivar table_uuid: of the table that ``since`` and ``enrolled_until`` speak of; a table made anew has another one
    :ivar since: commits from this sequence number on are owed
    :ivar enrolled_until: commits up to this sequence number have been looked at
    :ivar failing: failed attempts in a row
    :ivar resting_until: nothing is sent before
    :ivar disabled_address: a digest of the address that was gone
    """

    id: int
    key: EndpointKey
    address: str | None
    places: str | None
    table_uuid: str | None
    since: int | None
    enrolled_until: int | None
    last_fired_at: int | None
    failing: int
    resting_until: int | None
    paused_at: int | None
    disabled_at: int | None
    disabled_reason: str | None
    disabled_address: str | None

    def rests(self, now: int) -> bool:
        """Whether nothing is sent for the moment."""
        return self.resting_until is not None and now < self.resting_until <= now + LONGEST_REST

    def is_open(self, now: int) -> bool:
        """Whether deliveries may be claimed."""
        return self.paused_at is None and self.disabled_at is None and not self.rests(now)


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows whose keys are not there; the others stay as they are."""
    if rows:
        make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        connection.execute(make(table).on_conflict_do_nothing(), list(rows))


def ensure_endpoint(connection: Connection, key: EndpointKey) -> EndpointRow:
    """The endpoint's row, made where it is missing, and locked until the transaction ends."""
    insert_missing(connection, ENDPOINTS, [_columns(key)])
    found = connection.execute(select(ENDPOINTS).where(_is_key([key])).with_for_update()).mappings().one()
    return _row(found)


def load_endpoints(connection: Connection, keys: Iterable[EndpointKey]) -> dict[EndpointKey, EndpointRow]:
    """Those of the keys that have a row."""
    found: dict[EndpointKey, EndpointRow] = {}
    wanted = list(keys)
    for start in range(0, len(wanted), 500):
        query = select(ENDPOINTS).where(_is_key(wanted[start : start + 500]))
        found |= {row.key: row for row in map(_row, connection.execute(query).mappings())}
    return found


def endpoints_with_ids(connection: Connection, ids: Iterable[int]) -> dict[int, EndpointRow]:
    """The rows by their ids."""
    wanted = sorted(ids)
    query = select(ENDPOINTS).where(ENDPOINTS.c.id.in_(wanted))
    return {row.id: row for row in map(_row, connection.execute(query).mappings())} if wanted else {}


def endpoints_of_table(connection: Connection, lake: str, table: str | None = None) -> list[EndpointRow]:
    """All that the store knows, of a lake or of one of its tables, by table and trigger."""
    query = select(ENDPOINTS).where(ENDPOINTS.c.lake == lake).order_by(*(ENDPOINTS.c[name] for name in _KEY))
    if table is not None:
        query = query.where(ENDPOINTS.c.target == table)
    return [_row(each) for each in connection.execute(query).mappings()]


def change_endpoints(connection: Connection, ids: Iterable[int], **values: Any) -> int:
    """Write columns of some endpoints; returns how many there were."""
    wanted = sorted(ids)
    # One order for all who do this, so that none waits for another that waits for it.
    lock = select(ENDPOINTS.c.id).where(ENDPOINTS.c.id.in_(wanted)).order_by(ENDPOINTS.c.id).with_for_update()
    connection.execute(lock).all()
    return connection.execute(update(ENDPOINTS).where(ENDPOINTS.c.id.in_(wanted)).values(**values)).rowcount


def _is_key(keys: Sequence[EndpointKey]) -> Any:
    return tuple_(*(ENDPOINTS.c[name] for name in _KEY)).in_(keys)


def _columns(key: EndpointKey) -> dict[str, str]:
    return dict(zip(_KEY, key, strict=True))


def _row(found: RowMapping) -> EndpointRow:
    values = dict(found)
    key = EndpointKey(*(values.pop(name) for name in _KEY))
    return EndpointRow(key=key, **values)
