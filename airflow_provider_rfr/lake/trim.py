"""Forgetting old snapshots of a table that is ours alone, with the metadata files that only they named.

PyIceberg expires snapshots in the metadata but deletes no file. Only metadata is deleted here, never a data file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException

from airflow_provider_rfr.lake.files import FileStore

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

KEEP_SNAPSHOTS = 3


def trim_snapshots(table: Table, store: FileStore, keep: int = KEEP_SNAPSHOTS) -> Table:
    """Keep the newest snapshots; returns the table as it is afterwards. Losing a race is no harm: next time."""
    line = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    old = line[:-keep]
    if not old:
        return table
    doomed = _metadata_files(table, old) - _metadata_files(table, line[-keep:])
    try:
        with table.maintenance.expire_snapshots() as expire:
            expire.by_ids([snapshot.snapshot_id for snapshot in old])
    except CommitFailedException:
        return table
    store.delete(doomed)
    return table


def _metadata_files(table: Table, snapshots: list[Snapshot]) -> set[str]:
    files: set[str] = set()
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        files.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
    return files
