"""One scenario: attempts at one refresh, struck as planned, until the table is published; then the judgement."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.sample_api import SHOP, SampleApi
from tests.chaos.clock import Clock
from tests.chaos.oracle import Findings, Source, broken_chains, diary_of, refetched, served_pairs
from tests.chaos.plan import SIZES, AttemptPlan, Blow, Scenario, Strike, Victim
from tests.chaos.processes import Attempt, send
from tests.chaos.reader import Reader
from tests.chaos.report import HANGS_AFTER, SURVIVES_AFTER, Report

TICK = 0.02
CALM_ATTEMPTS = 4
REVISIONS = 3
CALM = AttemptPlan((), (), None, False)


class Battle:
    """Fights one scenario in a folder of its own, on a lake that outlives it.

    :ivar before: the tables that readers had before, by stream
    """

    def __init__(self, scenario: Scenario, lake: LakeSettings, folder: Path, report: Report) -> None:
        self.scenario, self.report = scenario, report
        self._lake, self._folder = lake, folder
        self._diary = folder / "diary.jsonl"
        self._sources = self._new_sources()
        self._faults: list[dict[str, Any]] = []
        self._later: list[tuple[float, str, Callable[[], None]]] = []
        self._attempts: list[Attempt] = []
        self.before: dict[str, pa.Table] = {}
        self._api = self._new_api(0)

    def _new_sources(self) -> dict[str, Any]:
        """Return the source of each stream."""
        return {stream: Source(stream, self.scenario.number % REVISIONS) for stream in self.scenario.streams}

    def fight(self) -> None:
        """Run the scenario; whatever happens, nothing of it is left running."""
        catalog = open_catalog(self._lake)
        for stream in self.scenario.streams:
            if catalog.table_exists(f"raw.{stream}"):
                self.before[stream] = catalog.load_table(f"raw.{stream}").scan().to_arrow()
        self._api.start()
        readers = {stream: Reader(self._lake, f"raw.{stream}") for stream in self.scenario.streams}
        try:
            self._config = self._document()
            done = any(self._attempt(plan) for plan in self.scenario.attempts)
            done = done or any(self._attempt(CALM) for _ in range(CALM_ATTEMPTS))
            self._settle(all_of_it=True)
            self._wait_for_survivors()
            self._judge(readers, done)
        finally:
            for reader in readers.values():
                reader.close()
            for attempt in self._attempts:
                attempt.end()
            self._api.stop()

    def _document(self) -> Path:
        definition = yaml.safe_load(SHOP.read_text())
        if not self.scenario.keyed:
            for stream in self.scenario.streams:
                definition["streams"][stream].pop("primary_key")
        definition["defaults"]["error_handler"] = {
            "max_retries": 3,
            "backoff": [{"type": "retry_after"}, {"type": "exponential", "initial": 0.2, "multiplier": 2, "max": 1}],
        }
        definition["streams"]["customer_orders"].pop("error_handler")
        definition["defaults"]["error_handler"]["expired_token_status"] = [410]
        config = {"base_url": self._api.base_url, "partitions": SIZES.partitions, "page_size": self.scenario.page_size}
        document = {
            "source": {"definition": definition, "config": config},
            "streams": list(self.scenario.streams),
            "target": "raw.{stream}",
            "lake": {"name": self._lake.name, "properties": dict(self._lake.properties)},
            "options": {**self.scenario.options, "spark": "always" if self.scenario.number % 4 < 2 else "when_needed"},
            "run": {"key": f"chaos/{self.scenario.number}/1"} if self.scenario.named else {},
        }
        path = self._folder / "refresh.json"
        path.write_text(json.dumps(document))
        return path

    def _new_api(self, port: int) -> SampleApi:
        """It begins in the source's present state: a request must never meet an older one."""
        latency = {"kind": "latency", "seconds": self.scenario.latency}
        faults = [latency, *self._faults]
        changes = [change for source in self._sources.values() for change in source.changes]
        return SampleApi(SIZES, port=port, faults=faults, changes=changes, diary=self._diary)

    # -- attempts ----------------------------------------------------------------------------------------------

    def _attempt(self, plan: AttemptPlan) -> bool:
        """Run one attempt with its strikes; True if it published."""
        self._settle(all_of_it=plan.change is not None)
        self._change(plan)
        self.report.two_drivers += any(before.find(Victim.DRIVER, 0) is not None for before in self._attempts)
        number = len(self._attempts)
        attempt = Attempt(self._config, self._folder / f"attempt-{number}.log", supervised=plan.supervised)
        self._attempts.append(attempt)
        self.report.attempts += 1
        pages = sum(source.pages(self.scenario.page_size) for source in self._sources.values())
        clock = Clock(attempt, self._diary, pages)
        pending = list(plan.strikes)
        while attempt.running():
            self._run_later()
            for strike in [one for one in pending if clock.due(one.moment)]:
                if self._strike(strike, attempt):
                    pending.remove(strike)
                    if strike.blow is Blow.OVERTAKE:
                        return False
            if attempt.age > HANGS_AFTER:
                self._hung(attempt)
            time.sleep(TICK)
        self.report.exit_codes[str(attempt.code)] += 1
        # A supervisor ends with its driver's signal as its code.
        if attempt.code not in (0, 1, 3, 9, -9):
            self.report.notes.append(f"{self.scenario.number}/{number} ended with {attempt.code}")
        return attempt.code == 0

    def _change(self, plan: AttemptPlan) -> None:
        """The source changes only while nobody reads it: all processes of earlier attempts are waited for."""
        self._faults = list(plan.faults)
        if plan.change is not None:
            self._wait_for_survivors()
            self._sources[self.scenario.streams[0]].change(plan.change)
            self._api.change(plan.change)
            self.report.changes += 1
        self._api.set_faults({"kind": "latency", "seconds": self.scenario.latency}, *self._faults)

    def _strike(self, strike: Strike, attempt: Attempt) -> bool:
        """Whether the victim was there."""
        if strike.victim is Victim.API:
            self._strike_api(strike)
            return True
        victim = Victim.DRIVER if strike.victim is Victim.SUPERVISOR and not attempt.supervised else strike.victim
        pid = attempt.find(victim, strike.pick)
        if pid is None:
            return False
        if strike.blow is Blow.KILL:
            if send(pid, signal.SIGKILL):
                self._count(victim)
            return True
        if send(pid, signal.SIGSTOP):
            self.report.stops += 1
            self._in(strike.seconds, "attempt", lambda: send(pid, signal.SIGCONT))
        return True

    def _strike_api(self, strike: Strike) -> None:
        self._settle()
        if strike.blow is Blow.KILL:
            port = self._api.port
            self._api.kill()
            self._count(Victim.API)
            self._in(min(strike.seconds, 2.0), "api", lambda: self._restart_api(port))
            return
        pid = self._api.pid
        send(pid, signal.SIGSTOP)
        self.report.stops += 1
        self._in(min(strike.seconds, 3.0), "api", lambda: send(pid, signal.SIGCONT))

    def _restart_api(self, port: int) -> None:
        self._api = self._new_api(port)
        self._api.start()

    def _count(self, victim: Victim) -> None:
        self.report.kills += 1
        self.report.kills_by_victim[victim.value] += 1

    def _hung(self, attempt: Attempt) -> None:
        self.report.hung += 1
        self.report.notes.append(f"{self.scenario.number} hung: {attempt.output()[-1500:]}")
        attempt.end()

    # -- what was put off ----------------------------------------------------------------------------------------

    def _in(self, seconds: float, what: str, action: Callable[[], Any]) -> None:
        self._later.append((time.monotonic() + seconds, what, action))

    def _run_later(self) -> None:
        now = time.monotonic()
        for item in [one for one in self._later if one[0] <= now]:
            self._later.remove(item)
            item[2]()

    def _settle(self, *, all_of_it: bool = False) -> None:
        """Let the API answer again at once, and every stopped process go on where ``all_of_it`` is asked for."""
        for item in [one for one in self._later if all_of_it or one[1] == "api"]:
            self._later.remove(item)
            item[2]()

    def _wait_for_survivors(self) -> None:
        until = time.monotonic() + SURVIVES_AFTER
        while time.monotonic() < until and any(attempt.members() for attempt in self._attempts):
            time.sleep(TICK)
        for attempt in self._attempts:
            if members := attempt.members():
                self.report.survivors += len(members)
                self.report.notes.append(f"{self.scenario.number} left {members}: {attempt.output()[-1500:]}")
                attempt.end()

    # -- judgement -----------------------------------------------------------------------------------------------

    def _judge(self, readers: dict[str, Reader], done: bool) -> None:
        pages = diary_of(self._diary)
        if not self._judge_attempts(readers.values(), pages, refetched(pages), done):
            return
        for stream, reader in readers.items():
            self._judge_table(stream, self._sources[stream].own(pages))
            self._judge_reader(stream, reader, served_pairs(self._sources[stream].own(pages)))

    def _judge_attempts(
        self, readers: Iterable[Reader], pages: Sequence[dict[str, Any]], refetched: int, done: bool
    ) -> bool:
        """Count pages and attempts, and let the readers look a last time; return whether there is a table to judge."""
        report = self.report
        report.scenarios += 1
        report.pages_given += len(pages)
        report.pages_refetched += refetched
        report.overlap_checks += sum(attempt.figures().get("overlap_checks", 0) for attempt in self._attempts)
        for reader in readers:
            reader.poll(open_catalog(self._lake))
            reader.close()
        report.published += done
        if not done:
            report.unfinished += 1
            report.notes.append(f"{self.scenario.number} not published: {self._attempts[-1].output()[-1500:]}")
        return done

    def _note_findings(self, findings: Findings, place: str) -> None:
        self.report.count(findings)
        if findings:
            self.report.notes.append(f"{self.scenario.number} {place}: {findings}")

    def _judge_table(self, stream: str, pages: list[dict[str, Any]]) -> None:
        catalog = open_catalog(self._lake)
        rows = catalog.load_table(f"raw.{stream}").scan().to_arrow()
        findings = self._sources[stream].judge(rows, served_pairs(pages))
        generation = rows["_rfr_generation"][0].as_py()
        ledger = catalog.load_table(f"raw.{stream}__rfr_ledger").scan(row_filter=f"generation = {generation}")
        findings.chains_broken += broken_chains(ledger.to_arrow(), rows, pages)
        self._note_findings(findings, stream)

    def _judge_reader(self, stream: str, reader: Reader, served: set[tuple[int, int]]) -> None:
        """Judge each distinct table that was seen: the one from before, or one whole generation of this refresh."""
        self.report.reads += reader.polls
        halves = len(reader.torn) + reader.vanished
        generations: Counter[int] = Counter()
        for position, rows in enumerate(reader.seen.values()):
            names = set(rows["_rfr_generation"].to_pylist())
            generations.update(names)
            # The table from before was judged by its own scenario, and is the first that the reader saw.
            old = stream in self.before and position == 0 and rows.equals(self.before[stream])
            if len(names) != 1 or not (old or not self._sources[stream].judge(rows, served)):
                halves += 1
        halves += sum(count - 1 for count in generations.values())
        self.report.half_tables += halves
        if halves:
            self.report.notes.append(f"{self.scenario.number} {stream}: half tables {dict(generations)} {reader.torn}")
