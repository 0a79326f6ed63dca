"""Which of the files that a killed writer left behind count."""

from __future__ import annotations

from pathlib import Path
from posixpath import basename
from typing import Any

import pytest

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.chains import Cursor
from airflow_provider_rfr.refresh.pages import FlushLabel, FlushWriter, PageRow, page_row
from airflow_provider_rfr.refresh.partitions import choose, left_files
from airflow_provider_rfr.streams.core import Complete, NextPage, Page

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
    files = left_files(STORE, str(folder), committed)
    return choose(STORE, files, cursors or {0: Cursor(), 1: Cursor()}, committed)[1]


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
