from __future__ import annotations

from tests.unit.triggers.refreshes import refresh

__all__ = ["refresh"]
