"""Publishes that fail, and the run after; publishes beside a steady writer. With threads in the place of Spark."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.types import StringType

from airflow_provider_rfr.exceptions import (
    CatalogError,
    ConfigurationError,
    FencedError,
    LedgerError,
    PublishRefusedError,
    ReconciliationError,
    SchemaEvolutionError,
    TypeMismatchError,
)
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.rows import append_rows
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh import publish
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.refresh.config import RefreshConfig, parse_config
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from airflow_provider_rfr.streams import Page, PagedStream
from tests.headers import read_status
from tests.kill_points import meanwhile
from tests.unit.messages import check_messages, raises
from tests.unit.refresh.in_driver import killed_before_the_mark, refresh_of

TABLE = "raw.orders"
MONDAY, TUESDAY, WEDNESDAY = (f"shop/{day}/refresh/-1/0" for day in ("monday", "tuesday", "wednesday"))
RECORDS: list[dict[str, Any]] = []
"""What the source gives now."""
ASKED: list[str] = []
NUMBER = {"type": "object", "properties": {"id": {"type": "integer"}, "amount": {"type": "integer"}}}


class Orders(PagedStream):
    """One partition with one page."""

    name = "orders"
    addressable = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.public_config: Mapping[str, Any] = {}
        self.json_schema = config.get("schema")

    def private_copy(self) -> Orders:
        return self

    def fingerprint(self) -> dict[str, Any]:
        return {"name": self.name}

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        ASKED.append(self.name)
        return Page([dict(record) for record in RECORDS], None)


class NobodyWaits(threading.Event):
    """Fails a run that waits for another one."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("it waits for a run that is over")


