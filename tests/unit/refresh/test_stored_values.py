"""Values stay as they are over incremental syncs, and a full refresh stores the same ones."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform
from pyiceberg.types import IcebergType, ListType, LongType, StringType, UUIDType

from airflow_provider_rfr.refresh.merge_task import KeyRules, equal_rows
from tests.unit.refresh.changing_source import RECORDS
from tests.unit.refresh.test_incremental import Shop, begun, counted
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


def add_column(shop: Shop, name: str, kind: IcebergType, values: Any) -> None:
    """Let another writer add a column, and fill it in the rows by their ids."""
    with shop.table.update_schema() as update:
        update.add_column(name, kind)
    rows = shop.table.scan().to_arrow().sort_by("id")
    place = rows.schema.get_field_index(name)
    shop.table.overwrite(
        rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(name).type))
    )


UUIDS = [UUID(int=number).bytes for number in (3, 1, 2)]


def test_a_merge_keeps_a_uuid_column_of_others(shop: Shop) -> None:
    begun(shop)
    add_column(shop, "other", UUIDType(), UUIDS)
    shop.change(1, 10, "new")
    assert counted(shop.sync())["updated"] >= 1
    assert shop.table.scan().to_arrow().sort_by("id").to_pylist()[0]["other"] == UUID(bytes=UUIDS[0])


def test_append_without_a_key_takes_a_table_with_a_uuid_column(shop: Shop) -> None:
    shop.config = {"key": None, "deletes": False}
    begun(shop, mode="append")
    add_column(shop, "other", UUIDType(), [None] * 3)
    assert counted(shop.sync("append")) == {"unchanged": 1}


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4)], ids=str)
def test_rows_are_written_into_partitions_of_a_uuid(shop: Shop, transform: Transform[Any, Any]) -> None:
    begun(shop)
    add_column(shop, "other", UUIDType(), UUIDS)
    with shop.table.update_spec() as update:
        update.add_field("other", transform, "part")
    shop.change(1, 10, "new")
    shop.sync()
    assert shop.rows() == [(0, "x"), (1, "new"), (2, "x")]


def test_uuids_are_keys_and_are_compared() -> None:
    rows = pa.table({"id": pa.array([*UUIDS, None], pa.uuid()), "n": [1, 2, 3, 4]})
    for paths in ((("id",),), (("id",), ("n",))):
        rules = KeyRules(paths, None, paths)
        keys = rules.keys(rules.key_columns(rows))
        assert len(keys.sort()) == len(keys.unique()) == 4
    others = pa.table({"id": pa.array([*UUIDS[:2], None, None], pa.uuid()), "n": [1, 2, 3, 4]})
    assert equal_rows(rows, others, {"id", "n"}).tolist() == [True, True, False, True]


def test_an_equal_record_is_unchanged_whatever_other_writers_filled(shop: Shop) -> None:
    shop.change(0, 0, size={"width": 1}, parts=[{"n": 1}])
    shop.sync()
    for name in ("category", "_dlt_id", "_airbyte_raw_id"):
        add_column(shop, name, StringType(), ["gold"])
    add_column(shop, "seen", ListType(90, LongType(), False), [[1]])
    assert counted(shop.sync()) == {"unchanged": 1}
    with shop.table.update_schema() as update:
        update.add_column(("size", "unit"), StringType())
        update.add_column(("parts", "element", "unit"), StringType())
    rows = shop.table.scan().to_arrow()
    filled = [{**row, "size": {"width": 1, "unit": "cm"}, "parts": [{"n": 1, "unit": "x"}]} for row in rows.to_pylist()]
    shop.table.overwrite(pa.Table.from_pylist(filled, schema=rows.schema))
    assert counted(shop.sync()) == {"unchanged": 1}
    assert shop.table.scan().to_arrow().to_pylist() == filled


def test_a_change_inside_of_an_object_is_an_update(shop: Shop) -> None:
    values: list[dict[str, Any]] = [
        {"size": {"width": 1}, "parts": [{"n": 1}], "note": {"a": {"b": 1}}},
        {"size": {"width": 2}, "parts": [{"n": 1}], "note": {"a": {"b": 1}}},
        {"size": {"width": 2}, "parts": [{"n": 2}], "note": {"a": {"b": 1}}},
        {"size": {"width": 2}, "parts": [{"n": 2}, {"n": 2}], "note": {"a": {"b": 1}}},
        {"size": {"width": 2}, "parts": [{"n": 2}, None], "note": {"a": {"b": 1}}},
        {"size": None, "parts": [{"n": 2}, None], "note": {"a": {"b": 1}}},
        {"size": None, "parts": [{"n": 2}, None], "note": {"a": {"b": None}}},
    ]
    shop.change(0, 0, **values[0])
    shop.sync()
    for value in values[1:]:
        RECORDS.clear()
        shop.change(0, 0, **value)
        assert counted(shop.sync()) == {"updated": 1}
    assert counted(shop.sync()) == {"unchanged": 1}


def test_a_field_that_becomes_null_in_the_only_record_is_an_update(shop: Shop) -> None:
    shop.change(0, 0, note="a", size={"width": 1, "height": 1})
    shop.sync()
    RECORDS.clear()
    shop.change(0, 0, note="a", size={"width": 1, "height": None})
    assert counted(shop.sync()) == {"updated": 1}
    RECORDS.clear()
    shop.change(0, 0, note=None, size={"width": 1, "height": None})
    assert counted(shop.sync()) == {"updated": 1}
    assert stored(shop, "note", "size") == [(None, {"width": 1, "height": None})]


FULL: dict[str, Any] = {
    "tags": ["a"],
    "size": {"width": 1},
    "parts": [{"n": 1, "marks": ["x"]}],
    "note": {"marks": ["x"], "inside": {"a": 1}},
    "mixed": {"a": 1},
}
EMPTY: dict[str, Any] = {
    "tags": [],
    "size": {},
    "parts": [{"n": 1, "marks": []}],
    "note": {"marks": [], "inside": {}},
    "mixed": [],
}
EMPTY_STORED = ([], {"width": None}, EMPTY["parts"], {"marks": [], "inside": {"a": None}}, "[]")


def test_what_is_empty_in_all_records_of_a_batch_is_not_null(shop: Shop) -> None:
    shop.change(0, 0, **FULL)
    shop.change(1, 1, **{**FULL, "mixed": [1]})
    shop.change(2, 2, **EMPTY)
    shop.sync()
    before = stored(shop, *FULL)
    assert before[2] == EMPTY_STORED
    assert counted(shop.sync()) == {"unchanged": 1}
    del RECORDS[0]
    shop.change(0, 10, **EMPTY)
    assert counted(shop.sync()) == {"updated": 1, "unchanged": 1}
    synced = stored(shop, *FULL)
    assert synced == [EMPTY_STORED, before[1], EMPTY_STORED]
    shop.sync(full=True)
    assert stored(shop, *FULL) == synced


def test_what_is_empty_in_all_records_of_the_source_is_the_same_by_a_full_refresh(shop: Shop) -> None:
    for number in range(2):
        shop.change(number, number, **{**FULL, "mixed": [[1], {"a": 1}][number]})
    shop.sync()
    RECORDS.clear()
    for number in range(2):
        shop.change(number, number + 10, **EMPTY)
    shop.sync()
    assert stored(shop, *FULL) == [EMPTY_STORED] * 2
    shop.sync(full=True)
    assert stored(shop, *FULL) == [EMPTY_STORED] * 2


@pytest.mark.parametrize("key", [None, "id"])
def test_append_adds_a_row_with_an_empty_list_once(shop: Shop, key: str | None) -> None:
    shop.config = {"key": key, "deletes": False}
    shop.change(0, 0, tags=["a"])
    shop.change(1, 1, tags=[])
    shop.sync("append")
    assert counted(shop.sync("append")) == {"unchanged": 1}
    shop.change(2, 2, tags=[])
    assert counted(shop.sync("append")) == {"inserted": 1, "unchanged": 1}
    assert stored(shop, "tags") == [(["a"],), ([],), ([],)]


def test_a_part_that_is_replaced_keeps_empty_lists(shop: Shop) -> None:
    for number in range(2):
        shop.change(number, number, str(number), tags=["a"])
    shop.sync()
    RECORDS.clear()
    shop.change(1, 1, "1", tags=[])
    shop.sync(full=True, replace_where="value = '1'")
    assert stored(shop, "tags") == [(["a"],), ([],)]


def test_texts_of_a_batch_with_an_object_get_no_quotes(shop: Shop) -> None:
    for number in range(3):
        shop.change(number, number, free="a", size={"unit": "cm"})
    shop.sync()
    shop.change(3, 3, free={"x": 1}, size={"unit": {"cm": 1}})
    assert counted(shop.sync()) == {"inserted": 1, "unchanged": 1}
    assert counted(shop.sync()) == {"unchanged": 1}
    synced = stored(shop, "free", "size")
    assert synced == [("a", {"unit": "cm"})] * 3 + [('{"x":1}', {"unit": '{"cm":1}'})]
    shop.sync(full=True)
    assert stored(shop, "free", "size") == synced


def test_texts_in_a_column_of_json_texts_always_have_quotes(shop: Shop) -> None:
    shop.change(0, 0, free="a")
    shop.change(1, 1, free={"x": 1})
    shop.sync()
    shop.change(2, 2, free="b")
    assert counted(shop.sync()) == {"inserted": 1, "unchanged": 1}
    synced = stored(shop, "free")
    assert synced == [('"a"',), ('{"x":1}',), ('"b"',)]
    del RECORDS[1]
    shop.sync(full=True)
    assert stored(shop, "free") == [synced[0], synced[2]]
