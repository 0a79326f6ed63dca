"""A publish beside a writer that commits to the same table all the time: it gets through, and no row is lost."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.table.update.snapshot import _SnapshotProducer

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.rows import append_rows
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh import publish
from tests.unit.messages import raises
from tests.unit.refresh.test_failed_publish import ASKED, MONDAY, TABLE, TUESDAY, Shop, shop, source_gives

__all__ = ["shop"]

TIMES = 12


class Writer:
    """Appends a row between the load of the table and the commit, at each of the first tries.

    :ivar manifests: of the table, written by the publish and by the writer
    """

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch, times: float = TIMES) -> None:
        self.conflicts = self.manifests = 0
        commit, new_manifest = TargetTable.commit, _SnapshotProducer.new_manifest_writer

        def late(target: TargetTable, *args: Any, **kwargs: Any) -> Any:
            if self.conflicts < times:
                append_rows(shop.catalog, TABLE, [{"id": 100 + self.conflicts, "amount": 0}])
            try:
                return commit(target, *args, **kwargs)
            except CommitConflictError:
                self.conflicts += 1
                raise

        def counted(producer: Any, *args: Any, **kwargs: Any) -> Any:
            self.manifests += producer._transaction._table.name() == tuple(TABLE.split("."))
            return new_manifest(producer, *args, **kwargs)

        monkeypatch.setattr(TargetTable, "commit", late)
        monkeypatch.setattr(_SnapshotProducer, "new_manifest_writer", counted)


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_publish_gets_through_and_an_append_writes_its_manifest_once(
    mode: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(MONDAY)
    writer = Writer(shop, monkeypatch)
    source_gives({"id": 2, "amount": 7}, {"id": 3, "amount": 8})
    figures = shop.run(TUESDAY, mode=mode)
    assert writer.conflicts == TIMES
    others = list(range(100, 100 + TIMES))
    assert sorted(shop.rows["id"].to_pylist()) == ([1, 2, 3, *others] if mode == "append" else [2, 3])
    table = shop.catalog.load_table(TABLE)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == figures.snapshot_id
    added = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
    assert {each.sequence_number for each in added} == {snapshot.sequence_number}
    for manifest in added:
        for entry in manifest.fetch_manifest_entry(table.io):
            assert (entry.snapshot_id, entry.sequence_number) == (snapshot.snapshot_id, snapshot.sequence_number)
    if mode == "append":
        assert writer.manifests == TIMES + 1, "the publish wrote its manifest again"


def test_a_publish_that_never_gets_through_keeps_what_was_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run(MONDAY)
    source_gives(id=2, amount=7)
    with monkeypatch.context() as busy:
        Writer(shop, busy, times=float("inf"))
        busy.setattr(publish, "_COMMIT_SECONDS", 0.0)
        with raises(LedgerError):
            shop.run(TUESDAY, mode="append")
    figures = shop.run(TUESDAY, mode="append")
    assert (figures.resumed, len(ASKED)) == (True, 2)
    assert sorted(shop.rows["id"].to_pylist()) == [1, 2, 100]
