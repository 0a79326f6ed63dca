"""What one run of one task is called, and by which process it is run."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.refresh.watchdog import process_started

if TYPE_CHECKING:
    from airflow.sdk import Context


def run_key(context: Context) -> str:
    """Names one run of one task: the same over its retries, another one after a clear."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{clear_number(context)}"


def clear_number(context: Context) -> int:
    """Tries of this task before its last clear; a run's ``clear_number`` counts the clears of other tasks, too."""
    ti = context["ti"]
    return max(0, int(getattr(ti, "max_tries", 0) or 0) - int(getattr(context.get("task"), "retries", 0) or 0))


def supervisor() -> dict[str, Any]:
    """This process, which the driver must not outlive."""
    return {"pid": os.getpid(), "started": process_started(os.getpid()) or 0, "host": socket.gethostname()}
