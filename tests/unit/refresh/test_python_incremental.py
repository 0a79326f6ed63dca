"""Incremental syncs of streams in Python, whose own state is kept in the table's commits."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyiceberg.types import StringType

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.sync_state import read_state
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.streams import Page, PagedStream
from tests import forked
from tests.kill_points import intercept
from tests.unit.messages import raises
from tests.unit.refresh import python_sources
from tests.unit.refresh.in_driver import TABLE, SyncedTable
from tests.unit.refresh.python_sources import ASKED, ROWS

ROOT = Path(__file__).resolve().parents[3]
CLASSES = {"no_mapping": "NoMapping"}


class Lake(SyncedTable):
    """A table, and an API whose records change."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config: dict[str, Any] = {}
        self.module = python_sources.__name__

    def give(self, number: int, version: int, value: str = "x", shop: str = "a") -> None:
        ROWS.append({"id": number, "version": version, "value": value, "shop": shop})

    def sync(self, stream: str = "sliced", mode: str = "merge", **more: Any) -> RefreshFigures:
        ASKED.clear()
        source = {"class": f"{self.module}:{CLASSES.get(stream, stream.title())}", "config": self.config}
        return self.run(source, stream, **{"options": {"mode": mode, "max_deleted": 1}, **more})

    @property
    def state(self) -> Any:
        state = read_state(self.table)
        return None if state is None else state.of_source


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    ROWS.clear()
    yield Lake(tmp_path)
    ROWS.clear()


@pytest.mark.parametrize("stream", ["sliced", "paged"])
@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_sync_continues_each_slice_from_its_own_state(lake: Lake, stream: str, mode: str) -> None:
    lake.config = {"shops": ["a", "b"]}
    for number in range(5):
        lake.give(number, number)
    lake.give(10, 90, shop="b")
    first = lake.sync(stream, mode)
    assert (first.rows, first.changes) == (6, None)
    assert lake.state == {'{"shop":"a"}': {"version": 4}, '{"shop":"b"}': {"version": 90}}
    lake.give(1, 5, "changed")
    lake.give(11, 91, shop="b")
    lake.config = {"shops": ["a", "b", "c"]}
    lake.give(20, 0, shop="c")
    second = lake.sync(stream, mode)
    assert {(shop, version) for shop, version, _ in ASKED} == {("a", 4), ("b", 90), ("c", 0)}
    older = [] if mode == "merge" else [(1, "x")]
    assert lake.rows() == sorted(
        [(0, "x"), (1, "changed"), *older, (2, "x"), (3, "x"), (4, "x"), (10, "x"), (11, "x"), (20, "x")]
    )
    assert second.changes is not None
    assert second.changes["unchanged"] == 2
    assert lake.state == {
        '{"shop":"a"}': {"version": 5},
        '{"shop":"b"}': {"version": 91},
        '{"shop":"c"}': {"version": 0},
    }
    snapshot = lake.table.metadata.current_snapshot_id
    lake.sync(stream, mode)
    assert lake.table.metadata.current_snapshot_id == snapshot


