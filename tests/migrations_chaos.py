"""``python -m tests.migrations_chaos --kills 100 --seed 1``: random releases by the Spark application, which is killed
by SIGKILL, while somebody reads every view.

Each release is deployed again until a deploy ends. Then the tables have the rows that they must have, the sinks' files
each row once, and at the end nothing differs from a fresh creation. Ends with a line of figures, as JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.builtins.model import BROKEN
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.rows import append_rows
from airflow_provider_rfr.lake.tables import list_views
from airflow_provider_rfr.sinks.run import run_sink
from airflow_provider_rfr.store.engine import open_store
from airflow_provider_rfr.store.leases import force_unlock
from tests.chaos.plan import Victim
from tests.chaos.processes import MIGRATION, ROOT, Attempt, send
from tests.integration.builtin_sql_deploy import SPARK, Deploy
from tests.integration.conftest import Lake
from tests.releases import Author, Release, Table, registered, write

PROJECT = "ops"
HANGS_AFTER = 600.0
CALM_ATTEMPTS = 3
OVERTAKEN = "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS"
STEPS = "SELECT count(*) + count(ended_at) FROM rfr_builtin_steps"


@dataclass
class MigrationReport:
    """What a campaign came to.

    :ivar differences: from a fresh creation, or from the rows that have to be there
    :ivar unreadable: reads of a view that failed though the release was one that no reader may feel
    :ivar unfinished: releases that no undisturbed deploy could end
    """

    releases: int = 0
    safe: int = 0
    attempts: int = 0
    kills: int = 0
    kills_by_victim: Counter[str] = field(default_factory=Counter)
    between_steps: int = 0
    differences: int = 0
    rows_lost: int = 0
    rows_doubled: int = 0
    unreadable: int = 0
    unfinished: int = 0
    hung: int = 0
    reads: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        bad = (self.differences, self.rows_lost, self.rows_doubled, self.unreadable, self.unfinished, self.hung)
        return not any(bad)


class ViewReader:
    """A process with a Spark of its own, which reads every view again and again, and does in between as it is told."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.migrations_chaos", "--read", str(folder)]
        with (folder / "reader.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def ask(self, **what: Any) -> Any:
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the reader has ended; its log says why")
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def read(folder: Path) -> None:
    """The reader's own process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    deploy, reads, bad = Deploy(folder), 0, list[str]()
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            question = json.loads(line)
            for query in question.get("run", ()):
                deploy.sql(query)
            answer: dict[str, Any] = {"reads": reads, "bad": bad}
            if "contents" in question:
                answer["contents"] = {view: _contents(deploy, view) for view in _whole_views(deploy)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            reads, bad = 0, []
        for name in _whole_views(deploy):
            bad += filter(None, [_problem(deploy, name)])
            reads += 1
        time.sleep(0.2)


def _problem(deploy: Deploy, name: str) -> str | None:
    """What a reader of the view is told instead of its rows."""
    for _ in range(2):
        try:
            deploy.sql(f"SELECT * FROM {name}")
            return None
        except Exception as error:
            problem = f"{name}: {str(error)[:300]}"
            # Spark refuses a query of its own that a commit overtook; the view is as readable as ever.
            if OVERTAKEN not in str(error):
                break
    return problem


def _whole_views(deploy: Deploy) -> list[str]:
    for _ in range(5):
        with suppress(Exception):
            return [view.name for view in list_views(deploy.catalog) if BROKEN not in view.properties]
        time.sleep(0.5)
    return []


def _contents(deploy: Deploy, name: str) -> list[dict[str, str]]:
    rows = deploy.session.sql(f"SELECT * FROM {name}").collect()
    return sorted(({key: str(value) for key, value in row.asDict().items()} for row in rows), key=str)


class MigratedLake:
    """A lake, its control store, and the application."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.settings = Lake(folder).settings
        self.catalog = open_catalog(self.settings)
        self.url = f"sqlite:///{folder}/control.db"
        self.store = open_store(self.url)
        self.number = 0

    def start(self, **what: Any) -> Attempt:
        self.number += 1
        config = self.folder / f"migration-{self.number}.json"
        lake = {"name": self.settings.name, "properties": dict(self.settings.properties)}
        document = {"lake": lake, "store": self.url, "project": PROJECT, "spark": SPARK, **what}
        config.write_text(json.dumps(document))
        return Attempt(config, self.folder / f"attempt-{self.number}.log", supervised=False, app=MIGRATION)

    def run(self, **what: Any) -> Attempt:
        """Undisturbed."""
        attempt = self.start(**what)
        while attempt.running() and attempt.age < HANGS_AFTER:
            time.sleep(0.1)
        attempt.end()
        return attempt

    def steps(self) -> int:
        """How often a step began or ended, as the journal says."""
        store = f"file:{self.folder}/control.db?mode=ro"
        with suppress(sqlite3.Error), closing(sqlite3.connect(store, uri=True)) as db:
            return int(db.execute(STEPS).fetchone()[0])
        return 0

    def unlock(self) -> None:
        """Nobody waits for the lease of a deploy that is known to be dead."""
        with closing(sqlite3.connect(f"{self.folder}/control.db")) as db:
            query = "SELECT token FROM rfr_leases WHERE kind = 'deploy' AND name = ? AND holder IS NOT NULL"
            row = db.execute(query, [PROJECT]).fetchone()
        if row is not None:
            force_unlock(self.store, PROJECT, row[0])

    def rows(self, name: str) -> list[str]:
        return sorted(map(str, self.catalog.load_table(name).scan().to_arrow().to_pylist()))

    def columns(self, name: str) -> list[tuple[str, str, str | None]]:
        fields = self.catalog.load_table(name).schema().fields
        return [(field.name, str(field.field_type), field.doc) for field in fields]

    def broken(self) -> list[str]:
        """Users' views that say that they broke."""
        return [view.name for view in list_views(self.catalog) if BROKEN in view.properties]


class MigrationCampaign:
    """Releases of one platform."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.report = MigrationReport()
        self.dice = random.Random(seed)
        self.author, self.ids = Author(self.dice), itertools.count(1)
        self.folder = folder
        self.lake = MigratedLake(folder / "lake")
        self.release = Release({})
        self.tables: dict[int, Table] = {}
        self.users: dict[str, str] = {}
        self.documents: list[dict[str, Any]] = []
        self.lasts = 30.0

    def run(self, kills: int) -> MigrationReport:
        self._release(self.author.first(), 0)
        reader = ViewReader(self.lake.folder)
        try:
            reader.ask()
            while self.report.kills < kills and not self.report.unfinished:
                self._live_on(reader)
                reader.ask()
                new = self.author.next(self.release)
                self._release(new, self.dice.randint(1, 3))
                self._judge(new, reader.ask())
            if not self.report.unfinished:
                self._compare(reader)
        finally:
            reader.close()
        return self.report

    def _release(self, new: Release, kills: int) -> None:
        before, report, began = self.release, self.report, time.monotonic()
        report.releases += 1
        report.safe += new.safe
        self.documents = new.documents([before], str(self.folder / "out"), removed=new.losses)
        path = self.folder / f"release-{report.releases}.yaml"
        write(self.documents, path)
        policies = {"break_views": sorted(self.users)}
        what = {"version": f"1.{report.releases}", "objects": [str(path)], "policies": policies}
        ended = any(self._attempt(True, what) for _ in range(kills))
        if not ended and not any(self._attempt(False, what) for _ in range(CALM_ATTEMPTS)):
            report.unfinished += 1
            return
        took, kind = round(time.monotonic() - began, 1), "safe: " * new.safe
        print(f"{report.releases} {kind}{', '.join(new.did)}: {took} s, {report.kills} kills in all", flush=True)
        self.release = registered(new, before, self.documents)
        known = self.tables
        self.tables = {
            item.number: known[item.number].becomes(item) if item.number in known else Table(item.cols)
            for item in new.of("table")
        }

    def _attempt(self, struck: bool, what: dict[str, Any]) -> bool:
        """Whether this deploy ended well."""
        attempt, before = self.lake.start(**what), self.lake.steps()
        self.report.attempts += 1
        victim = self.dice.choice((Victim.DRIVER, Victim.DRIVER, Victim.JVM))
        at, steps, left = self.dice.uniform(0, self.lasts), self.dice.randint(1, 12), struck
        by_journal = self.dice.random() < 0.6
        while attempt.running():
            due = self.lake.steps() - before >= steps if by_journal else attempt.age >= at
            pid = attempt.find(victim, 0) if left and due else None
            if pid is not None and send(pid, signal.SIGKILL):
                left = False
                self.report.kills += 1
                self.report.kills_by_victim[victim.value] += 1
                self.report.between_steps += by_journal
            if attempt.age > HANGS_AFTER:
                self.report.hung += 1
                break
            time.sleep(0.005)
        self.lasts = attempt.age if attempt.code == 0 else self.lasts
        attempt.end()
        if attempt.code != 0:
            if left or not struck:
                self.report.notes.append(f"release {self.report.releases}: {attempt.output()[-1500:]}")
            self.lake.unlock()
        return attempt.code == 0

    def _judge(self, new: Release, told: dict[str, Any]) -> None:
        report = self.report
        report.reads += told["reads"]
        if new.safe:
            report.unreadable += len(told["bad"])
            report.notes += [f"release {report.releases}: {problem}" for problem in told["bad"][:3]]
        if report.unfinished:
            return
        for number, table in self.tables.items():
            name = self.release.objects[number].name
            self._count(self.lake.rows(name), sorted(map(str, table.typed())), name)
        self._send()

    def _count(self, found: Sequence[Any], wanted: Sequence[Any], what: str) -> None:
        lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        if lost or more:
            self.report.rows_lost += lost.total()
            self.report.rows_doubled += more.total()
            self.report.notes.append(f"release {self.report.releases}: {what} lacks {lost}, has besides {more}")

    def _send(self) -> None:
        declared = load_objects(self.folder / f"release-{self.report.releases}.yaml", project=PROJECT).by_key()
        for obj in self.release.of("sink"):
            one = declared[obj.name]
            run_sink(one.id, one.name, one.sink, catalog=self.lake.catalog, store=self.lake.store)
            files = (self.folder / "out" / str(obj.number)).glob("*.jsonl")
            sent = [json.loads(line)["id"] for file in files for line in file.open()]
            self._count(sent, [row["id"] for row in self.tables[obj.source].rows], obj.name)

    def _live_on(self, reader: ViewReader) -> None:
        """Rows are written; users make views, and drop those that broke."""
        for number, table in list(self.tables.items()):
            rows = self.author.rows(table, self.ids)
            if rows:
                append_rows(self.lake.catalog, self.release.objects[number].name, table.typed(rows))
                self.tables[number] = Table(table.cols, (*table.rows, *rows))
        broken = self.lake.broken()
        for name in broken:
            del self.users[name]
        queries = {}
        if len(self.users) < 3 and (query := self.author.query(self.release, 1000)) is not None:
            queries = {f"bob.v{self.report.releases}": self.release.sql(query)}
            self.users |= queries
        reader.ask(run=[*(f"DROP VIEW {name}" for name in broken), *_statements(queries)])

    def _compare(self, reader: ViewReader) -> None:
        """With a fresh creation, by the same application."""
        fresh = MigratedLake(self.folder / "fresh")
        path = self.folder / f"release-{self.report.releases}.yaml"
        first = fresh.run(version="1.0", objects=[str(path)])
        for number, table in self.tables.items():
            append_rows(fresh.catalog, self.release.objects[number].name, table.typed())
        again = [side.run(refresh={"names": []}) for side in (self.lake, fresh)]
        if any(run.code != 0 for run in (first, *again)):
            self.report.differences += 1
            self.report.notes += [run.output()[-1500:] for run in (first, *again) if run.code != 0]
            return
        other = ViewReader(fresh.folder)
        try:
            broken = self.lake.broken()
            other.ask(run=_statements({name: text for name, text in self.users.items() if name not in broken}))
            ours, theirs = (side.ask(contents=True)["contents"] for side in (reader, other))
        finally:
            other.close()
        for obj in self.release.of("mview"):
            ours[obj.name], theirs[obj.name] = self.lake.rows(obj.name), fresh.rows(obj.name)
        for obj in self.release.of("table", "mview"):
            self._same(self.lake.columns(obj.name), fresh.columns(obj.name), f"columns of {obj.name}")
        self._same(sorted(ours), sorted(theirs), "views")
        for name in ours.keys() & theirs.keys():
            # A star stands for what was there when it was registered.
            shown = [
                {key: row[key] for key in ours[name][0]} if isinstance(row, dict) and ours[name] else row
                for row in theirs[name]
            ]
            self._same(ours[name], sorted(shown, key=str), f"rows of {name}")

    def _same(self, ours: Any, fresh: Any, what: str) -> None:
        if ours != fresh:
            self.report.differences += 1
            self.report.notes.append(f"{what}: {ours}, and fresh {fresh}"[:1500])


def _statements(views: dict[str, str]) -> list[str]:
    statements = [f"CREATE VIEW {name} AS {text}" for name, text in views.items()]
    return ["CREATE NAMESPACE IF NOT EXISTS bob", *statements]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.migrations_chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--keep", type=Path, default=None, help="a folder that is kept, with logs and declarations")
    parser.add_argument("--read", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        read(options.read)
        return 0
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rfr-migrations-chaos-") as folder:
        report = MigrationCampaign(seed, options.keep or Path(folder)).run(options.kills)
    for note in report.notes:
        print(f"  ! {note}")
    figures = {"seed": seed, **vars(report), "clean": report.clean, "seconds": round(time.monotonic() - began)}
    print(json.dumps(figures))
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
