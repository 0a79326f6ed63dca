"""Connections as Airflow has them: looked up, stored by its API or in its database, watched while a task uses them."""

from __future__ import annotations
