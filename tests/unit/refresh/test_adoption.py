"""When a task flushes, and which of the files that a killed writer left behind count."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from posixpath import basename
from typing import Any, ClassVar

import pytest

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.chains import Cursor
from airflow_provider_rfr.refresh.pages import Flusher, FlushLabel, FlushWriter, PageRow, TaskFigures, page_row
from airflow_provider_rfr.refresh.partitions import choose_adopted, uncommitted_files
from airflow_provider_rfr.streams.core import Complete, NextPage, Page
from tests.soon import wait_until
from tests.unit.messages import raises

STORE = FileStore({})


def row(page: int, *, ordinal: int = 0, chain: int = 0, last: int = 99) -> PageRow:
    following = NextPage(page + 1) if page < last else Complete()
    return page_row(
        Page([{"page": page}], following),
        generation=1,
        epoch=1,
        ordinal=ordinal,
        key="{}",
        chain=chain,
        number=page,
        token=None if page == 1 else page,
    )


def writer(folder: Path, *, attempt: int = 0, task: int = 0, **label: Any) -> FlushWriter:
    first = FlushLabel(1, 1, 0, task, attempt, label.get("sequence", 0), label.get("previous"))
    return FlushWriter(STORE, str(folder), first)


def adopt(folder: Path, cursors: dict[int, Cursor] | None = None, committed: tuple[str, ...] = ()) -> dict[int, Cursor]:
    files = uncommitted_files(STORE, str(folder), committed)
    return choose_adopted(STORE, files, cursors or {0: Cursor(), 1: Cursor()}, committed)[1]


def test_a_whole_sequence_is_adopted(tmp_path: Path) -> None:
    subject = writer(tmp_path)
    for pages in ((1, 2), (3,), (4, 5)):
        subject.write([row(page) for page in pages])
    assert adopt(tmp_path)[0] == Cursor(0, 5, "6", False, 5)


def test_a_file_that_is_gone_ends_the_sequence_before_it(tmp_path: Path) -> None:
    subject = writer(tmp_path)
    for page in (1, 2, 3):
        subject.write([row(page)])
    Path(subject.files[1].location).unlink()
    assert adopt(tmp_path)[0].pages == 1


def test_a_torn_file_ends_the_sequence_wherever_it_was_cut(tmp_path: Path) -> None:
    subject = writer(tmp_path)
    for page in (1, 2, 3):
        subject.write([row(page)])
    torn = Path(subject.files[1].location)
    whole = torn.read_bytes()
    for cut in (*range(0, len(whole), 97), len(whole) - 1):
        torn.write_bytes(whole[:cut])
        assert adopt(tmp_path)[0].pages == 1, f"cut at byte {cut}"
    torn.write_bytes(whole)
    assert adopt(tmp_path)[0].pages == 3


def test_of_two_attempts_the_longer_sequence_is_taken_and_never_both(tmp_path: Path) -> None:
    short, long = writer(tmp_path, attempt=0), writer(tmp_path, attempt=1)
    for page in (1, 2):
        short.write([row(page)])
    for page in (1, 2, 3):
        long.write([row(page)])
    assert adopt(tmp_path)[0] == Cursor(0, 3, "4", False, 3)


def test_an_attempt_that_went_on_from_its_predecessors_files_is_one_sequence_with_them(tmp_path: Path) -> None:
    first = writer(tmp_path)
    for page in (1, 2):
        first.write([row(page)])
    second = writer(tmp_path, attempt=1, sequence=1, previous=basename(first.files[0].location))
    for page in (2, 3, 4):
        second.write([row(page)])
    assert adopt(tmp_path)[0].pages == 4


def test_files_of_several_tasks_are_adopted_side_by_side(tmp_path: Path) -> None:
    writer(tmp_path, task=0).write([row(1, ordinal=0)])
    writer(tmp_path, task=1).write([row(1, ordinal=1), row(2, ordinal=1, last=2)])
    moved = adopt(tmp_path)
    assert (moved[0].pages, moved[1].pages, moved[1].complete) == (1, 2, True)


def test_what_a_late_writer_adds_for_pages_that_are_committed_is_never_adopted(tmp_path: Path) -> None:
    writer(tmp_path).write([row(1), row(2)])
    assert adopt(tmp_path, {0: Cursor(0, 2, "3", False, 2)}) == {}


def test_a_file_that_does_not_join_on_to_the_committed_pages_is_not_adopted(tmp_path: Path) -> None:
    writer(tmp_path).write([row(5)])
    assert adopt(tmp_path, {0: Cursor(0, 3, "4", False, 3)}) == {}


def test_a_page_with_another_token_than_the_chain_waits_for_is_not_adopted(tmp_path: Path) -> None:
    writer(tmp_path).write([row(4)])
    assert adopt(tmp_path, {0: Cursor(0, 3, '"other"', False, 3)}) == {}


def test_pages_of_a_restarted_chain_supersede_the_older_ones(tmp_path: Path) -> None:
    writer(tmp_path).write([row(1, chain=1), row(2, chain=1)])
    assert adopt(tmp_path, {0: Cursor(0, 7, "8", False, 7)})[0] == Cursor(1, 2, "3", False, 2)


def test_a_committed_file_is_not_adopted_again(tmp_path: Path) -> None:
    subject = writer(tmp_path)
    subject.write([row(1)])
    subject.write([row(2)])
    committed = (subject.files[0].location,)
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
            self._ready.append(
                page_row(page, generation=1, epoch=1, ordinal=0, key="{}", chain=0, number=self.taken, token=None)
            )

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


def flusher(folder: Path, pages: Pages, store: FileStore | None = None, **options: float) -> Flusher:
    label = FlushLabel(1, 1, 1, 0, 0, 0)
    writer = FlushWriter(store or FileStore({}), str(folder), label)
    settings = {"read_seconds": 1e6, "read_pages": 0.0, **options}
    return Flusher(writer, pages, **settings)


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
    label = FlushLabel(1, 1, 1, 0, 0, 0)
    flushing = Flusher(FlushWriter(ObjectStore({}), "s3://lake/ledger", label), pages, read_seconds=0.0, read_pages=0.0)
    began = time.monotonic()
    for _ in range(500):
        pages.arrive()
        flushing.flush_if_due()
    assert len(ObjectStore.sizes) <= time.monotonic() - began
    pages.arrive("x" * 1024 * 1024)
    flushing.flush_if_due()
    assert pages.waiting == 0
    flushed = len(ObjectStore.sizes)
    pages.arrive()
    flushing.flush_if_due()
    assert len(ObjectStore.sizes) <= flushed + time.monotonic() - began
    flushing._over = True


def test_the_attempts_earlier_pages_count(tmp_path: Path) -> None:
    pages = Pages()
    flushing = flusher(tmp_path, pages, read_pages=10_000)
    for _ in range(100):
        pages.arrive()
        flushing.flush_if_due()
    assert not list(tmp_path.glob("*.parquet"))
    for _ in range(5):
        pages.arrive()
        flushing.flush_if_due()
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_slow_api_s_pages_are_flushed_by_the_clock(tmp_path: Path) -> None:
    pages = Pages()
    flushing = flusher(tmp_path, pages, read_seconds=5.0, read_pages=1e6)
    flushing.start()
    pages.arrive()
    wait_until(lambda: list(tmp_path.glob("*.parquet")), describe=lambda: "the page waits for others that don't come")
    flushing.finish()


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


def test_what_went_wrong_in_passing_ends_the_reading_and_is_told_at_the_end(tmp_path: Path) -> None:
    class Broken(FileStore):
        def write(self, location: str, data: object) -> int:
            raise OSError("no space left on device")

    pages = Pages()
    flushing = flusher(tmp_path, pages, Broken({}))
    flushing.start()
    pages.arrive()
    flushing.flush_if_due()
    assert pages.closed
    with raises(OSError):
        flushing.finish()
