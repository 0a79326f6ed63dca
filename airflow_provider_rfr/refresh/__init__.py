"""The engine of resumable full refreshes and incremental syncs: ledger, rounds, publish."""

from __future__ import annotations
