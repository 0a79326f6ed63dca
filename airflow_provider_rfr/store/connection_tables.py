"""Tables of the control store: which ingestion uses which connection, and the audit of changes."""

from __future__ import annotations
