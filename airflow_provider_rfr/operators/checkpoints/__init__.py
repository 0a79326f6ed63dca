"""Where Airflow keeps how far a refresh is: a display and a hint. The ledger beside the table is the truth.

Losing a checkpoint, or finding a wrong one, never changes what a refresh reads or publishes.
"""

from __future__ import annotations

from airflow_provider_rfr.operators.checkpoints.keeper import CheckpointKeeper
from airflow_provider_rfr.operators.checkpoints.stores import CheckpointStore, check_store, open_store

__all__ = ["CheckpointKeeper", "CheckpointStore", "check_store", "open_store"]
