"""Airflow's connections: their lookup, their storage by Airflow's API or database, and the watch of tasks' copies."""

from __future__ import annotations
