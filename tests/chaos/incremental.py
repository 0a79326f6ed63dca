"""Incremental syncs under fire: a first sync, then syncs of changes, each struck until it is published.

The source changes between attempts, also while a sync is open. After each read of the table, its state must not be
ahead of its rows; at the end, the table has to be the source.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.sync_state import read_state
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.sample_api.dataset import Dataset, canonical
from tests.chaos.battle import CALM, CALM_ATTEMPTS, Battle
from tests.chaos.oracle import Findings, diary_of
from tests.chaos.plan import SIZES, AttemptPlan, Scenario, Strike, Victim, attempt_of
from tests.chaos.processes import Attempt
from tests.chaos.reader import Reader, digest
from tests.chaos.report import Report

STREAM, PATH = "shipments", "/shipments"
SYNCS = 3
"""Syncs of a scenario: the first one, and those of changes."""
_STRUCK = 4
"""Attempts at a sync before one that nothing strikes."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a record: since when it is, and its revision; None for a deletion."""

    since: datetime
    revision: int | None


@dataclass
class ChangingSource:
    """The shipments as the API has them, with all their versions.

    :ivar changes: all so far, for an API that has to start again
    """

    changes: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[int, list[Version]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dataset = Dataset(SIZES)
        self._note()

    def change(self, change: dict[str, Any]) -> None:
        """Apply a change of the plan."""
        self.changes.append(change)
        content = {name: value for name, value in change.items() if name != "kind"}
        self.dataset.change_shipments(**content)
        self._note()

    def _note(self) -> None:
        collection = self.dataset.family(PATH)[0]
        for number in {*collection.numbers, *collection.deleted}:
            record = collection.record(number)
            since = datetime.fromisoformat(record["updated_at"].replace("Z", "+00:00"))
            version = Version(since, None if record["is_deleted"] else record["revision"])
            known = self.versions.setdefault(number, [])
            if not known or known[-1] != version:
                known.append(version)

    def pages(self, page_size: int) -> int:
        """Return the pages that a sync of the last change has at the most."""
        return -(-SIZES.records // page_size)

    def disagreements(self, rows: pa.Table, state: datetime | None) -> Findings:
        """Compare a table that a reader saw with its state: what is newer than the state is all that it may lack.

        A record that changed again while a sync was open has left its window. The next sync reads it, because its last
        change is newer than the state; until then the table may have any version of it, or none.
        """
        findings, present = Findings(), dict(zip(rows["id"].to_pylist(), rows["revision"].to_pylist(), strict=True))
        findings.rows_doubled = rows.num_rows - len(present)
        for number, known in self.versions.items():
            last = known[-1]
            if state is not None and last.since <= state and present.get(number) != last.revision:
                findings.rows_lost += 1
        findings.rows_foreign = len(present.keys() - self.versions.keys())
        return findings

    def differences(self, rows: pa.Table) -> Findings:
        """Compare the table with the source as it is now."""
        collection, findings = self.dataset.family(PATH)[0], Findings()
        wanted = {number: canonical(collection.record(number)) for number in collection.numbers}
        seen: set[int] = set()
        for row in rows.to_pylist():
            findings.rows_doubled += row["id"] in seen
            seen.add(row["id"])
            findings.rows_foreign += wanted.get(row["id"]) != canonical(row)
        findings.rows_lost = len(wanted.keys() - seen)
        return findings


class StateReader(Reader):
    """A reader that remembers the state of each table that it saw."""

    def __init__(self, settings: LakeSettings, target: str) -> None:
        self.states: dict[bytes, datetime | None] = {}
        super().__init__(settings, target)

    def note(self, table: Any, rows: pa.Table) -> None:
        """Remember rows and state, where they are not those of an earlier read."""
        state = read_state(table)
        value = None if state is None else datetime.fromisoformat(next(iter(state.values.values())))
        key = digest(rows) + repr(value).encode()
        self.seen.setdefault(key, rows)
        self.states.setdefault(key, value)


class SyncBattle(Battle):
    """Fights the syncs of one scenario, in a table of its own."""

    def __init__(self, scenario: Scenario, lake: LakeSettings, folder: Path, report: Report) -> None:
        super().__init__(scenario, lake, folder, report)
        self._source: ChangingSource = self._sources[STREAM]
        self._sync = 0

    def _new_sources(self) -> dict[str, Any]:
        return {STREAM: ChangingSource()}

    @property
    def target(self) -> str:
        """Return the name of the table."""
        return f"raw_{self.scenario.number}.{STREAM}"

    def fight(self) -> None:
        """Run the scenario; whatever happens, nothing of it is left running."""
        self._api.start()
        reader = StateReader(self._lake, self.target)
        try:
            plans, done = iter(self.scenario.attempts), True
            for self._sync in range(SYNCS):
                self._config = self._document()
                if self._sync:
                    self._change(AttemptPlan((), (), change_of(self._chance()), False))
                done = done and self._published(itertools.islice(plans, _STRUCK))
            # One that opens after the last change.
            self._sync = SYNCS
            self._config = self._document()
            done = done and self._published(iter(()))
            self._settle(all_of_it=True)
            self._wait_for_survivors()
            self._judge_syncs(reader, done)
        finally:
            reader.close()
            for attempt in self._attempts:
                attempt.end()
            self._api.stop()

    def _chance(self) -> random.Random:
        return random.Random(f"{self.scenario.number}/{self._sync}")

    def _published(self, plans: Iterator[AttemptPlan]) -> bool:
        return any(map(self._attempt, plans)) or any(self._attempt(CALM) for _ in range(CALM_ATTEMPTS))

    @property
    def _has_spark(self) -> bool:
        return self.scenario.number % 4 == 0

    def _strike(self, strike: Strike, attempt: Attempt) -> bool:
        if not self._has_spark and strike.victim in (Victim.JVM, Victim.WORKER):
            # So small a sync is over before Spark is up.
            strike = replace(strike, victim=Victim.DRIVER)
        return super()._strike(strike, attempt)

    def _change(self, plan: AttemptPlan) -> None:
        if plan.change is None:
            super()._change(plan)
            return
        self._wait_for_survivors()
        known = self._source.versions
        ids = {name: [number for number in plan.change[name] if number in known] for name in ("edit", "remove")}
        # With its time, so that an API that starts again has the same.
        change = {**plan.change, **ids, "at": datetime.now(timezone.utc).isoformat()}
        super()._change(AttemptPlan((), plan.faults, change, False))

    def _document(self) -> Path:
        definition = yaml.safe_load(SHOP.read_text())
        definition["defaults"]["error_handler"] = {
            "max_retries": 3,
            "backoff": [{"type": "retry_after"}, {"type": "exponential", "initial": 0.2, "multiplier": 2, "max": 1}],
        }
        if not self.scenario.keyed:
            # Windows, which are read side by side.
            definition["streams"][STREAM]["incremental"] |= {"step": "P90D", "settle": "PT0S"}
        options = {**self.scenario.options, "mode": "merge", "max_deleted": 1.0}
        document = {
            "source": {
                "definition": definition,
                "config": {"base_url": self._api.base_url, "page_size": self.scenario.page_size},
            },
            "streams": [STREAM],
            "target": self.target,
            "sync": "incremental",
            "lake": {"name": self._lake.name, "properties": dict(self._lake.properties)},
            "options": {**options, "spark": "always" if self._has_spark else "when_needed"},
            "run": {"key": f"chaos/{self.scenario.number}/{self._sync}"} if self.scenario.named else {},
        }
        path = self._folder / f"sync-{self._sync}.json"
        path.write_text(json.dumps(document))
        return path

    def _judge_syncs(self, reader: StateReader, done: bool) -> None:
        report, pages = self.report, diary_of(self._diary)
        # The same page of another sync is another page.
        refetched = len(pages) - len({repr(sorted(page["query"].items())) for page in pages})
        if not self._judge_attempts([reader], pages, refetched, done):
            return
        rows = open_catalog(self._lake).load_table(self.target).scan().to_arrow()
        self._note_findings(self._source.differences(rows), "table")
        report.reads += reader.polls
        for key, seen in reader.seen.items():
            self._note_findings(self._source.disagreements(seen, reader.states[key]), f"state {reader.states[key]}")
        report.half_tables += len(reader.torn) + reader.vanished
        if reader.torn or reader.vanished:
            report.notes.append(f"{self.scenario.number} torn: {reader.torn}, vanished: {reader.vanished}")


def sync_scenarios(seed: int) -> Iterator[Scenario]:
    """Yield the scenarios of a seed, without end."""
    return (_scenario(random.Random(f"sync/{seed}/{number}"), number) for number in itertools.count())


def _scenario(chance: random.Random, number: int) -> Scenario:
    options = {
        "concurrency": chance.choice([2, 4]),
        "round_seconds": chance.choice([0.3, 1, 3]),
        "head_start": chance.random() < 0.5,
    }
    attempts = tuple(_attempt(chance, first=index == 0) for index in range(SYNCS * _STRUCK))
    keyed, named = chance.random() < 0.5, chance.random() < 0.8
    latency, page_size = chance.choice([0.01, 0.03]), chance.choice([2, 4])
    return Scenario(number, (STREAM,), keyed, named, latency, page_size, options, attempts)


def _attempt(chance: random.Random, *, first: bool) -> AttemptPlan:
    plan = attempt_of(chance, STREAM, first=True)
    change = None if first or chance.random() < 0.7 else change_of(chance)
    return AttemptPlan(plan.strikes, plan.faults, change, plan.supervised)


def change_of(chance: random.Random) -> dict[str, Any]:
    """Draw a change of shipments."""
    edited = chance.sample(range(1, SIZES.records + 1), chance.choice([20, 120, 240]))
    removed = chance.sample(range(1, SIZES.records + 1), chance.choice([0, 10, 30]))
    edit = [number for number in edited if number not in removed]
    return {"kind": "change_shipments", "edit": edit, "add": chance.choice([0, 5, 40]), "remove": removed}
