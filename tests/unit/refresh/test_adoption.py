"""When a task flushes, and which of the files that a killed writer left behind count."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from posixpath import basename
from typing import Any, ClassVar

import pytest

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh import round_task
from airflow_provider_rfr.refresh.chains import Cursor
from airflow_provider_rfr.refresh.page_rows import FlushLabel, FlushWriter, PageRow, TaskFigures
from airflow_provider_rfr.refresh.partitions import choose_adopted, uncommitted_files
from airflow_provider_rfr.refresh.round_task import Flusher, TaskResult
from airflow_provider_rfr.streams.core import Complete, NextPage, Page
from tests.soon import wait_until
from tests.unit.messages import raises
from tests.unit.refresh.paged_sources import row_of

STORE = FileStore({})


def row(page: int, *, ordinal: int = 0, chain: int = 0, last: int = 99) -> PageRow:
    following = NextPage(page + 1) if page < last else Complete()
    token = None if page == 1 else page
    return row_of(Page([{"page": page}], following), page, token, ordinal=ordinal, chain=chain)


def writer(folder: Path, *, attempt: int = 0, task: int = 0, **label: Any) -> FlushWriter:
    first = FlushLabel(1, 1, 0, task, attempt, label.get("sequence", 0), label.get("previous"))
    return FlushWriter(STORE, str(folder), first)


def adopt(folder: Path, cursors: dict[int, Cursor] | None = None, committed: tuple[str, ...] = ()) -> dict[int, Cursor]:
    files = uncommitted_files(STORE, str(folder), committed)
    return choose_adopted(STORE, files, cursors or {0: Cursor(), 1: Cursor()}, committed)[1]


def written(folder: Path, *files: tuple[int, ...], **label: Any) -> FlushWriter:
    """Return the writer that has written files of these pages."""
    subject = writer(folder, **label)
    for pages in files:
        subject.write([row(page) for page in pages])
    return subject


def test_a_whole_sequence_is_adopted(tmp_path: Path) -> None:
    written(tmp_path, (1, 2), (3,), (4, 5))
    assert adopt(tmp_path)[0] == Cursor(0, 5, "6", False, 5)


def test_a_file_that_is_gone_ends_the_sequence_before_it(tmp_path: Path) -> None:
    Path(written(tmp_path, (1,), (2,), (3,)).files[1].location).unlink()
    assert adopt(tmp_path)[0].pages == 1


def test_a_torn_file_ends_the_sequence_wherever_it_was_cut(tmp_path: Path) -> None:
    torn = Path(written(tmp_path, (1,), (2,), (3,)).files[1].location)
    whole = torn.read_bytes()
    for cut in (*range(0, len(whole), 97), len(whole) - 1):
        torn.write_bytes(whole[:cut])
        assert adopt(tmp_path)[0].pages == 1, f"cut at byte {cut}"
    torn.write_bytes(whole)
    assert adopt(tmp_path)[0].pages == 3


def test_of_two_attempts_the_longer_sequence_is_taken_and_never_both(tmp_path: Path) -> None:
    written(tmp_path, (1,), (2,), attempt=0)
    written(tmp_path, (1,), (2,), (3,), attempt=1)
    assert adopt(tmp_path)[0] == Cursor(0, 3, "4", False, 3)


def test_an_attempt_that_went_on_from_its_predecessors_files_is_one_sequence_with_them(tmp_path: Path) -> None:
    first = written(tmp_path, (1,), (2,))
    written(tmp_path, (2,), (3,), (4,), attempt=1, sequence=1, previous=basename(first.files[0].location))
    assert adopt(tmp_path)[0].pages == 4


def test_files_of_several_tasks_are_adopted_side_by_side(tmp_path: Path) -> None:
    writer(tmp_path, task=0).write([row(1, ordinal=0)])
    writer(tmp_path, task=1).write([row(1, ordinal=1), row(2, ordinal=1, last=2)])
    moved = adopt(tmp_path)
    assert (moved[0].pages, moved[1].pages, moved[1].complete) == (1, 2, True)


@pytest.mark.parametrize(
    ("pages", "cursor"),
    [((1, 2), Cursor(0, 2, "3", False, 2)), ((5,), Cursor(0, 3, "4")), ((4,), Cursor(0, 3, '"other"'))],
    ids=["committed pages, by a late writer", "pages behind a gap", "a page with another token than is waited for"],
)
def test_what_does_not_continue_the_committed_pages_is_not_adopted(
    tmp_path: Path, pages: tuple[int, ...], cursor: Cursor
) -> None:
    written(tmp_path, pages)
    assert adopt(tmp_path, {0: cursor}) == {}


def test_pages_of_a_restarted_chain_supersede_the_older_ones(tmp_path: Path) -> None:
    writer(tmp_path).write([row(1, chain=1), row(2, chain=1)])
    assert adopt(tmp_path, {0: Cursor(0, 7, "8", False, 7)})[0] == Cursor(1, 2, "3", False, 2)


def test_a_committed_file_is_not_adopted_again(tmp_path: Path) -> None:
    committed = (written(tmp_path, (1,), (2,)).files[0].location,)
    assert adopt(tmp_path, {0: Cursor(0, 1, "2", False, 1)}, committed)[0].pages == 2


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"\0" * 4096])
def test_foreign_files_in_the_folder_are_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "e1-r0-t0-a0-s0-feedbeef.parquet").write_bytes(content)
    assert adopt(tmp_path) == {}


class Pages:
    """Pages as the scheduler holds them."""

    def __init__(self) -> None:
        self.full = threading.Event()
        self.taken = 0
        self.closed = False
        self._ready: list[PageRow] = []
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return len(self._ready)

    @property
    def waiting_bytes(self) -> int:
        return sum(len(row.records or b"") for row in self._ready)

    @property
    def figures(self) -> TaskFigures:
        return TaskFigures(pages=self.taken)

    def arrive(self, text: str = "") -> None:
        with self._lock:
            self.taken += 1
            page = Page([{"id": self.taken, "text": text}], NextPage(self.taken + 1))
            self._ready.append(row_of(page, self.taken))

    def close(self) -> None:
        self.closed = True

    def take_ready(self) -> list[PageRow]:
        with self._lock:
            rows, self._ready = self._ready, []
        return rows


class ObjectStore(FileStore):
    """An object store with the bytes of its objects in ``sizes``."""

    sizes: ClassVar[list[int]] = []

    def write(self, location: str, data: Any) -> int:
        assert location.startswith("s3://")
        self.sizes.append(len(data))
        return len(data)


class SlowStore(FileStore):
    """A store whose every write takes a while."""

    seconds = 0.5

    def write(self, location: str, data: object) -> int:
        time.sleep(self.seconds)
        return super().write(location, data)


def flusher(folder: Path | str, pages: Any, store: FileStore = STORE, **options: float) -> Flusher:
    writer = FlushWriter(store, str(folder), FlushLabel(1, 1, 1, 0, 0, 0))
    return Flusher(writer, pages, **{"read_seconds": 1e6, "read_pages": 0.0, **options})


def arrive(count: int, pages: Pages, flushing: Flusher) -> None:
    """Let pages arrive one after another, as a reading thread delivers them."""
    for _ in range(count):
        pages.arrive()
        flushing.flush_if_due()


@pytest.fixture
def at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a flush follow another one at once."""
    monkeypatch.setattr(round_task, "_SHORTEST_SECONDS", 0.0)


