"""Tables of the control store: cursors of sinks."""

from __future__ import annotations