class Shop:
    """A lake, and refreshes of it."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "catalog.db"
        self.properties = {"type": "sql", "uri": f"sqlite:///{self.database}", "warehouse": f"file://{folder}/w"}
        self.catalog = open_catalog(LakeSettings("rfr", self.properties))

    def run(self, key: str | None, schema: Any = None, **options: Any) -> RefreshFigures:
        return refresh_of(self._config(key, schema, options), self.catalog, NobodyWaits()).run()

    def _config(self, key: str | None, schema: Any, options: Mapping[str, Any]) -> RefreshConfig:
        source = {"class": f"{__name__}:Orders", "config": {"schema": schema} if schema else {}}
        document = {"source": source, "streams": ["orders"], "target": TABLE, "run": {"key": key}}
        lake = {"name": "rfr", "properties": self.properties}
        return parse_config({**document, "lake": lake, "options": options})

    @property
    def rows(self) -> pa.Table:
        return self.catalog.load_table(TABLE).scan().to_arrow()

    @property
    def header(self) -> LedgerHeader:
        found = read_status(LakeSettings("rfr", self.properties), TABLE)
        assert found is not None
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    ASKED.clear()
    source_gives(id=1, amount=5)
    return Shop(tmp_path)


def source_gives(*records: dict[str, Any], **record: Any) -> None:
    RECORDS[:] = [*records, *([record] if record else [])]


def cut_off(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(TargetTable, "prepare", fail)


REFUSALS = {
    "schema evolution": (SchemaEvolutionError, {"id": 1, "amount": 5, "note": "x"}, None, {"on_schema_change": "fail"}),
    "names that differ by case": (ConfigurationError, {"id": 1, "amount": 5, "AMOUNT": 6}, None, {}),
    "column types": (TypeMismatchError, {"id": 1, "amount": "much"}, NUMBER, {}),
    "no rows": (PublishRefusedError, {}, None, {}),
    "rows outside of the part": (PublishRefusedError, {"id": 1, "amount": 5}, NUMBER, {"replace_where": "id = 2"}),
}


@pytest.mark.parametrize("key", [TUESDAY, f"{MONDAY[:-1]}1", None], ids=["next run", "clear", "laptop"])
@pytest.mark.parametrize("case", ["schema evolution", "names that differ by case", "column types", "no rows"])
def test_after_a_refused_publish_the_next_run_reads_the_repaired_source_at_once(
    case: str, key: str | None, shop: Shop
) -> None:
    error, broken, schema, options = REFUSALS[case]
    shop.run("shop/sunday/refresh/-1/0", schema)
    source_gives(**broken)
    with pytest.raises(error):
        shop.run(MONDAY if key else None, schema, **options)
    assert shop.header.refused_under and shop.header.ended_at
    assert (shop.header.error or "").startswith(error.__name__)
    source_gives(id=2, amount=7)
    figures = shop.run(key, schema, **options)
    assert (figures.generation, figures.rows) == (3, 1)
    assert shop.rows["amount"].to_pylist() == [7]
    assert len(ASKED) == 3


def test_names_with_dots_leave_the_next_run_free_whatever_becomes_of_them(shop: Shop) -> None:
    source_gives({"id": 1, "a.b": 1, "a": {"b": 2}})
    with contextlib.suppress(Exception):
        shop.run(MONDAY)
    source_gives(id=2, amount=7)
    shop.run(TUESDAY)
    assert shop.rows["amount"].to_pylist() == [7]


def test_an_error_that_nobody_foresaw_is_taken_for_one_of_the_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        cut_off(broken, ValueError("Invalid schema, multiple fields for name a.b: 13 and 4"))
        with raises(ValueError):
            shop.run(MONDAY)
    source_gives(id=2, amount=7)
    shop.run(TUESDAY)
    assert shop.rows["amount"].to_pylist() == [7]


def test_a_retry_of_a_refused_publish_asks_for_nothing(shop: Shop) -> None:
    source_gives(id=1, amount="much")
    for _ in range(2):
        with pytest.raises(TypeMismatchError):
            shop.run(MONDAY, NUMBER)
    assert len(ASKED) == 1
    assert (shop.header.generation, shop.header.attempts) == (1, 2)


@pytest.mark.parametrize("key", [MONDAY, TUESDAY, None], ids=["retry", "next run", "laptop"])
def test_what_was_refused_is_published_without_a_request_once_an_option_or_the_schema_allows_it(
    key: str | None, shop: Shop
) -> None:
    source_gives(id=1, amount="much")
    with pytest.raises(TypeMismatchError):
        shop.run(MONDAY if key else None, NUMBER)
    figures = shop.run(key, NUMBER, on_type_error="null")
    assert (figures.generation, figures.rows, len(ASKED)) == (1, 1, 1)


def test_what_was_refused_is_published_without_a_request_once_the_table_can_take_it(shop: Shop) -> None:
    shop.run("shop/sunday/refresh/-1/0")
    source_gives(id=1, amount=6, note="x")
    with pytest.raises(SchemaEvolutionError):
        shop.run(None, on_schema_change="fail")
    with shop.catalog.load_table(TABLE).update_schema() as update:
        update.add_column("note", StringType())
    shop.run(None, on_schema_change="fail")
    assert shop.rows["note"].to_pylist() == ["x"]
    assert len(ASKED) == 2


@pytest.mark.parametrize("key", [MONDAY, TUESDAY, None], ids=["retry", "next run", "laptop"])
def test_after_a_full_disk_the_same_generation_goes_on_at_once_and_nothing_is_fetched_again(
    key: str | None, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileStore.write

    def full(store: FileStore, location: str, data: Any) -> int:
        if "/raw/orders/data/" in location:
            raise OSError(errno.ENOSPC, "No space left on device", location)
        return write(store, location, data)

    with monkeypatch.context() as broken:
        broken.setattr(FileStore, "write", full)
        with raises(OSError):
            shop.run(MONDAY if key else None)
    assert shop.header.ended_at and shop.header.refused_under is None
    figures = shop.run(key)
    assert (figures.generation, figures.attempts, figures.resumed, len(ASKED)) == (1, 2, True, 1)
    assert shop.rows["amount"].to_pylist() == [5]


@pytest.mark.parametrize("key", [MONDAY, TUESDAY], ids=["retry", "next run"])
def test_after_a_lost_catalog_the_same_generation_goes_on_at_once_and_nothing_is_fetched_again(
    key: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, away = TargetTable.prepare, shop.database.with_suffix(".away")

    def lose(*args: Any, **kwargs: Any) -> Any:
        planned = prepare(*args, **kwargs)
        shop.catalog.engine.dispose()  # type: ignore[attr-defined]
        shop.database.rename(away)
        shop.database.mkdir()
        return planned

    with monkeypatch.context() as broken:
        broken.setattr(TargetTable, "prepare", lose)
        with raises(CatalogError):
            shop.run(MONDAY)
    shop.database.rmdir()
    away.rename(shop.database)
    assert shop.header.ended_at is None, "it could not be said in the catalog"
    figures = shop.run(key)
    assert (figures.generation, figures.resumed, len(ASKED)) == (1, True, 1)
    assert shop.rows["amount"].to_pylist() == [5]


def test_counts_that_differ_are_read_again_by_the_next_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        cut_off(broken, ReconciliationError("5 records are staged, 4 were written"))
        with pytest.raises(ReconciliationError):
            shop.run(MONDAY)
    assert shop.run(TUESDAY, on_busy="take_over").generation == 2


def test_a_generation_whose_driver_was_killed_before_it_was_marked_is_kept_as_published(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_before_the_mark(monkeypatch):
        shop.run(MONDAY)
    assert shop.run(TUESDAY, on_busy="take_over").generation == 2
    assert shop.header.previous_rows == 1
    assert [(past.outcome, past.rows) for past in shop.header.past] == [("published", 1)]


def test_a_publish_deletes_no_file_of_a_part_whose_ledger_has_an_id_like_its_own(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catalogs that make UUIDs of version 7 give ledgers of one minute the same first digits."""
    load = LedgerTable.__init__

    def of_one_minute(self: LedgerTable, *arguments: Any, **names: Any) -> None:
        load(self, *arguments, **names)
        self.id = f"01995f3c{self.id[8:]}"

    monkeypatch.setattr(LedgerTable, "__init__", of_one_minute)
    for place in "ab":
        shop.run(f"shop/monday/{place}/-1/0", constants={"shop": place}, replace_where=f"shop = '{place}'")
    assert sorted(shop.rows["shop"].to_pylist()) == ["a", "b"]


