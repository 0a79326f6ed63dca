"""Where a task's DAG is declared: relative paths in its arguments start there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class InDag(Protocol):
    """An operator or a sensor, which may be in no DAG yet."""

    _dag: Any


def dag_folder(task: InDag) -> Path | None:
    """The folder of the DAG's file; None where there is none."""
    fileloc = task._dag.fileloc if task._dag is not None else None
    return Path(fileloc).parent if fileloc else None
