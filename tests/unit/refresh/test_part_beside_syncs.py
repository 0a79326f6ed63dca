"""A refresh of a part (``replace_where``) beside the table's syncs, which have another ledger and don't wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.lake.sync_state import read_state, write_state
from airflow_provider_rfr.lake.target import GENERATION_KEY, TargetTable
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.refresh.engine import Refresh
from airflow_provider_rfr.refresh.publish import Publisher
from airflow_provider_rfr.refresh.state import read_header
from tests.unit.messages import raises
from tests.unit.refresh.changing_source import ASKED, RECORDS
from tests.unit.refresh.in_driver import TABLE
from tests.unit.refresh.test_incremental import Shop, begun, counted, fails
from tests.unit.refresh.test_incremental import shop as shop


def refresh_part(shop: Shop, run: str = "part/r/t/-1/0") -> RefreshFigures:
    """Replace the rows of shop ``a`` by what the API has of it."""
    shop.config = {"shops": ["a"]}
    return shop.sync(full=True, run=run, replace_where="shop = 'a'")


def sync(shop: Shop) -> RefreshFigures:
    shop.config = {"shops": ["a", "b"]}
    return shop.sync()


def begun_in_both(shop: Shop) -> None:
    """Sync three rows of shop ``a``, and one of shop ``b``."""
    shop.change(9, 0, shop="b")
    shop.config = {"shops": ["a", "b"]}
    begun(shop)


def change_and_sync(shop: Shop) -> None:
    """Change a row of the part, delete one, and move one to the other shop; sync that."""
    RECORDS[:] = [record for record in RECORDS if record["shop"] == "b"]
    shop.change(0, 10, "new")
    shop.change(1, 10, deleted=True)
    shop.change(2, 10, "moved", shop="b")
    assert counted(sync(shop)) == {"updated": 2, "deleted": 1, "unchanged": 1}


AFTER = [(0, "new"), (2, "moved"), (9, "x")]


def first(patch: pytest.MonkeyPatch, target: type, name: str, act: Callable[[], Any]) -> None:
    """Act once, when the method is called the next time."""
    method = getattr(target, name)

    def act_first(*arguments: Any, **more: Any) -> Any:
        patch.setattr(target, name, method)
        act()
        return method(*arguments, **more)

    patch.setattr(target, name, act_first)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(Publisher, "publish", id="before the publish"),
        pytest.param(TargetTable, "commit", id="between the check and the commit"),
    ],
)
def test_a_part_that_was_read_before_a_sync_is_not_published_after_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, target: type, name: str
) -> None:
    begun_in_both(shop)
    first(monkeypatch, target, name, lambda: change_and_sync(shop))
    with raises(LedgerError):
        refresh_part(shop)
    assert shop.rows() == AFTER
    refresh_part(shop)
    assert ASKED, "the retry reads the part again"
    assert shop.rows() == AFTER
    assert counted(sync(shop)) == {"unchanged": 2, "unknown_deletions": 1}


def test_a_part_that_was_refused_leaves_no_files(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun_in_both(shop)
    folder = Path(shop.properties["warehouse"][7:]) / "raw/orders/data"
    after_the_sync: set[Path] = set()

    def note() -> None:
        change_and_sync(shop)
        after_the_sync.update(folder.glob("*"))

    first(monkeypatch, Publisher, "publish", note)
    with pytest.raises(LedgerError):
        refresh_part(shop)
    assert set(folder.glob("*")) == after_the_sync


def test_pages_of_a_part_are_kept_for_the_retry_unless_a_sync_came_between(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_in_both(shop)
    for comes_between in (False, True):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(Publisher, "publish", fails)
            refresh_part(shop, run=f"part/{comes_between}/t/-1/0")
        if comes_between:
            change_and_sync(shop)
        refresh_part(shop, run=f"part/{comes_between}/t/-1/0")
        assert bool(ASKED) is comes_between
    assert shop.rows() == AFTER


def test_a_part_is_published_beside_a_sync_that_leaves_the_state_as_it_is(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_in_both(shop)
    shop.table.delete("id = 1")
    shop.change(7, -1, "without a place in the state", shop="b")
    first(monkeypatch, Publisher, "publish", lambda: sync(shop))
    assert refresh_part(shop).rows == 3
    assert [number for number, _ in shop.rows()] == [0, 1, 2, 9]


def test_a_part_of_a_table_without_a_state_waits_for_no_sync_but_is_not_published_after_the_first(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.change(0, 0)
    refresh_part(shop)
    assert shop.rows() == [(0, "x")]
    RECORDS[0]["value"] = "as the part reads it"

    def change_and_sync_first() -> None:
        RECORDS[0]["value"] = "new"
        sync(shop)

    first(monkeypatch, Publisher, "publish", change_and_sync_first)
    with pytest.raises(LedgerError, match="was synced"):
        refresh_part(shop, run="part/r2/t/-1/0")
    assert shop.rows() == [(0, "new")]


def test_the_try_after_a_publish_reads_nothing_whatever_was_synced_since(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_in_both(shop)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
        patched.setattr(Refresh, "_mark_published", fails)
        refresh_part(shop)
    change_and_sync(shop)
    assert refresh_part(shop).already_published
    assert not ASKED
    assert shop.rows() == AFTER


def test_a_part_needs_no_state_that_can_be_read(shop: Shop) -> None:
    begun_in_both(shop)
    state = read_state(shop.table)
    assert state is not None
    more = {f'{{"shop":"{number}"}}': "2024-01-01T00:00:00.000000Z" for number in range(1000)}
    write_state(shop.catalog, TABLE, replace(state, values={**state.values, **more}))
    for file in Path(shop.properties["warehouse"][7:]).glob("raw/orders/metadata/*.puffin"):
        file.unlink()
    assert refresh_part(shop).rows == 3


def test_the_header_of_a_part_is_that_of_a_full_refresh(shop: Shop) -> None:
    begun_in_both(shop)
    refresh_part(shop)
    header = read_header(LedgerTable.load_or_create(shop.catalog, TABLE, part_of("shop = 'a'")).summary(GENERATION_KEY))
    assert header is not None
    assert (header.sync, header.window) == ("full refresh", None)
    assert header.base_state is not None
