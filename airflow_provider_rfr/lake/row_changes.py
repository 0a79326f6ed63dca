"""The rows that a merge changed, as its snapshot records them, for readers of increments.

A merge rewrites whole data files, so most of their rows are only moved. New versions of rows are in files of their own;
the names of files with moved rows have a common prefix, which the summary holds. The keys of deleted rows are in a side
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_rfr.lake.side_files import CHANGES_FILE_KEY, SideFiles, read_side_file

if TYPE_CHECKING:
    from airflow_provider_rfr.lake.files import FileStore

CHANGES_KEY: Final = "rfr.changes"
"""Summary property: JSON of :class:`RowChanges`."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The changed rows of one snapshot.

    :ivar moved: prefix of the names of the added files that hold only moved rows
    :ivar keys: field ids of the columns by which rows were merged
    :ivar rows: number of new versions of rows
    :ivar deleted: number of deleted rows, whose keys are in the snapshot's side file
    """

    moved: str
    keys: tuple[int, ...]
    rows: int
    deleted: int

    def properties(self, deleted: pa.Table, side: SideFiles) -> dict[str, str]:
        """Return the summary properties that record the changes; keys of deleted rows are written to a side file first.

        :param deleted: keys of the deleted rows, with a column for each of ``keys``
        """
        properties = {CHANGES_KEY: json.dumps(asdict(self), separators=(",", ":"))}
        if not deleted.num_rows:
            return properties
        buffer = pa.BufferOutputStream()
        pq.write_table(deleted, buffer, compression="zstd")
        return properties | side.write(CHANGES_FILE_KEY, buffer.getvalue())

    def has_moved(self, location: str) -> bool:
        """Tell whether the rows of an added file were in the table before."""
        return location.rpartition("/")[2].startswith(self.moved)


def read_changes(summary: Mapping[str, str]) -> RowChanges | None:
    """Return the changed rows of the snapshot with this summary; None if it does not record them."""
    if CHANGES_KEY not in summary:
        return None
    content = json.loads(summary[CHANGES_KEY])
    return RowChanges(content["moved"], tuple(content["keys"]), content["rows"], content["deleted"])


def read_deleted(summary: Mapping[str, str], store: FileStore) -> pa.Table:
    """Return the keys of deleted rows, with a column for each of :attr:`RowChanges.keys`.

    :raises SideFileError: their file is missing or damaged
    """
    return pq.read_table(pa.BufferReader(read_side_file(store, summary, CHANGES_FILE_KEY)))