def test_a_take_over_looks_again_for_the_files_that_a_live_predecessor_trims(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        cut_off(broken, OSError("away"))
        with pytest.raises(OSError, match="away"):
            shop.run(MONDAY)
    look = LedgerTable.committed_files
    refusals = [CommitConflictError("a file of the ledger as it was loaded is gone")]

    def trimmed(self: LedgerTable, generation: int) -> dict[str, int]:
        if refusals:
            raise refusals.pop()
        return look(self, generation)

    monkeypatch.setattr(LedgerTable, "committed_files", trimmed)
    assert shop.run(MONDAY).generation == 1
    assert shop.rows.num_rows == 1


def test_what_an_attempt_ends_with_is_told_without_secrets(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.properties["s3.secret-access-key"] = "hunter2hunter2"
    cut_off(monkeypatch, ValueError("signed with hunter2hunter2"))
    with raises(ValueError):
        shop.run(MONDAY)
    check_messages(shop.header.error)


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
    added = [
        manifest for manifest in snapshot.manifests(table.io) if manifest.added_snapshot_id == snapshot.snapshot_id
    ]
    assert {manifest.sequence_number for manifest in added} == {snapshot.sequence_number}
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


@pytest.mark.parametrize("on_busy", ["wait", "take_over"])
def test_a_run_that_opens_too_late_reads_after_the_faster_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, on_busy: str
) -> None:
    meanwhile(monkeypatch, Ledger, "open_generation", lambda: shop.run(MONDAY))
    assert shop.run(TUESDAY, on_busy=on_busy).generation == 2
    assert shop.header.run_key == TUESDAY
    assert shop.header.state is RefreshState.PUBLISHED


def test_a_run_that_takes_over_too_late_waits_for_the_faster_one(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_over() -> None:
        Ledger(LedgerTable.load_or_create(shop.catalog, TABLE)).take_over("p", TUESDAY)

    with monkeypatch.context() as broken, pytest.raises(CatalogError):
        cut_off(broken, CatalogError("down"))
        shop.run(MONDAY)
    meanwhile(monkeypatch, Ledger, "_commit_once", take_over)
    with pytest.raises(AssertionError, match="it waits"):
        shop.run(WEDNESDAY)
    assert (shop.header.run_key, shop.header.epoch) == (TUESDAY, 2)


def test_a_run_that_was_only_silent_is_not_taken_over(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Ledger(LedgerTable.load_or_create(shop.catalog, TABLE))
    silent.open_generation([("{}", {})], read_fingerprint="r", publish_fingerprint="p", run_key=MONDAY)
    late = Ledger(LedgerTable.load_or_create(shop.catalog, TABLE))
    meanwhile(monkeypatch, Ledger, "_commit_once", lambda: silent.commit([]))
    with pytest.raises(FencedError):
        late.take_over("p", TUESDAY)
    silent.commit([])
    assert (shop.header.run_key, shop.header.epoch) == (MONDAY, 1)


def test_a_run_that_lost_a_table_does_not_record_its_end_for_the_faster_one(shop: Shop) -> None:
    shop.run(MONDAY)
    slow, fast = (Ledger(LedgerTable.load_or_create(shop.catalog, TABLE)) for _ in range(2))
    slow.commit([], run_key=MONDAY)
    fast.look_again()
    fast.open_generation([("{}", {})], read_fingerprint="r", publish_fingerprint="p", run_key=TUESDAY)
    with pytest.raises(FencedError):
        slow.open_generation([("{}", {})], read_fingerprint="r", publish_fingerprint="p", run_key=WEDNESDAY)
    slow.look_again()
    slow.end("it is busy")
    assert (shop.header.run_key, shop.header.ended_at) == (TUESDAY, None)


def test_an_attempt_of_the_same_task_that_opens_too_late_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, Ledger, "open_generation", lambda: shop.run(MONDAY))
    with pytest.raises(FencedError):
        shop.run(MONDAY)
    assert (shop.header.generation, shop.header.state) == (1, RefreshState.PUBLISHED)
