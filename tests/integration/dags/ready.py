"""Ready DAGs, where the tests' Airflow looks for DAGs."""

from __future__ import annotations

import runpy
from pathlib import Path

READY = Path(__file__).resolve().parents[3] / "dags"

for name in ("alter_connection", "deliver_webhooks"):
    globals()[name] = runpy.run_path(str(READY / f"{name}.py"))["dag"]
