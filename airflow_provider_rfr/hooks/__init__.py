"""Hooks: connections, catalogs, the control store, and the Spark provider's hook."""

from __future__ import annotations
