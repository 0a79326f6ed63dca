"""Tables of the control store: which ingestion uses which connection, and the audit of changes.

Of a connection's content they hold keyed hashes, of secrets where they are kept; never a value.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text

from airflow_provider_rfr.store.tables import METADATA

CONSUMER_LENGTH: Final = 800

# One task of one run that uses connections: a refresh, a sink. It goes when a later run takes its place.
USES: Final = Table(
    "rfr_connection_uses",
    METADATA,
    Column("consumer", String(CONSUMER_LENGTH), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("dag_id", String(250), nullable=False),
    Column("run_id", String(250), nullable=False),
    Column("task_id", String(250), nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("state", String(10), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("error", Text),
    Column("error_kind", String(64)),
    Column("details", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Index("ix_rfr_connection_task", "dag_id", "task_id", "map_index"),
)

# The copy that it runs with, and the one that it ought to run with; NULL for what it runs with.
USE_HASHES: Final = Table(
    "rfr_connection_use_hashes",
    METADATA,
    Column("consumer", ForeignKey(USES.c.consumer, ondelete="CASCADE"), primary_key=True),
    Column("conn_id", String(250), primary_key=True, index=True),
    Column("via", Text, nullable=False),
    Column("running_hash", String(64), nullable=False),
    Column("wanted_hash", String(64)),
)

SECRETS: Final = Table(
    "rfr_connection_secrets",
    METADATA,
    Column("conn_id", String(250), primary_key=True),
    Column("option", String(250), primary_key=True),
    Column("reference", Text, nullable=False),
)

IDENTITIES: Final = Table(
    "rfr_connection_identities",
    METADATA,
    Column("conn_id", String(250), primary_key=True),
    Column("identity", String(64), nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)

# Where it led before, of a connection whose content is what the last alteration stored.
MOVES: Final = Table(
    "rfr_connection_moves",
    METADATA,
    Column("conn_id", String(250), primary_key=True),
    Column("content_hash", String(64), primary_key=True),
    Column("places", Text, nullable=False),
)

# Audit, journal and lock at once: an open row whose lease lasts keeps others off its connection.
ALTERATIONS: Final = Table(
    "rfr_connection_alterations",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("conn_id", String(250), nullable=False, index=True),
    Column("actor", String(250), nullable=False),
    Column("state", String(12), nullable=False),
    Column("statement", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("validated", Integer),
    Column("detail", Text),
    Column("old_hash", String(64)),
    Column("new_hash", String(64)),
    Column("dependents", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("lease_until", BigInteger),
)
