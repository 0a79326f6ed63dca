"""Keys of a batch and of the table's rows, as they are sorted and searched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.merge_task import PLACE_COLUMN, ChangeBatch, IndexedFile, KeyRules, write_index

STORE = FileStore({})
ID = (("a",),)


def rows_of(kind: pa.DataType, *texts: str) -> pa.Table:
    values = [[text] if pa.types.is_list(kind) else text for text in texts]
    times = pa.array([0] * len(texts), pa.timestamp("us", "UTC"))
    places = pa.array(range(len(texts)), pa.int32())
    return pa.table({"a": pa.array(values, kind), "_rfr_extracted_at": times, PLACE_COLUMN: places})


@pytest.mark.parametrize(
    ("kind", "primary_key"), [(pa.string(), ID), (pa.binary(), ID), (pa.string(), ()), (pa.list_(pa.string()), ())]
)
def test_columns_of_more_than_two_gib_are_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, primary_key: Any
) -> None:
    rules, joined, make = KeyRules(ID, None, primary_key), [], KeyRules.keys

    def keys(self: KeyRules, columns: Sequence[pa.Array]) -> pa.Array:
        made = make(self, columns)
        joined.append(len(columns[0]))
        assert made.type in (pa.large_string(), pa.large_binary())
        return made

    # Arrow refuses to join more than 2 GiB in one array of texts, but for large ones. So the parts stay apart.
    monkeypatch.setattr(KeyRules, "keys", keys)
    files = [rows_of(kind, "b", "c"), rows_of(kind, "a", "d"), rows_of(kind, "c", "e")]
    table = rules.keys_of(pa.concat_tables(files))
    assert (joined, len(table)) == ([2, 2, 2], 6)
    for number, file in enumerate(files):
        write_index(STORE, str(tmp_path / f"{number}.index"), file, rules, deleted=False)
    parts = [IndexedFile(str(tmp_path / f"{number}.index"), None) for number in range(3)]
    batch = ChangeBatch.load(STORE, str(tmp_path), parts, rules)
    assert joined[3:] == [2, 2, 2]
    assert batch.winners.select(["part", "row"]).to_pylist() == [
        {"part": part, "row": row} for part, row in ((1, 0), (0, 0), (0, 1), (1, 1), (2, 1))
    ]
    assert batch.losers.to_pylist() == [{"part": 2, "row": 0, "deleted": False, "winner": 2}]


def test_no_rows_have_no_keys() -> None:
    rules = KeyRules(ID, None, ID)
    assert len(rules.keys_of(rows_of(pa.string()))) == 0
