"""The ready DAG ``alter_connection``, where the tests' Airflow looks for DAGs."""

from __future__ import annotations

import runpy
from pathlib import Path

dag = runpy.run_path(str(Path(__file__).resolve().parents[3] / "dags" / "alter_connection.py"))["dag"]
