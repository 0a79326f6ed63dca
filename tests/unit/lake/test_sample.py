"""Rows of a table for people: how many, of which columns, and nothing secret among them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from airflow_provider_rfr.lake.catalog import LakeSettings, create_table, open_catalog
from airflow_provider_rfr.lake.sample import TableSample, sample_of

CANARY = "c4n4ry-s3cr3t"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    return open_catalog(LakeSettings("rfr", properties))


def table_of(catalog: Catalog, rows: pa.Table) -> Table:
    table = create_table(catalog, "raw.orders", rows.schema)
    table.append(rows)
    return table


def test_ten_rows_are_shown_with_long_values_cut(catalog: Catalog) -> None:
    columns = {"id": range(1000), "text": ["x\ny" * 500] * 1000, "none": pa.nulls(1000, pa.string())}
    rows = pa.table({**columns, "image": pa.array([b"12345"] * 1000)})
    found = sample_of(table_of(catalog, rows))
    assert (found.columns, found.hidden, found.more, found.why) == (("id", "text", "none", "image"), (), 0, "")
    assert [row[0] for row in found.rows] == [str(number) for number in range(10)]
    identity, text, none, image = found.rows[0]
    assert (identity, none, image) == ("0", "", "5 bytes")
    assert text.startswith("x yx") and len(text) < 110


def test_no_secret_is_shown_wherever_it_is(catalog: Catalog) -> None:
    rows = pa.table(
        {
            "id": [1],
            "api_key": [CANARY],
            "login": [{"user": "me", "password": CANARY}],
            "logins": [[{"token": CANARY}]],
            "text": [json.dumps({"deep": [{"client_secret": CANARY}]})],
            "address": [f"https://me:{CANARY}@api.example/x?access_token={CANARY}"],
        }
    )
    found = sample_of(table_of(catalog, rows))
    assert found.hidden == ("api_key",)
    assert found.columns == ("id", "login", "logins", "text", "address")
    assert CANARY not in str(found)
    assert "me" in found.rows[0][1]


def test_a_renamed_column_has_the_values_of_old_files_and_a_new_one_has_none(catalog: Catalog) -> None:
    table = table_of(catalog, pa.table({"id": [1], "old": ["a"]}))
    with table.update_schema() as update:
        update.rename_column("old", "new")
        update.add_column("added", table.schema().find_type("old"))
    assert sample_of(catalog.load_table("raw.orders")) == TableSample(("id", "new", "added"), (("1", "a", ""),))


def test_a_wide_table_is_shown_in_part(catalog: Catalog) -> None:
    found = sample_of(table_of(catalog, pa.table({f"c{number}": [number] for number in range(40)})))
    assert (len(found.columns), len(found.rows[0]), found.more) == (30, 30, 10)


def test_a_table_without_rows_says_so(catalog: Catalog) -> None:
    empty = create_table(catalog, "raw.empty", pa.schema([pa.field("id", pa.int64())]))
    assert sample_of(empty).why == "The table has no rows."
    table = table_of(catalog, pa.table({"id": [1]}))
    table.delete()
    assert sample_of(catalog.load_table("raw.orders")) == TableSample(why="The table has no rows.")


def test_rows_that_another_program_deleted_are_not_shown() -> None:
    snapshot = SimpleNamespace(manifests=lambda _: [SimpleNamespace(content=ManifestContent.DELETES)])
    table: Any = SimpleNamespace(current_snapshot=lambda: snapshot, io=None)
    assert "Another program deleted rows" in sample_of(cast(Table, table)).why
