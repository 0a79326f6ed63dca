"""Exports of a table that incremental syncs merge into, with SIGKILLs of syncs and of exports: to files and over HTTP,
each new version of a row and each deletion arrives once, and nothing that was only moved."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, update

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.expiry import expire_table
from airflow_provider_rfr.lake.side_files import CHANGES_FILE_KEY
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.sinks import SinkSpec
from airflow_provider_rfr.sinks.run import register_sink
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.tables import LEASES
from tests import forked
from tests.integration import sink_program
from tests.integration.conftest import CRASHING_APP, Lake, Runner
from tests.integration.test_incremental import COLUMNS, TABLE, config_of, rows_of, truth_of
from tests.unit.sinks.exporting import Sink
from tests.webhook_receiver import Receiver

RECORDS = 400
PLACES = ("before the window", "after the window", "before the batch", "after the batch", "before the cursor")
Change = tuple[Any, ...]


@dataclass
class Exports:
    """Three sinks of the table, and the changes that each of them has to send."""

    folder: Path
    lake: Lake
    store: ControlStore
    server: Receiver
    chance: random.Random
    versions: Counter[Change] = field(default_factory=Counter)
    deletions: Counter[Change] = field(default_factory=Counter)
    kills: int = 0

    def __post_init__(self) -> None:
        diff = {"emit": "diff", "keys": ["id"]}
        specs = {
            "rows": SinkSpec(TABLE, "files", {"path": f"{self.folder}/rows", "batch_size": 60}, COLUMNS),
            "diff": SinkSpec(TABLE, "files", {"path": f"{self.folder}/diff", "batch_size": 50, **diff}, COLUMNS),
            "http": SinkSpec(TABLE, "http", {"connection": "c", "path": "in", "batch_size": 40, **diff}, COLUMNS),
        }
        self.sinks = [Sink(uuid4(), name, spec) for name, spec in specs.items()]
        for sink in self.sinks:
            self.store.run(partial(_register, sink=sink))

    def run(self, sink: Sink, **kill: Any) -> None:
        task = {"folder": str(self.folder), "store": f"sqlite:///{self.folder}/control.db", "sink": sink, **kill}
        url = f"http://127.0.0.1:{self.server.port}" if sink.spec.to == "http" else None
        code = forked.exit_code(forked.start(sink_program.main, {**task, "url": url, "lake": self.lake.settings}))
        assert code in ((0, -9) if kill else (0,))
        if code:
            self.kills += 1
            # What time does: the killed one can't give its lease back.
            self.store.run(lambda connection: connection.execute(update(LEASES).values(until=1)))

    def run_and_kill(self) -> None:
        """Let every sink die at some place; each may come to it or not."""
        for sink in self.sinks:
            self.run(sink, kill=self.chance.choice(PLACES), number=self.chance.randint(0, 3))

    def note(self, before: dict[int, Change], after: dict[int, Change]) -> None:
        """Note what has to be sent between two states of the table."""
        self.versions.update((key, *row) for key, row in after.items() if before.get(key) != row)
        self.deletions.update((key,) for key in before.keys() - after.keys())

    def check(self) -> None:
        """Run all sinks to their ends, and compare what arrived with what was to be sent."""
        for sink in self.sinks:
            self.run(sink)
        rows = [row for sink in ("rows", "diff") for row in self._of_files(sink)]
        versions = Counter(_version(row) for row in rows if row.get("_op") != "delete")
        assert versions == Counter({version: 2 * count for version, count in self.versions.items()})
        bodies = {request.headers["idempotency-key"]: request.json for request in self.server.received}
        arrived = [row for _, body in sorted(bodies.items()) for row in body["rows"]]
        assert Counter(_version(row) for row in arrived if row["_op"] == "upsert") == self.versions
        for changes in (self._of_files("diff"), arrived):
            assert Counter((row["id"],) for row in changes if row["_op"] == "delete") == self.deletions
            state: dict[int, Change] = {}
            for row in changes:
                state.pop(row["id"], None)
                if row["_op"] == "upsert":
                    key, *values = _version(row)
                    state[key] = tuple(values)
            assert state == rows_of(self.lake), "a receiver has other rows than the table"

    def _of_files(self, name: str) -> list[dict[str, Any]]:
        files = sorted((self.folder / name).glob("[!.]*"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _register(connection: Connection, sink: Sink) -> None:
    register_sink(connection, sink.id, sink.name, sink.spec, UUID(int=1), COLUMNS, {}, 1)


def _version(row: dict[str, Any]) -> Change:
    return row["id"], row["status"], row["updated_at"].replace("Z", "+00:00")


@pytest.mark.gate
def test_each_version_and_each_deletion_is_sent_once_whatever_is_killed(
    lake: Lake, runner: Runner, server: Receiver, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    store = open_store(f"sqlite:///{tmp_path}/control.db")
    exports = Exports(tmp_path, lake, store, server, random.Random(seed))
    with SampleApi(Sizes(records=RECORDS), latency_ms=1) as api:
        config = config_of(runner, api, spark="when_needed")
        runner.run(config)
        with lake.table(TABLE).transaction() as transaction:
            # So that an expiry after each sync would delete what sinks have not sent, if they did not hold it.
            kept = {"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "1"}
            transaction.set_properties(kept)
        exports.note({}, rows_of(lake))
        exports.run_and_kill()
        for place in ("after the side file", "before the target commit", "after the target commit", None):
            before, present = rows_of(lake), sorted(api.records("/shipments"))
            chosen = exports.chance.sample(present, 60)
            api.change_shipments(edit=chosen[:40], add=exports.chance.randint(0, 20), remove=chosen[40:])
            if place is not None:
                runner.run(config, app=CRASHING_APP, environment={"RFR_TEST_KILL": place}, expect=-9)
                exports.run_and_kill()
            runner.run(config)
            assert rows_of(lake) == truth_of(api)
            exports.note(before, rows_of(lake))
            if exports.chance.random() < 0.7:
                exports.run_and_kill()
        exports.check()
        assert exports.kills > 3
        api.change_shipments(edit=present[:1])
        runner.run(config)
    store.close()
    # Everything is sent, so an expiry has deleted all but the file of the snapshot at which the cursors are.
    files = {path.name: path for path in tmp_path.rglob("rfr-changes-file-*")}
    summaries = [summary_of(snapshot) for snapshot in lake.table(TABLE).metadata.snapshots]
    named = {summary[CHANGES_FILE_KEY].rpartition("/")[2] for summary in summaries if CHANGES_FILE_KEY in summary}
    assert len(named) == 1
    # Two syncs were killed between their file and their commit. A day later, an expiry deletes what they left.
    left = [files[name] for name in files.keys() - named]
    assert len(left) == 2
    for path in left:
        time_ms = path.name.removeprefix("rfr-changes-file-").partition("-")[0]
        path.rename(path.with_name(path.name.replace(time_ms, str(int(time_ms) - 90_000_000))))
    expire_table(open_catalog(lake.settings), TABLE)
    assert {path.name for path in tmp_path.rglob("rfr-changes-file-*")} == named
