"""One incremental sync in a process that dies at its n-th write; for tests of :mod:`tests.forked`."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.refresh.config import parse_config
from tests.kill_points import die, intercept
from tests.unit.refresh import changing_source
from tests.unit.refresh.in_driver import refresh_of


@dataclass(frozen=True)
class SyncTask:
    """A sync to run.

    :ivar dies_at: number of the write at which the process dies, from 1; 0 for none
    :ivar after: whether it dies after that write, and not before it
    """

    document: dict[str, Any]
    records: list[dict[str, Any]]
    figures: Path
    dies_at: int = 0
    after: bool = False


def run_sync(task: SyncTask) -> None:
    """Run the sync; write its figures to a file."""
    if task.dies_at:
        _install(task.dies_at, task.after)
    changing_source.RECORDS[:] = task.records
    config = parse_config(task.document)
    catalog = open_catalog(LakeSettings(config.lake.name, config.lake.plain_properties()))
    try:
        figures = refresh_of(config, catalog).run()
    except Exception:
        task.figures.write_text(traceback.format_exc())
        raise
    task.figures.write_text(json.dumps({"rows": figures.rows, "changes": figures.changes}))


def _install(dies_at: int, after: bool) -> None:
    """Count objects that are written and commits of tables."""
    from pyiceberg.table import Table

    from airflow_provider_rfr.lake.files import FileStore

    seen = [0]

    def count(*_: Any, **__: Any) -> None:
        seen[0] += 1
        if seen[0] == dies_at:
            die()

    for owner, name in ((FileStore, "write"), (Table, "_do_commit")):
        intercept(owner, name, **{"after" if after else "before": count})
