"""Tables of the control store: how far each sink is, and where cursors went when their table was replaced.

A sink's row holds its whole truth: cursor, the window it is at, and what was decided about it. ``window`` is written
before anything of it is sent, so that whoever comes after a crash cuts the same batches.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text

from airflow_provider_rfr.store.tables import METADATA

SINKS: Final = Table(
    "rfr_sinks",
    METADATA,
    Column("uuid", String(36), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("source", String(36), nullable=False, index=True),
    Column("physical", String(36), index=True),
    Column("cursor", BigInteger),
    Column("sequence", BigInteger),
    Column("pins", Text, nullable=False),
    Column("on_replace", String(20)),
    Column("start", String(8)),
    Column("since", BigInteger),
    Column("deploy_id", String(64)),
    Column("decided_by", String(128)),
    Column("held_at", BigInteger),
    Column("held_reason", Text),
    Column("behind", BigInteger),
    Column("round", Integer, nullable=False, default=0),
    Column("window", Text),
    Column("batches", BigInteger, nullable=False, default=0),
    Column("rows", BigInteger, nullable=False, default=0),
    Column("last_batch", String(64)),
    Column("sent_at", BigInteger),
    Column("token", BigInteger, nullable=False, default=0),
    Column("lease_owner", String(128)),
    Column("lease_until", BigInteger),
    Column("created_at", BigInteger, nullable=False),
)

# The new table holds at its snapshot exactly the rows that the old one holds at its own.
CURSOR_MAPS: Final = Table(
    "rfr_sink_cursor_maps",
    METADATA,
    Column("old_physical", String(36), primary_key=True),
    Column("source", String(36), nullable=False),
    Column("old_snapshot", BigInteger),
    Column("old_name", String(255)),
    Column("new_physical", String(36), nullable=False),
    Column("new_snapshot", BigInteger),
    Column("created_at", BigInteger, nullable=False),
)
