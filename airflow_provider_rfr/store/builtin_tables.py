"""Tables of the control store: registry of built-in objects, journal of deploys, lease and garbage."""

from __future__ import annotations
