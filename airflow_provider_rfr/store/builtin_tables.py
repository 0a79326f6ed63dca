"""Tables of the control store: registry of built-in objects, journal of deploys, lease and garbage.

What a domain value becomes as JSON is not known here: ``body`` and ``plan`` are texts of whoever keeps them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text

from airflow_provider_rfr.store.tables import METADATA

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

LEASES: Final = Table(
    "rfr_builtin_leases",
    METADATA,
    Column("project", String(255), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", String(255)),
    Column("until", BigInteger),
    Column("since", BigInteger),
)
