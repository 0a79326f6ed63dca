"""Somebody who reads the target all the while, through PyIceberg alone, and remembers every table he saw."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog

BETWEEN_READS = 0.15


class Reader:
    """Reads again and again until it is closed.

    :ivar polls: reads that ended
    :ivar torn: reads that failed half way: a file was missing, or could not be read
    :ivar vanished: the table was not there any more
    :ivar busy: reads that found the catalog locked
    :ivar seen: every distinct content
    """

    def __init__(self, settings: LakeSettings, target: str) -> None:
        self.target = target
        self.polls = 0
        self.torn: list[str] = []
        self.vanished = 0
        self.busy = 0
        self.seen: dict[bytes, pa.Table] = {}
        self._settings = settings
        self._there = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        catalog = open_catalog(self._settings)
        while not self._end.wait(BETWEEN_READS):
            self.poll(catalog)

    def poll(self, catalog: Any) -> None:
        """Read the table once, as a user would."""
        try:
            table = catalog.load_table(self.target)
        except NoSuchTableError:
            self.vanished += self._there
            return
        except Exception:
            # The catalog's own lock, held by a stopped process. Nothing was seen, neither whole nor half.
            self.busy += 1
            return
        try:
            if table.current_snapshot() is None:
                self.vanished += self._there
                return
            rows = table.scan().to_arrow()
        except Exception as error:
            self.torn.append(repr(error)[:300])
            return
        self._there = True
        self.polls += 1
        self.note(table, rows)

    def note(self, table: Any, rows: pa.Table) -> None:
        """Remember the content, if it is another one than before."""
        self.seen.setdefault(digest(rows), rows)


def digest(rows: pa.Table) -> bytes:
    """The same for the same rows, whatever their order."""
    return repr(sorted(pairs(rows))).encode()


def pairs(rows: pa.Table) -> Iterator[tuple[int, int, int]]:
    columns = (rows[name].to_pylist() for name in ("_rfr_generation", "id", "revision"))
    return zip(*columns, strict=True)
