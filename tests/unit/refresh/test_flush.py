"""When a task flushes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.pages import Flusher, FlushLabel, FlushWriter, PageRow, TaskFigures, page_row
from airflow_provider_rfr.streams import NextPage, Page
from tests.soon import wait_until
from tests.unit.messages import raises


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
