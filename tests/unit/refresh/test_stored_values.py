"""Values stay as they are over incremental syncs, and a full refresh stores the same ones."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from tests.unit.refresh.changing_source import RECORDS
from tests.unit.refresh.test_incremental import Shop, counted
from tests.unit.refresh.test_incremental import shop as shop


def stored(shop: Shop, *names: str) -> list[tuple[Any, ...]]:
    """Return columns of the rows as the files hold them, by id."""
    files = [task.file.file_path.removeprefix("file://") for task in shop.table.scan().plan_files()]
    rows = (row for file in files for row in pq.read_table(file, columns=["id", *names]).to_pylist())
    return [tuple(row[name] for name in names) for row in sorted(rows, key=lambda row: row["id"])]


ITEMS = [{"sku": "a"}]


def test_rows_that_a_merge_only_moves_keep_a_null_list_of_objects(shop: Shop) -> None:
    for number, items in enumerate((ITEMS, None, [], ITEMS)):
        shop.change(number, number, items=items)
    shop.sync()
    shop.change(0, 10, "new", items=ITEMS)
    assert counted(shop.sync()) == {"updated": 1, "unchanged": 1}
    assert stored(shop, "items") == [(ITEMS,), (None,), ([],), (ITEMS,)]


def test_an_equal_record_with_a_null_list_of_objects_is_unchanged(shop: Shop) -> None:
    shop.change(0, 0, items=ITEMS)
    shop.change(1, 1, items=None)
    shop.sync()
    assert counted(shop.sync()) == {"unchanged": 1}


def test_append_without_a_key_adds_a_row_with_a_null_list_of_objects_once(shop: Shop) -> None:
    shop.config = {"key": None, "deletes": False}
    shop.change(0, 1, items=ITEMS)
    shop.change(1, 1, items=None)
    shop.sync("append")
    assert counted(shop.sync("append")) == {"unchanged": 2}


def test_rows_beside_a_part_that_is_replaced_keep_a_null_list_of_objects(shop: Shop) -> None:
    for number, items in enumerate((ITEMS, None, ITEMS)):
        shop.change(number, number, str(number), items=items)
    shop.sync()
    del RECORDS[:-1]
    shop.sync(full=True, replace_where="value = '2'")
    assert stored(shop, "items") == [(ITEMS,), (None,), (ITEMS,)]
