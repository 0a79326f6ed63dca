"""Rounds over a real ledger and catalog; tasks run on threads here instead of on Spark."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.exceptions import FencedError, LedgerError, SourceError
from airflow_provider_rfr.lake.catalog import LakeSettings, create_table, open_catalog
from airflow_provider_rfr.lake.files import FileStore, renewal_time
from airflow_provider_rfr.lake.inference import InferredSchema
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.schemas import target_schema
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.budget import DriverBudget
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import FlushLabel, SeenColumns
from airflow_provider_rfr.refresh.partitions import PartitionBook, check_gapless, cursors_of, live_pages
from airflow_provider_rfr.refresh.publish_task import LedgerFiles, see_share
from airflow_provider_rfr.refresh.round_task import RoundLimits, RoundTask, run_round_task
from airflow_provider_rfr.refresh.rounds import Rounds, StreamReader
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from airflow_provider_rfr.streams.loader import load_stream
from tests.kill_points import intercept
from tests.soon import wait_until
from tests.strict_commits import write_page
from tests.unit.messages import raises
from tests.unit.refresh.paged_sources import EXPIRED, REQUESTS

TABLE = "raw.numbers"


class Threads:
    """Runs tasks side by side in this process."""

    driver_host = bind_address = "127.0.0.1"
    submitted = running = 0

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores
        self.ready = threading.Event()
        self.ready.set()

    def start(self) -> None: ...

    def jobs_for(self, size: int) -> Any:
        return self

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        with ThreadPoolExecutor(max(1, len(items))) as pool:
            return list(pool.map(function, items))


class Bench:
    """A ledger in a folder, and attempts on it."""

    def __init__(self, folder: Path) -> None:
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.catalog = open_catalog(LakeSettings("rfr", properties))
        self.reports: list[LedgerHeader] = []

    def ledger(self) -> Ledger:
        return Ledger(LedgerTable.load_or_create(self.catalog, TABLE))

    def source(self, stream: str = "Numbers", **config: Any) -> dict[str, Any]:
        return {"class": f"tests.unit.refresh.paged_sources:{stream}", "config": config}

    def open(self, source: dict[str, Any], name: str = "numbers") -> tuple[Ledger, PartitionBook]:
        ledger, stream = self.ledger(), load_stream(source, name)
        if ledger.header is not None:
            book = ledger.take_over("publish")
            if (table := ledger.read_pages()) is not None:
                book.remember(table, addressable=True)
            return ledger, book
        slices = ((stream.partition_key(item), item) for item in stream.stream_slices())
        return ledger, ledger.open_generation(slices, read_fingerprint="r", publish_fingerprint="p", run_key=None)

    def attempt(
        self, ledger: Ledger, book: PartitionBook, source: dict[str, Any], name: str = "numbers", **options: Any
    ) -> Attempt:
        reader = StreamReader(
            ledger,
            book,
            source=source,
            stream=name,
            options=RefreshOptions(**{"round_seconds": 0.5, "concurrency": 4, **options}),
            addressable=load_stream(source, name).addressable,  # type: ignore[attr-defined]
            infers=True,
            report=self.reports.append,
        )
        cluster: Any = Threads()
        return Attempt(reader, Rounds(cluster, DriverBudget(None), reader.options.concurrency, threading.Event()))

    def read(
        self, source: dict[str, Any], name: str = "numbers", **options: Any
    ) -> tuple[Ledger, PartitionBook, StreamReader]:
        ledger, book = self.open(source, name)
        attempt = self.attempt(ledger, book, source, name, **options)
        attempt.read()
        return ledger, book, attempt.reader


@dataclass
class Attempt:
    """One stream that is read in rounds of its own."""

    reader: StreamReader
    rounds: Rounds

    def read(self) -> None:
        try:
            self.reader.read_all(self.rounds)
        finally:
            self.rounds.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    REQUESTS.clear()
    EXPIRED.clear()
    return Bench(tmp_path)


class VendingCatalog:
    """Lets a catalog give new credentials with each load of a table, as Polaris, Lakekeeper and Unity do."""

    def __init__(self, catalog: Any, monkeypatch: pytest.MonkeyPatch, life: float) -> None:
        self.loads = 0
        load = type(catalog).load_table

        def load_table(catalog: Any, identifier: str) -> Any:
            table = load(catalog, identifier)
            self.loads += 1
            table.io.properties["s3.session-token"] = f"token-{self.loads}"
            table.io.properties["s3.session-token-expires-at-ms"] = str(int((time.time() + life) * 1000))
            return table

        monkeypatch.setattr(type(catalog), "load_table", load_table)


def token(store: FileStore) -> str:
    return store.properties["s3.session-token"]


def assert_whole(ledger: Ledger, partitions: int, pages: int) -> None:
    table = ledger.read_pages()
    assert table is not None
    cursors = cursors_of(table)
    check_gapless(live_pages(table, cursors), cursors)
    assert {n: (c.pages, c.complete, c.records) for n, c in cursors.items()} == dict.fromkeys(
        range(partitions), (pages, True, 3 * pages)
    )


def test_every_partition_is_read_to_its_end(bench: Bench) -> None:
    ledger, book, _ = bench.read(bench.source(partitions=7, pages=6))
    assert_whole(ledger, 7, 6)
    assert book.done == 7
    assert ledger.header is not None
    assert (ledger.header.pages, ledger.header.records, ledger.header.partitions_done) == (42, 126, 7)


def test_a_failing_partition_does_not_stop_the_others_and_keeps_its_pages(bench: Bench) -> None:
    _, book, _ = bench.read(bench.source(partitions=5, pages=4, broken=[1, 3]))
    assert sorted(book.failed) == [1, 3]
    assert isinstance(book.failed[1], SourceError)
    assert "partition" in str(book.failed[1])
    assert {n for n, cursor in book.cursors.items() if cursor.complete} == {0, 2, 4}
    assert book.cursors[1].pages == 1
    _, book, _ = bench.read(bench.source(partitions=5, pages=4))
    assert not book.failed
    assert_whole(bench.ledger(), 5, 4)


def test_an_expired_token_starts_that_chain_again_and_no_other(bench: Bench) -> None:
    ledger, book, reader = bench.read(bench.source(partitions=3, pages=5, expires=[2]), concurrency=2)
    assert book.live_chains == {2: 1}
    assert_whole(ledger, 3, 5)
    asked = Counter(partition for partition, _ in REQUESTS)
    assert (asked[0], asked[1]) == (5, 5)
    assert reader.figures.refetched == 2


@pytest.mark.parametrize("slow", [0, 1])
def test_a_task_that_ends_stops_no_task_beside_it(bench: Bench, slow: int) -> None:
    source = bench.source(partitions=2, pages=5, slow={f"{slow}/{page}": 0.1 for page in range(1, 6)})
    ledger, _, _ = bench.read(source, concurrency=2, round_seconds=10)
    assert_whole(ledger, 2, 5)
    assert Counter(partition for partition, _ in REQUESTS) == {0: 5, 1: 5}


def test_the_driver_notices_the_end_of_a_task_that_takes_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    intercept(DriverBudget, "done", before=lambda _, stream, task: ended.append(task), put=monkeypatch.setattr)
    bench.read(bench.source(partitions=2, pages=1))
    wait_until(lambda: sorted(set(ended)) == [0, 1])


def test_a_round_ends_by_its_size_and_the_next_goes_on(bench: Bench) -> None:
    ledger, _, _ = bench.read(bench.source(partitions=4, pages=30), round_bytes=1024)
    assert_whole(ledger, 4, 30)
    assert len(bench.reports) > 2


def test_executors_that_come_in_a_round_get_their_part_of_its_work(bench: Bench) -> None:
    source = bench.source(partitions=4, pages=20, seconds=0.05)
    ledger, book = bench.open(source)
    attempt = bench.attempt(ledger, book, source, round_seconds=30.0)
    cluster: Any = attempt.rounds.cluster
    cluster.cores, tasks = 1, []
    run = cluster.run

    def run_and_count(function: Any, items: Sequence[Any]) -> list[Any]:
        tasks.append(len(items))
        return list(run(function, items))

    cluster.run = run_and_count
    threading.Timer(0.4, setattr, (cluster, "cores", 3)).start()
    attempt.read()
    assert_whole(ledger, 4, 20)
    assert tasks[:2] == [1, 3]


def test_a_page_that_hangs_over_the_rounds_end_is_left_to_the_slow_page_lane(bench: Bench) -> None:
    source = bench.source("Hanging", partitions=6, pages=8, seconds=0.05, hang=4.0)
    ledger, _, _ = bench.read(source, "hanging", round_seconds=0.4)
    assert_whole(ledger, 6, 8)
    others = [report for report in bench.reports if report.partitions_done >= 5]
    assert others, "the other partitions were not held up"


def test_what_the_slow_page_lane_read_is_not_read_again_while_others_are_still_read(bench: Bench) -> None:
    source = bench.source("Hanging", partitions=5, pages=50, seconds=0.03, hang=3.0)
    ledger, _, _ = bench.read(source, "hanging", round_seconds=0.3, concurrency=2)
    assert_whole(ledger, 5, 50)
    assert ledger.header is not None
    assert ledger.header.pages == 250


def test_a_resumed_generation_belongs_to_the_run_that_resumed_it(bench: Bench) -> None:
    source = bench.source(partitions=2, pages=3)
    bench.open(source)
    ledger = bench.ledger()
    ledger.take_over("publish", "run-2")
    assert ledger.header is not None
    assert ledger.header.run_key == "run-2"


def test_a_generation_that_another_attempt_ended_meanwhile_is_not_taken_over(bench: Bench) -> None:
    source = bench.source(partitions=2, pages=3)
    bench.open(source)
    late = bench.ledger()
    other, _, _ = bench.read(source)
    other.commit([], state=RefreshState.PUBLISHED, snapshot_id=1, published_rows=18)
    with raises(FencedError):
        late.take_over("publish")


def test_a_resume_asks_for_no_committed_page_but_the_overlap_check(bench: Bench) -> None:
    source = bench.source(partitions=4, pages=6)
    ledger, book = bench.open(source)
    attempt = bench.attempt(ledger, book, source, round_bytes=1024, concurrency=2)
    attempt.reader._read_round(attempt.rounds)
    read = {n: cursor.pages for n, cursor in book.cursors.items() if not cursor.complete}
    done = {n for n, cursor in book.cursors.items() if cursor.complete}
    REQUESTS.clear()
    ledger, _, again = bench.read(source)
    assert_whole(ledger, 4, 6)
    assert not [partition for partition, _ in REQUESTS if partition in done]
    checks = [(n, pages if pages > 1 else None) for n, pages in read.items()]
    early = [(n, token) for n, token in REQUESTS if (token or 1) <= read.get(n, 0)]
    assert sorted(early, key=str) == sorted(checks, key=str)
    assert again.figures.overlap_checks == len(checks)


def test_an_older_attempt_can_not_commit_after_a_newer_one_took_over(bench: Bench) -> None:
    source = bench.source(partitions=2, pages=3)
    old, book = bench.open(source)
    attempt = bench.attempt(old, book, source)
    new, _ = bench.open(source)
    with raises(FencedError) as fenced:
        attempt.read()
    assert (fenced.value.epoch, fenced.value.newer_epoch) == (1, 2)
    assert new.header is not None
    assert new.header.epoch == 2


@pytest.mark.parametrize("look", [Ledger.is_ours, lambda ledger: commits(ledger)], ids=["a look", "a sign of life"])
def test_who_found_out_that_it_was_fenced_can_not_commit_on_top_of_what_it_saw(
    look: Callable[[Ledger], bool], bench: Bench
) -> None:
    first, _ = bench.open(bench.source())
    second, _ = bench.open(bench.source())
    assert not look(first)
    assert not commits(first)
    with pytest.raises(FencedError):
        first.end("it is over")
    assert commits(second)


def test_an_attempt_that_is_taken_over_before_it_trims_can_not_commit_after_that(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = bench.open(bench.source())
    trim, seconds = LedgerTable.trim, []

    def late(table: LedgerTable) -> None:
        if not seconds:
            seconds.append(bench.open(bench.source())[0])
        trim(table)

    monkeypatch.setattr(LedgerTable, "trim", late)
    assert sum(commits(first) for _ in range(20)) < 20
    assert commits(seconds[0])
    assert not commits(first)


def task_of(
    ledger: Ledger,
    book: PartitionBook,
    source: dict[str, Any],
    stream: str = "numbers",
    threads: int = 2,
    **label: int,
) -> RoundTask:
    """Return a task with all partitions, which ends when they are read or when its round is closed."""
    return RoundTask(
        source=source, stream=stream, store=ledger.store, folder=ledger.folder,
        label=replace(FlushLabel(1, 1, 0, 0, 0, 0), **label),
        limits=RoundLimits(threads, seconds=None, bytes=10**9), partitions=tuple(map(book.work, range(len(book)))),
        on_source_change="restart", on_repeated_page="fail", infers=True,
    )  # fmt: skip


def commits(ledger: Ledger) -> bool:
    try:
        ledger.commit([])
    except FencedError:
        return False
    return True


def test_a_task_that_runs_again_goes_on_from_its_predecessors_files(bench: Bench) -> None:
    source = bench.source(partitions=2, pages=12, seconds=0.02)
    ledger, book = bench.open(source)
    again = task_of(ledger, book, source, attempt=1)
    first = replace(again, label=replace(again.label, attempt=0), limits=replace(again.limits, seconds=0.15))
    before = run_round_task(first, DriverBudget(None))
    REQUESTS.clear()
    result = run_round_task(again, DriverBudget(None))
    assert {file.location for file in before.files} <= {file.location for file in result.files}
    assert result.figures.pages == 24
    asked = [token for _, token in REQUESTS if (token or 1) <= 12]
    assert len(asked) == 24 - before.figures.pages
    for progress in result.progress:
        book.apply(progress)
    ledger.commit(result.files, records=book.records, partitions_done=book.done)
    assert_whole(ledger, 2, 12)


def test_a_task_reads_a_source_with_integers_of_any_length(bench: Bench) -> None:
    source = bench.source(partitions=1, pages=2, seconds=0, start=-(2**80))
    ledger, book = bench.open(source)
    assert run_round_task(task_of(ledger, book, source), DriverBudget(None)).figures.pages == 2


def test_an_empty_page_is_asked_for_twice_also_where_no_task_reads_more_than_one_page(bench: Bench) -> None:
    source = bench.source("Emptied", partitions=1, pages=2, seconds=0.05)
    ledger, book = bench.open(source, "emptied")
    closing = threading.Event()
    closing.set()
    for number in range(60):
        task = task_of(ledger, book, source, "emptied", threads=1, round=number)
        result = run_round_task(task, DriverBudget(None), closing)
        for progress in result.progress:
            book.apply(progress)
        if book.done:
            break
    assert [token for _, token in REQUESTS] == [None, 2, 3, 3]
    assert (book.cursors[0].pages, book.cursors[0].complete, book.cursors[0].records) == (3, True, 6)


def test_the_columns_that_writers_noted_are_those_of_the_files(bench: Bench) -> None:
    ledger, _, _ = bench.read(bench.source(partitions=3, pages=20))
    files = ledger.page_files()
    seen, noted = ledger.noted_columns()
    assert noted == files.keys()
    assert seen == see_share(LedgerFiles(ledger.store, tuple(files), {}))
    later = bench.ledger()
    later.read_pages()
    assert later.noted_columns() == (seen, noted), "another attempt reads the notes and not the records"


def test_a_note_of_very_many_columns_is_left_out() -> None:
    wide = SeenColumns(InferredSchema(fields={f"column {number}": InferredSchema() for number in range(3_000)}))
    assert wide.to_footer() == {}
    assert SeenColumns.from_footer({b"rfr": b"{}"}) is None


def test_a_file_on_another_machines_disk_is_not_committed(bench: Bench) -> None:
    ledger, _ = bench.open(bench.source(partitions=1, pages=2))
    file = write_page(ledger, "page-1.parquet")
    Path(file.location.removeprefix("file://")).unlink()
    with raises(LedgerError):
        ledger.commit([file], rounds=1)
    assert not bench.ledger().page_files()


def test_two_attempts_of_one_task_at_once_count_once(bench: Bench) -> None:
    source = bench.source(partitions=2, pages=10, seconds=0.01)
    ledger, book = bench.open(source)
    tasks = [task_of(ledger, book, source, attempt=attempt) for attempt in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda task: run_round_task(task, DriverBudget(None)), tasks))
    for progress in results[1].progress:
        book.apply(progress)
    ledger.commit(results[1].files, records=book.records, partitions_done=book.done)
    assert_whole(ledger, 2, 10)
    _, again = bench.open(source)
    assert again.done == 2
    assert_whole(bench.ledger(), 2, 10)


def test_a_disk_that_is_full_ends_the_reading_at_once_and_what_it_took_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, kept = FileStore.write, 3

    def full(store: FileStore, location: str, data: Any) -> int:
        nonlocal kept
        if (kept := kept - 1) < 0:
            raise OSError(errno.ENOSPC, "No space left on device", location)
        return write(store, location, data)

    source = bench.source(partitions=2, pages=500, seconds=0.002)
    ledger, book = bench.open(source)
    attempt = bench.attempt(ledger, book, source, concurrency=2, round_seconds=60)
    with monkeypatch.context() as broken:
        broken.setattr(FileStore, "write", full)
        with raises(OSError):
            attempt.read()
    assert len(REQUESTS) < 500, "it read on, and threw it away"
    flushed = ledger.flushed_pages()
    assert flushed > 0
    bench.open(source)
    header = bench.ledger().header
    assert header is not None
    assert header.pages == flushed


@pytest.mark.parametrize("life", [0.0, 3600.0])
def test_tasks_get_the_newest_credentials_which_are_renewed_before_a_round_when_they_are_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, life: float
) -> None:
    bench.ledger()
    catalog = VendingCatalog(bench.catalog, monkeypatch, life)
    source = bench.source(partitions=4, pages=12)
    ledger, book = bench.open(source)
    ledger.check_epoch()
    assert token(ledger.store) == f"token-{catalog.loads}", "those of the ledger as it was loaded last"
    attempt = bench.attempt(ledger, book, source, round_bytes=1024)
    seen: list[str] = []

    def run(function: Callable[[Any], Any], items: Sequence[tuple[RoundTask, ...]]) -> list[Any]:
        seen.append(token(items[0][0].store))
        assert seen[-1] == f"token-{catalog.loads}" or life > 0.0
        return Threads().run(function, items)

    attempt.rounds.cluster.run = run  # type: ignore[method-assign, assignment]
    attempt.read()
    assert_whole(ledger, 4, 12)
    assert len(seen) > 1
    assert len(set(seen)) == (len(seen) if life == 0.0 else 1)


@pytest.mark.parametrize("life", [0.0, 3600.0])
def test_the_driver_that_reads_while_spark_starts_renews_its_credentials_when_they_are_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, life: float
) -> None:
    bench.ledger()
    VendingCatalog(bench.catalog, monkeypatch, life)
    source = bench.source(partitions=2, pages=6, seconds=0.15)
    ledger, book = bench.open(source)
    attempt = bench.attempt(ledger, book, source)
    # Spark waits for room in its cluster until all is read.
    attempt.rounds.cluster.ready.clear()
    seen: list[str] = []
    write = FileStore.write

    def noted(store: FileStore, location: str, data: Any) -> int:
        seen.append(token(store))
        return write(store, location, data)

    monkeypatch.setattr(FileStore, "write", noted)
    attempt.read()
    assert_whole(ledger, 2, 6)
    assert (len(set(seen)) > 1) is (life == 0.0)


def test_an_attempt_that_renews_its_credentials_does_not_commit_over_a_newer_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.ledger()
    VendingCatalog(bench.catalog, monkeypatch, life=0.0)
    source = bench.source(partitions=1, pages=1)
    ledger, _ = bench.open(source)
    bench.open(source)
    ledger.renew_credentials()
    with pytest.raises(FencedError):
        ledger.commit([], rounds=1)


@pytest.mark.parametrize("life", [0.0, 3600.0])
def test_a_publish_writes_with_credentials_that_are_not_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, life: float
) -> None:
    columns = pa.schema([("id", pa.int64())])
    create_table(bench.catalog, "raw.target", target_schema(columns))
    catalog = VendingCatalog(bench.catalog, monkeypatch, life)
    target = TargetTable(bench.catalog, "raw.target")
    before = catalog.loads
    target.renew_credentials()
    assert catalog.loads == before + (1 if life == 0.0 else 0)
    assert token(target.prepare(columns, "evolve", inferred=False, rows_stay=True).store) == f"token-{catalog.loads}"


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [
        ({"s3.region-expires-at-ms": 900}, math.inf),
        ({"s3.session-token": 0}, 600),
        ({"s3.session-token-expires-at-ms": 3600}, 600),
        ({"s3.session-token-expires-at-ms": 900}, 450),
        ({"adls.sas-token-expires-at-ms.lake": 800, "gcs.oauth2.token-expires-at": 60}, 30),
        ({"s3.session-token-expires-at-ms": -60}, 0),
    ],
)
def test_vended_credentials_are_old_after_half_of_their_life_and_after_ten_minutes(
    properties: dict[str, int], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    ends = {key: str((1_800_000_000 + life) * 1000) for key, life in properties.items()}
    table: Any = SimpleNamespace(catalog=SimpleNamespace(properties={}), io=SimpleNamespace(properties=ends))
    assert renewal_time(table) == 50 + seconds
    table.catalog.properties = ends
    assert renewal_time(table) == math.inf, "the user's own are not renewed"
