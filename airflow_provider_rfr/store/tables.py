"""Tables of the control store.

Times are whole milliseconds since 1970, so that SQLite and PostgreSQL compare them as instants. No column holds a
secret: a delivery stores the variables of its commit, and its body is rendered for each attempt; of connections there
are keyed hashes; a refresh token is encrypted with a key derived from the configured one, which only the connection
holds. The ``window`` of a sink is written before its first batch is sent, so that a run after a crash cuts the same
batches.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

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
    text,
)
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from sqlalchemy import Dialect

SCHEMA_VERSION: Final = 3
METADATA: Final = MetaData()


class DagIds(TypeDecorator[frozenset[str | None]]):
    """A column type for a set of DAG ids: a sorted JSON list, so that equal sets are equal texts.

    None in the set stands for commits of no DAG.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Collection[str | None] | None, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(sorted(value, key=str))

    def process_result_value(self, value: str | None, dialect: Dialect) -> frozenset[str | None] | None:
        return None if value is None else frozenset(json.loads(value))


SETTINGS: Final = Table(
    "rfr_settings", METADATA, Column("name", String(64), primary_key=True), Column("value", Text, nullable=False)
)

# An endpoint is one trigger of one block at one table.
ENDPOINTS: Final = Table(
    "rfr_webhook_endpoints",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("lake", String(255), nullable=False),
    Column("target", String(255), nullable=False),
    Column("trigger", String(255), nullable=False),
    Column("block", String(255), nullable=False, default=""),
    Column("address", String(16)),
    Column("conn_id", String(250)),
    Column("places", Text),
    Column("table_uuid", String(36)),
    Column("since", BigInteger),
    Column("enqueued_until", BigInteger),
    Column("last_fired_at", BigInteger),
    Column("failing", Integer, nullable=False, default=0),
    Column("open_until", BigInteger),
    Column("paused_at", BigInteger),
    Column("disabled_at", BigInteger),
    Column("disabled_reason", String(255)),
    Column("disabled_address", String(16)),
    Column("dag_ids", DagIds, nullable=False, default=frozenset()),
    UniqueConstraint("lake", "target", "trigger", "block"),
)

_IS_MERGED: Final = text("merged_into IS NOT NULL")
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
    Column("dag_ids", DagIds, nullable=False, default=frozenset({None})),
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
    Column("merged_into", String(32)),
    Column("status", Integer),
    Column("body_sha256", String(64)),
    Column("on_failure", String(12)),
    Column("notified_at", BigInteger),
    Index("ix_rfr_webhook_due", "endpoint_id", "state", "due_at"),
    Index("ix_rfr_webhook_order", "endpoint_id", "state", "sequence"),
    Index("ix_rfr_webhook_merged", "merged_into", sqlite_where=_IS_MERGED, postgresql_where=_IS_MERGED),
    Index("ix_rfr_webhook_created", "created_at"),
    Index("ix_rfr_webhook_ended", "ended_at"),
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
    Index("ix_rfr_webhook_attempts", "at", "delivery_id"),
)

REGISTRY: Final = Table(
    "rfr_builtin_registry",
    METADATA,
    Column("project", String(255), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("version", String(255)),
    Column("deploy_id", String(32), nullable=False),
    Column("written_at", BigInteger, nullable=False),
)

OBJECTS: Final = Table(
    "rfr_builtin_objects",
    METADATA,
    Column("project", String(255), primary_key=True),
    Column("uuid", String(36), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("physical", String(255), nullable=False),
    Column("body", Text, nullable=False),
)

DEPLOYS: Final = Table(
    "rfr_builtin_deploys",
    METADATA,
    Column("deploy_id", String(32), primary_key=True),
    Column("project", String(255), nullable=False),
    Column("base_revision", BigInteger, nullable=False),
    Column("from_version", String(255)),
    Column("to_version", String(255), nullable=False),
    Column("plan_hash", String(64), nullable=False),
    Column("plan", Text, nullable=False),
    Column("state", String(10), nullable=False),
    Column("actor", String(255), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("revision", BigInteger),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("error", Text),
    Index("ix_rfr_builtin_deploys", "project", "started_at"),
)

STEPS: Final = Table(
    "rfr_builtin_steps",
    METADATA,
    Column("deploy_id", ForeignKey(DEPLOYS.c.deploy_id), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("uuid", String(36)),
    Column("name", String(255), nullable=False),
    Column("action", String(20), nullable=False),
    Column("state", String(10), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("evidence", Text),
    Column("error", Text),
)

GARBAGE: Final = Table(
    "rfr_builtin_garbage",
    METADATA,
    Column("project", String(255), primary_key=True),
    Column("physical", String(255), primary_key=True),
    Column("uuid", String(36), nullable=False),
    Column("deploy_id", String(32), nullable=False),
    Column("reason", String(255), nullable=False),
    Column("queued_at", BigInteger, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text),
)

# The name is the project of a deploy, the id of a sink, the connection of an alteration, the digest of a refresh
# token's grant, or the lake of history tables.
LEASES: Final = Table(
    "rfr_leases",
    METADATA,
    Column("kind", String(16), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", String(255)),
    Column("until", BigInteger),
    Column("milliseconds", BigInteger, nullable=False),
)

# One task of one run that uses connections: a refresh, a sink. A later run of the task replaces it.
USES: Final = Table(
    "rfr_connection_uses",
    METADATA,
    Column("consumer", String(800), primary_key=True),
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

# Hashes of the copy of a connection that the task has, and of the one that it should have; NULL for the same.
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

# Former addresses of a connection; they are valid while its content is the one that the last alteration stored.
MOVES: Final = Table(
    "rfr_connection_moves",
    METADATA,
    Column("conn_id", String(250), primary_key=True),
    Column("content_hash", String(64), primary_key=True),
    Column("places", Text, nullable=False),
)

# Audit and journal of alterations; "open" is an alteration under way, or one whose process died.
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
)

# The newest refresh token of a grant whose token endpoint replaces it with each use.
REFRESH_TOKENS: Final = Table(
    "rfr_refresh_tokens",
    METADATA,
    Column("grant", String(64), primary_key=True),
    Column("sealed", Text, nullable=False),
    Column("replaced_at", BigInteger, nullable=False),
)

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
    Column("created_at", BigInteger, nullable=False),
)

# A queue: a row of a history table waits here until it is appended; then its key stays for some days, to find repeats.
HISTORY: Final = Table(
    "rfr_history_rows",
    METADATA,
    Column("lake", String(255), primary_key=True),
    Column("table", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("row", Text),
    Column("reported_at", BigInteger, nullable=False),
    Column("appended_at", BigInteger),
    Index("ix_rfr_history_appended", "lake", "appended_at", "reported_at"),
)