def test_no_flush_comes_sooner_than_10_milliseconds_after_the_last(tmp_path: Path) -> None:
    pages = Pages()
    flushing = flusher(tmp_path, pages)
    began = time.monotonic()
    arrive(2_000, pages, flushing)
    assert len(list(tmp_path.glob("*.parquet"))) <= 1 + (time.monotonic() - began) / 0.01
    time.sleep(0.02)
    arrive(20, pages, flushing)
    assert pages.waiting < 20


@pytest.mark.usefixtures("at_any_time")
def test_at_no_moment_more_waits_than_the_share_and_few_files_are_written(tmp_path: Path) -> None:
    pages = Pages()
    flushing = flusher(tmp_path, pages)
    for _ in range(2_000):
        pages.arrive()
        flushing.flush_if_due()
        assert pages.waiting <= 0.005 * pages.taken
    files = len(list(tmp_path.glob("*.parquet")))
    # One a page up to two hundred pages; then each file is half a percent of what is there: 200 * ln(2000 / 200).
    assert 450 <= files <= 750


def test_an_object_store_gets_the_pages_of_a_second_or_a_megabyte_at_once() -> None:
    ObjectStore.sizes.clear()
    pages = Pages()
    flushing = flusher("s3://lake/ledger", pages, ObjectStore({}), read_seconds=0.0)
    began = time.monotonic()
    arrive(500, pages, flushing)
    assert len(ObjectStore.sizes) <= time.monotonic() - began
    pages.arrive("x" * 1024 * 1024)
    flushing.flush_if_due()
    assert pages.waiting == 0
    flushed = len(ObjectStore.sizes)
    arrive(1, pages, flushing)
    assert len(ObjectStore.sizes) <= flushed + time.monotonic() - began
    flushing._over = True


