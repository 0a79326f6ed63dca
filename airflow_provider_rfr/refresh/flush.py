"""Self-describing ledger files: page rows and their cursors in one object, whole or absent.

The footer says which task attempt wrote the file and which file came before it, so the next attempt can use what no
commit names yet.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

import pyarrow as pa

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.row_table import rows_to_table
from airflow_provider_rfr.refresh.rows import PageRow

STATISTICS = ("generation", "epoch", "partition_ordinal", "chain", "page")


@dataclass(frozen=True, slots=True)
class FlushLabel:
    """Which task attempt wrote a file, and which file it wrote before.

    :ivar previous: name of the file before this one in its sequence, None for the first
    """

    generation: int
    epoch: int
    round: int
    task: int
    attempt: int
    sequence: int
    previous: str | None = None

    def file_name(self) -> str:
        """A name nobody else uses: a late writer can't replace a file that a commit names."""
        place = f"e{self.epoch}-r{self.round}-t{self.task}-a{self.attempt}-s{self.sequence}"
        return f"{place}-{uuid.uuid4().hex[:12]}.parquet"

    def to_footer(self) -> str:
        """As the file's footer carries it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_footer(cls, text: str) -> FlushLabel | None:
        """Read :meth:`to_footer`; None for what is not ours."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None


def generation_folder(table_location: str, generation: int) -> str:
    """Where a generation's files lie, committed or not."""
    return f"{table_location.rstrip('/')}/data/generation={generation}"


@dataclass(slots=True)
class FlushWriter:
    """Writes one task attempt's sequence of files.

    :ivar label: of the next file
    :ivar files: names written so far, an adopted predecessor's first
    """

    store: FileStore
    folder: str
    schema: pa.Schema
    label: FlushLabel
    files: list[str]

    def write(self, rows: list[PageRow]) -> None:
        """Write the rows as the next file of the sequence."""
        if not rows:
            return
        name = self.label.file_name()
        table = rows_to_table(rows, self.schema)
        self.store.write_parquet(f"{self.folder}/{name}", table, footer=self.label.to_footer(), statistics=STATISTICS)
        self.files.append(name)
        self.label = FlushLabel(**{**asdict(self.label), "sequence": self.label.sequence + 1, "previous": name})
