"""The control store's tables.

All times are whole milliseconds since 1970, so that SQLite and PostgreSQL compare them as the instants they are. No
column holds a secret: a delivery keeps the variables of its commit, and is rendered anew for each attempt.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION: Final = 1
METADATA: Final = MetaData()

SETTINGS: Final = Table(
    "rfr_settings",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

# One trigger of one block at one table: what must outlive the process that delivers.
ENDPOINTS: Final = Table(
    "rfr_webhook_endpoints",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("lake", String(255), nullable=False),
    Column("target", String(255), nullable=False),
    Column("trigger", String(255), nullable=False),
    Column("block", String(255), nullable=False, default=""),
    Column("address", String(16)),
    Column("places", Text),
    Column("table_uuid", String(36)),
    Column("since", BigInteger),
    Column("enrolled_until", BigInteger),
    Column("last_fired_at", BigInteger),
    Column("failing", Integer, nullable=False, default=0),
    Column("resting_until", BigInteger),
    Column("paused_at", BigInteger),
    Column("disabled_at", BigInteger),
    Column("disabled_reason", String(255)),
    Column("disabled_address", String(16)),
    UniqueConstraint("lake", "target", "trigger", "block"),
)

DELIVERIES: Final = Table(
    "rfr_webhook_deliveries",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("endpoint_id", ForeignKey(ENDPOINTS.c.id), nullable=False),
    Column("first_commit", String(255), nullable=False),
    Column("last_commit", String(255), nullable=False, index=True),
    Column("commits", Integer, nullable=False, default=1),
    Column("sequence", BigInteger, nullable=False),
    Column("snapshot_id", BigInteger, nullable=False),
    Column("event", Text, nullable=False),
    Column("state", String(10), nullable=False),
    Column("reason", String(20)),
    Column("detail", Text),
    Column("attempts", Integer, nullable=False, default=0),
    Column("failures", Integer, nullable=False, default=0),
    Column("created_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("lease_owner", String(64)),
    Column("lease_until", BigInteger),
    Column("token", BigInteger, nullable=False, default=0),
    Column("merged_into", String(32), index=True),
    Column("status", Integer),
    Column("body_sha256", String(64)),
    Column("on_failure", String(12)),
    Column("told_at", BigInteger),
    Index("ix_rfr_webhook_due", "endpoint_id", "state", "due_at"),
    Index("ix_rfr_webhook_order", "endpoint_id", "state", "sequence"),
)

ATTEMPTS: Final = Table(
    "rfr_webhook_attempts",
    METADATA,
    Column("delivery_id", ForeignKey(DELIVERIES.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("milliseconds", Integer, nullable=False),
    Column("outcome", String(12), nullable=False),
    Column("status", Integer),
    Column("detail", Text),
    Column("answer", Text),
    Column("body_sha256", String(64)),
)
