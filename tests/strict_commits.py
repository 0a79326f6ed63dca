"""Each kind of commit that this package makes, prepared on any catalog, and what has to be true after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from airflow_provider_rfr.lake.commits import write_table_properties
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.migrated_table import MigratedTable, NewTable, TableChange
from airflow_provider_rfr.lake.rows import append_rows_once, merge_days
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import PageFile, PageRow, write_rows
from airflow_provider_rfr.refresh.state import RefreshState

_SCHEMA = Schema(NestedField(1, "day", StringType()), NestedField(2, "id", LongType()))
_HISTORY = Schema(
    NestedField(1, "day", StringType()), NestedField(2, "id", LongType(), required=True), identifier_field_ids=[2]
)
_OLD = pa.table({"day": ["monday"] * 3, "id": [1, 2, 3]})
_NEW = pa.table({"day": ["tuesday"] * 2, "id": [4, 5]})


@dataclass(frozen=True)
class CommitKind:
    """One kind of commit.

    :ivar prepare: does all that comes before the commit, on a catalog and a table's name; returns the commit
    :ivar check: asserts that the table, read by another catalog, has the commit once, and that the next one works
    """

    prepare: Callable[[Catalog, str], Callable[[], object]]
    check: Callable[[Catalog, str], None]


def _opened(catalog: Catalog, name: str) -> Ledger:
    ledger = Ledger(LedgerTable.load_or_create(catalog, name))
    _open(ledger)
    return ledger


def _open(ledger: Ledger) -> None:
    slices = [(f'{{"n":{number}}}', {"n": number}) for number in range(2)]
    ledger.open_generation(slices, read_fingerprint="r", publish_fingerprint="p", run_key="k")


def write_page(ledger: Ledger, name: str, ordinal: int = 0) -> PageFile:
    """Write a page with one record, to a file that no commit names yet."""
    row = PageRow(
        generation=ledger.held.generation,
        epoch=ledger.held.epoch,
        partition_ordinal=ordinal,
        partition_key=f'{{"n":{ordinal}}}',
        chain=0,
        page=1,
        fetched_at=0,
        complete=True,
        record_count=1,
        records=b'{"id":1}',
    )
    return write_rows(ledger.store, f"{ledger.folder}/{name}", [row], footer="{}")


def _prepare_opening(catalog: Catalog, name: str) -> Callable[[], object]:
    return partial(_open, Ledger(LedgerTable.load_or_create(catalog, name)))


def _prepare_round(catalog: Catalog, name: str) -> Callable[[], object]:
    ledger = _opened(catalog, name)
    return partial(
        ledger.commit, [write_page(ledger, "page-1.parquet")], rounds=1, pages=1, records=1, partitions_done=1
    )


def _prepare_mark(catalog: Catalog, name: str) -> Callable[[], object]:
    _prepare_round(catalog, name)()
    ledger = Ledger(LedgerTable.load_or_create(catalog, name))
    ledger.take_over("p")
    return partial(ledger.commit, [], state=RefreshState.PUBLISHED, published_rows=1)


def _prepare_takeover(catalog: Catalog, name: str) -> Callable[[], object]:
    _prepare_round(catalog, name)()
    ledger = Ledger(LedgerTable.load_or_create(catalog, name))
    return partial(ledger.take_over, "p")


def _prepare_collection(catalog: Catalog, name: str) -> Callable[[], object]:
    _prepare_mark(catalog, name)()
    ledger = Ledger(LedgerTable.load_or_create(catalog, name))
    _open(ledger)
    return ledger.collect


def _check_ledger(pages: int, catalog: Catalog, name: str) -> None:
    ledger = Ledger(LedgerTable.load_or_create(catalog, name))
    if ledger.held.state is RefreshState.PUBLISHED:
        _open(ledger)
        pages = 0
    else:
        ledger.take_over("p")
    table = ledger.read_pages()
    assert (0 if table is None else table.num_rows) == pages
    ledger.commit([write_page(ledger, "next.parquet", ordinal=1)], rounds=ledger.held.rounds + 1)
    table = ledger.read_pages()
    assert table.num_rows == pages + 1


def write_files(
    target: TargetTable, rows: pa.Table, *, rows_stay: bool = False, inferred: bool = False
) -> list[DataFile]:
    """Write the rows to files that no commit names yet, planned for the table as the target knows it."""
    prepared = target.prepare(rows.schema, "evolve", inferred=inferred, rows_stay=rows_stay)
    return [stored.describe(prepared.layout) for stored, _ in prepared.write(rows)]


def _publish(catalog: Catalog, name: str, rows: pa.Table, generation: int, **options: Any) -> Callable[[], object]:
    """Prepare a publish, but for its commit."""
    target = TargetTable(catalog, name)
    files = write_files(target, rows, rows_stay=options.get("mode") == "append" or "replace_where" in options)
    summary = {"rfr.ledger": "ledger", "rfr.generation": str(generation)}
    arguments: Mapping[str, Any] = {"mode": "replace", "replace_where": None, **options}
    return partial(target.commit, files, ("ledger", generation), summary=summary, **arguments)


def _prepare_creation(catalog: Catalog, name: str) -> Callable[[], object]:
    return _publish(catalog, name, _NEW, 1)


def _prepare_publish(catalog: Catalog, name: str, **options: Any) -> Callable[[], object]:
    _publish(catalog, name, _OLD, 1)()
    return _publish(catalog, name, _NEW, 2, **options)


def _check_target(ids: list[int], generation: int, catalog: Catalog, name: str) -> None:
    _check_rows(ids, catalog, name)
    published = TargetTable(catalog, name).published("ledger")
    assert published.generation == generation
    _publish(catalog, name, _OLD, 9)()
    _check_rows([1, 2, 3], catalog, name)


def _check_rows(ids: list[int], catalog: Catalog, name: str) -> None:
    assert sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist()) == ids


def _history_row(number: int) -> dict[str, Any]:
    return {"day": "monday", "id": number}


def _prepare_history(catalog: Catalog, name: str) -> Callable[[], object]:
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    catalog.create_table(name, _HISTORY)
    append_rows_once(catalog, name, [_history_row(1)])
    return partial(append_rows_once, catalog, name, [_history_row(1), _history_row(2)])


def _check_history(catalog: Catalog, name: str) -> None:
    _check_rows([1, 2], catalog, name)
    assert append_rows_once(catalog, name, [_history_row(2), _history_row(3)]) == 1
    _check_rows([1, 2, 3], catalog, name)


def _prepare_merge(catalog: Catalog, name: str) -> Callable[[], object]:
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    catalog.create_table(name, _HISTORY)
    for number in range(10):
        append_rows_once(catalog, name, [_history_row(number)])
    return partial(merge_days, catalog, name)


def _check_merge(catalog: Catalog, name: str) -> None:
    _check_rows(list(range(10)), catalog, name)
    assert len(list(catalog.load_table(name).scan().plan_files())) == 1
    assert append_rows_once(catalog, name, [_history_row(9), _history_row(10)]) == 1


def _migrated(catalog: Catalog, name: str) -> MigratedTable:
    table = MigratedTable.load(catalog, name)
    assert table is not None
    return table


def _prepare_alteration(catalog: Catalog, name: str) -> Callable[[], object]:
    _publish(catalog, name, _OLD, 1)()
    change = TableChange(properties={"owner": "ops"}, unset=["rfr.published"])
    return partial(_migrated(catalog, name).alter, change)


def _check_alteration(catalog: Catalog, name: str) -> None:
    properties = catalog.load_table(name).properties
    assert properties["owner"] == "ops"
    assert "rfr.published" not in properties
    _migrated(catalog, name).alter(TableChange(properties={"owner": "data"}))
    _check_rows([1, 2, 3], catalog, name)


def _prepare_rewrite(catalog: Catalog, name: str) -> Callable[[], object]:
    _publish(catalog, name, _OLD, 1)()
    table, change = _migrated(catalog, name), TableChange(properties={"owner": "ops"})
    target = table.coming(change, "rewrite-")
    columns = {column: target.rows.field(column).type for column in ("day", "id")}
    rows = pa.table({**{column: _NEW[column].cast(kind) for column, kind in columns.items()}})
    system = [field for field in target.rows if field.name not in columns]
    for field in system:
        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    files = [stored for stored, _ in target.write(rows.select(target.rows.names))]
    return partial(table.replace_rows, change, files, target, {"step": "1"})


def _check_rewrite(catalog: Catalog, name: str) -> None:
    _check_rows([4, 5], catalog, name)
    assert _migrated(catalog, name).tagged_snapshot("step", "1") is not None
    _publish(catalog, name, _OLD, 9)()
    _check_rows([1, 2, 3], catalog, name)


def _prepare_new_table(catalog: Catalog, name: str) -> Callable[[], object]:
    table = NewTable(catalog, name, (_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {"owner": "ops"}))
    target = table.target("new-")
    files = [stored for stored, _ in target.write(_NEW.cast(target.rows))]
    return partial(table.commit, files, {"step": "1"})


def _prepare_properties(catalog: Catalog, name: str) -> Callable[[], object]:
    _publish(catalog, name, _OLD, 1)()

    def write() -> None:
        assert write_table_properties(catalog, name, {"rfr.hold.a": "7"})

    return write


def _check_properties(catalog: Catalog, name: str) -> None:
    assert catalog.load_table(name).properties["rfr.hold.a"] == "7"
    _check_rows([1, 2, 3], catalog, name)


KINDS: Mapping[str, CommitKind] = {
    "ledger: open": CommitKind(_prepare_opening, partial(_check_ledger, 0)),
    "ledger: round": CommitKind(_prepare_round, partial(_check_ledger, 1)),
    "ledger: take over": CommitKind(_prepare_takeover, partial(_check_ledger, 1)),
    "ledger: mark published": CommitKind(_prepare_mark, partial(_check_ledger, 0)),
    "ledger: collect": CommitKind(_prepare_collection, partial(_check_ledger, 0)),
    "target: create": CommitKind(_prepare_creation, partial(_check_target, [4, 5], 1)),
    "target: replace": CommitKind(_prepare_publish, partial(_check_target, [4, 5], 2)),
    "target: append": CommitKind(partial(_prepare_publish, mode="append"), partial(_check_target, [1, 2, 3, 4, 5], 2)),
    "target: replace_where": CommitKind(
        partial(_prepare_publish, replace_where="day = 'tuesday'"), partial(_check_target, [1, 2, 3, 4, 5], 2)
    ),
    "history: append": CommitKind(_prepare_history, _check_history),
    "history: merge": CommitKind(_prepare_merge, _check_merge),
    "migration: alter": CommitKind(_prepare_alteration, _check_alteration),
    "migration: rewrite": CommitKind(_prepare_rewrite, _check_rewrite),
    "migration: create": CommitKind(_prepare_new_table, partial(_check_rows, [4, 5])),
    "properties": CommitKind(_prepare_properties, _check_properties),
}
