"""Random histories of a table and an API, compared with a dictionary: changes, deletions, late and repeated records,
syncs and windows that die at any write, full refreshes, rollbacks, and what others do to the table."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.commits import ancestors
from airflow_provider_rfr.lake.sync_state import read_state
from tests import forked
from tests.profile import FULL
from tests.unit.refresh import changing_source
from tests.unit.refresh.changing_source import moment
from tests.unit.refresh.sync_program import SyncTask, run_sync

pytestmark = pytest.mark.test
TABLE = "raw.orders"
SEQUENCES = 300 if FULL else 4
STEPS = 14
Row = dict[str, Any]


@dataclass
class Model:
    """What the table has to hold, by the rules of the docs.

    :ivar rows: of the table
    :ivar bound: the state of the sync, in seconds; None before the first
    :ivar is_synced: the table has a state, if only an empty one
    """

    rows: list[Row] = field(default_factory=list)
    bound: float | None = None
    is_synced: bool = False

    def sync(self, given: list[Row]) -> None:
        """Take over what a sync reads; the first one replaces the rows."""
        if not self.is_synced:
            self.rows, self.is_synced = [], True
        before = list(self.rows)
        batch = [record for record in given if self.bound is None or record["at"] >= self.bound]
        self.merge(batch)
        if self.bound is not None and sorted(before, key=str) == sorted(self.rows, key=str):
            # As after a deletion of what the table lacks: no commit, and so no state.
            return
        times = [record["at"] for record in batch]
        self.bound = max([*times, *([] if self.bound is None else [self.bound])], default=None)

    def window(self, given: list[Row], start: float, end: float) -> None:
        """Take over the records of a window; the state stays."""
        self.merge([record for record in given if start <= record["at"] < end])

    def merge(self, batch: list[Row]) -> None:
        """Replace rows by records that are not older."""
        newest: dict[int, tuple[float, int, Row]] = {}
        for place, record in enumerate(batch):
            version = (record["at"], place, record)
            newest[record["id"]] = max(newest.get(record["id"], version), version, key=lambda item: item[:2])
        for number, (at, _, record) in newest.items():
            present = [row for row in self.rows if row["id"] == number]
            if any(row["at"] > at for row in present):
                continue
            self.rows = [row for row in self.rows if row["id"] != number]
            if not record.get("deleted"):
                self.rows.append(_row(record))

    def full(self, given: list[Row]) -> None:
        """Take over what a full refresh reads."""
        self.bound, self.is_synced = None, False
        self.sync(given)


def _row(record: Row) -> Row:
    return {key: value for key, value in record.items() if key != "deleted"}


class History:
    """A table, its API and the model, through random steps."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.catalog = open_catalog(LakeSettings("rfr", self.properties))
        self.model = Model()
        self.given: list[Row] = [{"id": number, "at": float(number), "value": "first"} for number in range(6)]
        self.now, self.log = 10.0, [f"seed {seed}"]
        self.snapshots: dict[int, Model] = {}

    def step(self) -> None:
        """Do one thing."""
        names = ["change"] * 4 + ["sync"] * 4 + ["window"] * 2
        names += ["killed", "killed", "full", "rollback", "append", "delete", "repeat"]
        name = self.random.choice(names)
        self.log.append(name)
        getattr(self, name)()
        self.check()

    def change(self) -> None:
        """Change, add or delete records; some come late: with a time before that of the newest."""
        for _ in range(self.random.randint(1, 4)):
            number = self.random.randint(0, 12)
            self.now += self.random.choice([0.0, 0.5, 3.0])
            at = self.now if self.random.random() < 0.8 else max(0.0, self.now - self.random.uniform(0, 20))
            record: Row = {"id": number, "at": round(at, 3), "value": f"{self.random.randint(0, 5)}"}
            if self.random.random() < 0.2:
                record["deleted"] = True
            if self.random.random() < 0.1:
                record["more"] = self.random.randint(0, 9)
            self.given = [item for item in self.given if item["id"] != number] + [record]
        self.random.shuffle(self.given)

    def repeat(self) -> None:
        """Give an older version of a record, too, as pages do that shift while they are read."""
        record = dict(self.random.choice(self.given), value="older")
        record.pop("deleted", None)
        record["at"] = round(max(0.0, record["at"] - 0.25), 3)
        self.given.insert(self.random.randint(0, len(self.given)), record)

    def sync(self) -> None:
        self.run({"sync": "incremental", "mode": "merge"})
        self.model.sync(self.given)
        self.note()

    def window(self, dies_at: int = 0, after: bool = False) -> None:
        """Read a window; if it is to die at one of its writes, run it again after that."""
        start, end = sorted(round(self.random.uniform(0, self.now + 1), 3) for _ in range(2))
        end = max(end, start + 0.001)
        kind = {"sync": "incremental", "mode": "merge", "window": f"{moment(start)}/{moment(end)}"}
        self.log.append(kind["window"])
        if dies_at:
            self.run(kind, dies_at, after)
        self.run(kind)
        self.model.window(self.given, start, end)
        if self.catalog.table_exists(TABLE):
            self.note()

    def full(self) -> None:
        self.run({"sync": "full", "mode": "replace"})
        self.model.full(self.given)
        self.note()

    def killed(self) -> None:
        """Let a sync die at one of its writes, and run it again."""
        at, after = self.random.randint(1, 12), self.random.random() < 0.5
        self.log.append(f"dies at write {at}, after: {after}")
        if self.random.random() < 0.3:
            self.window(at, after)
            return
        self.run({"sync": "incremental", "mode": "merge"}, at, after)
        self.sync()

    def rollback(self) -> None:
        """Take the table back to what some commit of it left."""
        if len(self.snapshots) > 1:
            chosen = self.random.choice(list(self.snapshots))
            table = self.table
            line = {snapshot.snapshot_id for snapshot in _ancestors(table)}
            if chosen in line:
                table.manage_snapshots().rollback_to_snapshot(chosen).commit()
                self.model = copy.deepcopy(self.snapshots[chosen])

    def append(self) -> None:
        """Let another writer append a row, whose key the table may have."""
        if not self.snapshots:
            return
        row: Row = {
            "id": self.random.randint(0, 20),
            "at": round(self.random.uniform(0, self.now), 3),
            "value": "other",
        }
        table = self.table
        values = [{"id": row["id"], "updated_at": moment(row["at"]), "value": "other", "shop": "a"}]
        table.append(pa.Table.from_pylist(values, schema=table.schema().as_arrow()))
        self.model.rows.append(row)
        self.note()

    def delete(self) -> None:
        """Let another writer delete a row."""
        if self.model.rows:
            number = self.random.choice(self.model.rows)["id"]
            self.table.delete(f"id = {number}")
            self.model.rows = [row for row in self.model.rows if row["id"] != number]
            self.note()

    def run(self, kind: dict[str, str], dies_at: int = 0, after: bool = False) -> None:
        document = {
            "source": {"class": f"{changing_source.__name__}:Orders", "config": {}},
            "streams": ["orders"],
            "target": TABLE,
            "lake": {"name": "rfr", "properties": self.properties},
            "sync": kind["sync"],
            "window": kind.get("window"),
            "options": {"mode": kind["mode"], "max_deleted": 1, "max_shrink": None, "allow_empty": True},
        }
        records = [self._given(record) for record in self.given]
        task = SyncTask(document, records, self.folder / "figures.json", dies_at, after)
        code = forked.exit_code(forked.start(run_sync, task))
        assert code in ((0, -9) if dies_at else (0,)), (self.log, task.figures.read_text())

    @staticmethod
    def _given(record: Row) -> Row:
        more = {key: value for key, value in record.items() if key != "at"}
        return {**more, "updated_at": moment(record["at"]), "shop": "a"}

    def note(self) -> None:
        self.snapshots[self.table.metadata.current_snapshot_id] = copy.deepcopy(self.model)

    @property
    def table(self) -> Any:
        return self.catalog.load_table(TABLE)

    def check(self) -> None:
        """Compare rows and state with the model."""
        if not self.snapshots:
            return
        found = self.table.scan().to_arrow().to_pylist()
        rows = [(row["id"], row["value"], row["updated_at"], row.get("more")) for row in found]
        wanted = [(row["id"], row["value"], moment(row["at"]), row.get("more")) for row in self.model.rows]
        assert sorted(rows, key=str) == sorted(wanted, key=str), self.log
        state = read_state(self.table)
        bound = None if state is None else state.values.get(json.dumps({"shop": "a"}, separators=(",", ":")))
        if self.model.bound is None:
            assert bound is None, self.log
        else:
            assert bound == f"{_moment(self.model.bound).replace(tzinfo=None).isoformat(timespec='microseconds')}Z", (
                self.log
            )


def _moment(seconds: float) -> datetime:
    return datetime.fromisoformat(moment(seconds).replace("Z", "+00:00"))


def _ancestors(table: Any) -> Iterator[Any]:
    return ancestors(table.metadata, table.metadata.current_snapshot_id)


@pytest.mark.parametrize("number", range(SEQUENCES))
def test_a_random_history_ends_as_the_model_says(number: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    history = History(tmp_path, seed)
    for _ in range(STEPS):
        history.step()
