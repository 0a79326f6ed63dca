"""The engine of a resumable full refresh: ledger, rounds, publish."""

from __future__ import annotations