@pytest.mark.usefixtures("at_any_time")
def test_the_attempts_earlier_pages_count(tmp_path: Path) -> None:
    pages = Pages()
    flushing = flusher(tmp_path, pages, read_pages=10_000)
    arrive(100, pages, flushing)
    assert not list(tmp_path.glob("*.parquet"))
    arrive(5, pages, flushing)
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_slow_api_s_pages_are_flushed_by_the_clock(tmp_path: Path) -> None:
    pages = Pages()
    flushing = flusher(tmp_path, pages, read_seconds=5.0, read_pages=1e6)
    flushing.start()
    pages.arrive()
    wait_until(lambda: list(tmp_path.glob("*.parquet")), describe=lambda: "the page waits for others that don't come")
    flushing.finish()


@pytest.mark.usefixtures("at_any_time")
def test_where_the_store_is_slower_than_the_api_readers_wait_but_not_for_long(tmp_path: Path) -> None:
    pages = Pages()
    flushing = flusher(tmp_path, pages, SlowStore({}))
    waits: list[float] = []

    def read() -> None:
        for _ in range(5):
            pages.arrive()
            began = time.monotonic()
            flushing.flush_if_due()
            waits.append(time.monotonic() - began)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flushing._over = True
    assert any(0.02 < wait < SlowStore.seconds for wait in waits), "nobody waited, or all for the store's answer"


@pytest.mark.usefixtures("at_any_time")
def test_what_went_wrong_in_passing_ends_the_reading_and_is_told_at_the_end(tmp_path: Path) -> None:
    class Broken(FileStore):
        def write(self, location: str, data: object) -> int:
            raise OSError("no space left on device")

    pages = Pages()
    flushing = flusher(tmp_path, pages, Broken({}))
    flushing.start()
    arrive(1, pages, flushing)
    assert pages.closed
    with raises(OSError):
        flushing.finish()


def test_a_task_s_result_travels_with_all_its_files(tmp_path: Path) -> None:
    subject = FlushWriter(STORE, str(tmp_path), FlushLabel(1, 1, 0, 0, 0, 0), infers=True)
    for pages in ((1, 2), (3,)):
        subject.write([row(page) for page in pages])
    result = TaskResult(tuple(subject.files), figures=TaskFigures(pages=3), retried={"timeout": 1})
    travelled = pickle.loads(pickle.dumps(result))
    assert [file.location for file in travelled.files] == [file.location for file in result.files]
    assert [file.pages for file in travelled.files] == [file.pages for file in result.files]
    assert [file.seen for file in travelled.files] == [file.seen for file in result.files]
    assert (travelled.figures, travelled.retried) == (result.figures, result.retried)
    assert pickle.loads(pickle.dumps(TaskResult())) == TaskResult()
