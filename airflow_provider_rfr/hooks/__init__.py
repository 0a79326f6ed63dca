"""Hooks: what a connection means, and the one way to spark-submit."""

from __future__ import annotations