@pytest.mark.parametrize("stream", ["sliced", "paged"])
def test_a_slice_that_fails_between_others_changes_nothing_and_is_alone_read_again(
    lake: Lake, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.config = {"shops": ["a", "b", "c"]}
    for number, shop in enumerate("abc"):
        lake.give(number, 1, shop=shop)
    lake.sync(stream)
    rows, state = lake.rows(), lake.state
    for number, shop in enumerate("abc", 10):
        lake.give(number, 2, "new", shop=shop)
    since = python_sources.since

    def fails_for_b(shop: str, *more: Any) -> Any:
        if shop == "b":
            raise OSError("the network is away")
        return since(shop, *more)

    with monkeypatch.context() as patched:
        patched.setattr(python_sources, "since", fails_for_b)
        with pytest.raises(Exception, match="the network is away"):
            lake.sync(stream)
        assert {shop for shop, _, _ in ASKED} == {"a", "c"}
    assert (lake.rows(), lake.state) == (rows, state)
    lake.sync(stream)
    assert {shop for shop, _, _ in ASKED} == {"b"}
    assert lake.rows() == [*rows, (10, "new"), (11, "new"), (12, "new")]
    assert lake.state == {f'{{"shop":"{shop}"}}': {"version": 2} for shop in "abc"}


def test_a_slice_that_is_not_listed_any_more_keeps_its_state(lake: Lake) -> None:
    lake.config = {"shops": ["a", "b"]}
    lake.give(1, 1)
    lake.give(2, 2, shop="b")
    lake.sync()
    lake.config = {"shops": ["a"]}
    lake.give(3, 3)
    lake.sync()
    assert lake.state == {'{"shop":"a"}': {"version": 3}, '{"shop":"b"}': {"version": 2}}


def test_a_record_may_remove_its_row(lake: Lake) -> None:
    lake.give(1, 1)
    lake.give(2, 2)
    lake.sync()
    ROWS.append({"id": 1, "version": 3, "value": "x", "shop": "a", "_rfr_deleted": True})
    lake.sync()
    assert lake.rows() == [(2, "x")]
    assert "_rfr_deleted" not in lake.table.schema().column_names


def test_a_state_that_moves_without_a_row_is_kept_in_a_commit_of_its_own(lake: Lake) -> None:
    lake.give(1, 1)
    lake.sync("feed")
    assert lake.state == {'{"shop":"a"}': {"delta": "1"}}
    assert lake.sync("feed").rows == 1
    assert lake.state == {'{"shop":"a"}': {"delta": "2"}}


def test_a_full_refresh_begins_anew_and_keeps_the_state_that_it_ends_with(lake: Lake) -> None:
    lake.give(1, 5)
    lake.sync()
    ROWS.clear()
    lake.give(2, 3)
    lake.sync(sync="full", options={"mode": "replace"})
    assert (lake.rows(), lake.state) == ([(2, "x")], {'{"shop":"a"}': {"version": 3}})


def test_a_full_refresh_that_gives_its_state_up_removes_deleted_rows_at_a_second_try_too(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.give(1, 1)
    lake.sync(sync="full", options={"mode": "replace"})
    # No cursor of integers has a fraction, so no state can be kept.
    ROWS[:] = [
        {"id": number, "version": 0.5, "value": "x", "shop": "a", "_rfr_deleted": number == 2} for number in (1, 2)
    ]
    tries: list[TargetTable] = []

    def add_column(target: TargetTable, *_: Any, **__: Any) -> None:
        tries.append(target)
        if len(tries) == 1:
            with lake.table.update_schema() as update:
                update.add_column("category", StringType())

    intercept(TargetTable, "commit", before=add_column, put=monkeypatch.setattr)
    lake.sync(sync="full", options={"mode": "replace"})
    # The first meets a conflict, the second finds the other column, the third has files with it.
    assert len(tries) == 3
    assert (lake.rows(), lake.state) == ([(1, "x")], None)


def test_a_paged_stream_goes_on_at_its_page_in_another_process(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.give(0, 0)
    lake.sync("paged")
    for number in range(1, 8):
        lake.give(number, number)
    attempts = []

    def dies(stream: Any, stream_slice: Any, token: Any) -> Any:
        if token == 4:
            raise OSError("the network is away")
        return read(stream, stream_slice, token)

    read = python_sources.Paged.read_page
    with monkeypatch.context() as patched:
        patched.setattr(python_sources.Paged, "read_page", dies)
        with pytest.raises(Exception, match="the network is away"):
            lake.sync("paged")
        attempts += ASKED
    assert attempts == [("a", 0, 0), ("a", 0, 2)]
    code = forked.exit_code(forked.start(_resumed, (tmp_path, list(ROWS))))
    assert code == 0
    assert lake.rows() == [(number, "x") for number in range(8)]
    assert lake.state == {'{"shop":"a"}': {"version": 7}}


def _resumed(task: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, ROWS[:] = task
    Lake(folder).sync("paged")
    assert ASKED == [("a", 0, 4), ("a", 0, 6), ("a", 0, 8)], ASKED


@pytest.mark.parametrize(
    ("stream", "more"),
    [("nested", {}), ("keyless", {}), ("sliced", {"window": "1/2"})],
)
def test_what_can_not_be_synced_is_said_before_a_request(lake: Lake, stream: str, more: dict[str, Any]) -> None:
    lake.give(1, 1)
    with raises(ConfigurationError):
        lake.sync(stream, **more)
    assert not ASKED


def test_a_state_that_is_no_mapping_is_refused(lake: Lake) -> None:
    lake.give(1, 1)
    with raises(ConfigurationError):
        lake.sync("no_mapping")
    assert not lake.catalog.table_exists(TABLE)


class Client:
    """The client of docs/python_sources.md."""

    def __init__(self, key: str) -> None:
        assert key == "k"

    def shops(self) -> list[str]:
        return ["a"]

    def orders(self, shop: str, since: str, page: int | None = None) -> Any:
        ASKED.append((shop, since, page))
        rows = [row for row in ROWS if row["updated_at"] >= since]
        if page is None:
            return rows
        return SimpleNamespace(rows=rows[2 * page - 2 : 2 * page], next_page=page + 1 if len(rows) > 2 * page else None)


@pytest.mark.parametrize("is_paged", [False, True])
def test_the_streams_of_the_docs_are_synced(lake: Lake, is_paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    section = (ROOT / "docs" / "python_sources.md").read_text().partition("## Incremental streams in Python")[2]
    sliced, paged = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    if is_paged:
        head, shared = sliced.partition("    def read_records")[0].split("class Orders(StateMixin, Stream):")
        code = f"{head}{paged.replace('    ...', shared)}"
    else:
        code = sliced
    module = ModuleType("streams_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(Client=Client, Page=Page, PagedStream=PagedStream)
    exec(compile(code, "python_sources.md", "exec"), vars(module))
    lake.config, lake.module = {"api_key": "k"}, module.__name__
    for number in range(5):
        ROWS.append({"id": number, "updated_at": f"2026-01-0{number + 1}T00:00:00Z", "value": "x"})
    assert lake.sync("orders").rows == 5
    assert {since for _, since, _ in ASKED} == {"2024-01-01T00:00:00Z"}
    ROWS.append({"id": 1, "updated_at": "2026-01-07T00:00:00Z", "value": "changed"})
    figures = lake.sync("orders")
    assert {since for _, since, _ in ASKED} == {"2026-01-05T00:00:00Z"}
    assert figures.changes is not None
    assert (figures.changes["updated"], figures.changes["unchanged"]) == (1, 1)
    assert lake.state == {'{"shop":"a"}': {"updated_at": "2026-01-07T00:00:00Z"}}
