"""Files beside a table's metadata that belong to one snapshot, whose summary names them with their SHA-256.

They hold data that is too large for a summary, which every reader of the metadata loads. A file is written before the
commit that names it. If that commit is refused, the file is deleted; an expiry deletes the files that killed processes
left, after a day. A name is never used twice, so the file of an expired snapshot can be deleted while the same content
is written for another one.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import RfrError, SchemaEvolutionError
from airflow_provider_rfr.lake.commits import (
    STATE_FILE_KEY,
    CommitConflictError,
    TargetChangedError,
    metadata_folder,
    summary_of,
)
from airflow_provider_rfr.lake.files import OWN_FILE, FileStore, tidying

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

CHANGES_FILE_KEY: Final = "rfr.changes-file"
"""Summary property: location of the keys of the rows that a merge deleted."""
_PREFIXES: Final = {key: f"{key.replace('.', '-')}-" for key in (STATE_FILE_KEY, CHANGES_FILE_KEY)}
"""Prefixes of the files' names, by the summary property that names a file."""
_REFUSALS: Final = (CommitConflictError, TargetChangedError, SchemaEvolutionError)
"""Errors after which it is certain that no snapshot names the files."""
_ABANDONED_MS: Final = 86_400_000


class SideFileError(RfrError):
    """A file that a snapshot names is missing, or has another content."""


@dataclass(slots=True)
class SideFiles:
    """The side files of one commit that is about to be tried."""

    _table: Callable[[], Table]
    _written: list[str] = field(default_factory=list)

    def write(self, key: str, content: Any) -> dict[str, str]:
        """Write a file; return the summary properties that name it.

        :param key: the property for its location
        :param content: bytes or a buffer
        """
        table, name = self._table(), f"{_PREFIXES[key]}{int(time.time() * 1000)}-{uuid.uuid4().hex}{OWN_FILE}"
        location = f"{metadata_folder(table.metadata)}/{name}"
        self._written.append(location)
        FileStore.of(table.io).write(location, content)
        return {key: location, f"{key}-sha256": hashlib.sha256(content).hexdigest()}

    def discard(self) -> None:
        """Delete the files that were written; a failure is a warning."""
        if self._written:
            table = self._table()
            with tidying(metadata_folder(table.metadata)):
                FileStore.of(table.io).delete(self._written)


@contextmanager
def side_files(table: Callable[[], Table]) -> Iterator[SideFiles]:
    """Yield a writer of side files for the commit in the block; if the commit is refused, delete the files.

    :param table: returns the table, which may be about to be created; called only if there is a file
    """
    files = SideFiles(table)
    try:
        yield files
    except _REFUSALS:
        files.discard()
        raise


def read_side_file(store: FileStore, summary: Mapping[str, str], key: str) -> bytes:
    """Return the content of the file whose location is the summary's property ``key``.

    :raises SideFileError: the file is missing or damaged
    """
    location = summary[key]
    try:
        content = store.read(location)
    except FileNotFoundError:
        raise SideFileError(f"{location}, which a snapshot names, is missing") from None
    if hashlib.sha256(content).hexdigest() != summary.get(f"{key}-sha256"):
        raise SideFileError(f"{location} has another content than its snapshot says")
    return content


def named_side_files(snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the locations of the files that these snapshots name."""
    summaries = map(summary_of, snapshots)
    return {summary[key] for summary in summaries for key in _PREFIXES if key in summary}


def is_abandoned(location: str, named: Iterable[str]) -> bool:
    """Tell whether a file in the metadata folder is a side file, older than a day, whose commit was never made.

    :param named: locations of the side files that snapshots name
    """
    name = location.rpartition("/")[2]
    prefix = next((prefix for prefix in _PREFIXES.values() if name.startswith(prefix)), None)
    written = "" if prefix is None else name.removeprefix(prefix).partition("-")[0]
    if not written.isdecimal() or int(time.time() * 1000) - int(written) <= _ABANDONED_MS:
        return False
    # Compared by name: a catalog may write the location of the same folder in another form.
    return name not in {other.rpartition("/")[2] for other in named}
