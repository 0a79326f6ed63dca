"""The ready DAG ``deliver_webhooks``, where the tests' Airflow looks for DAGs."""

from __future__ import annotations

import runpy
from pathlib import Path

dag = runpy.run_path(str(Path(__file__).resolve().parents[3] / "dags" / "deliver_webhooks.py"))["dag"]
