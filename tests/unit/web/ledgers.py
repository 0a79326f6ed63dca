"""Ledgers as refreshes leave them, in a real catalog."""

from __future__ import annotations

import time
from typing import Any

from pyiceberg.catalog import Catalog

from airflow_provider_rfr.lake.ledger_table import LedgerTable, ledger_name
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import PageRow, write_rows

CANARY = "c4n4ry-s3cr3t-0f-a-p4ge"
TASK = {"dag_id": "shop", "dag_run_id": "monday", "task_id": "refresh", "map_index": -1}
REFRESH = "/rfr/refresh?lake=rfr_lake_default&ledger=raw.orders__rfr_ledger"


def begun(catalog: Catalog, name: str, where: str | None = None, partitions: int = 4, **labels: Any) -> Ledger:
    """A refresh that is open; ``labels``: fields of its header."""
    ledger = Ledger(LedgerTable.load_or_create(catalog, name, part_of(where)))
    slices = [(f'{{"n":{number}}}', {"n": number, "secret": CANARY}) for number in range(partitions)]
    given = {"replace_where": where, "silence": 3600.0, **labels}
    ledger.open_generation(slices, read_fingerprint="r", publish_fingerprint="p", run_key="k", labels=given)
    return ledger


def read_page(ledger: Ledger, ordinal: int = 0, page: int = 1, *, complete: bool = True, **changes: Any) -> None:
    """One page with one record, in a file that a commit names; everything of it that may not be shown is the canary."""
    header = ledger.held
    row = PageRow(
        generation=header.generation,
        epoch=header.epoch,
        partition_ordinal=ordinal,
        partition_key=f'{{"n":{ordinal}}}',
        chain=0,
        page=page,
        fetched_at=time.time_ns() // 1000,
        complete=complete,
        record_count=1,
        token_in=f'"{CANARY}"',
        token_out=None if complete else f'"{CANARY}"',
        request=f"GET https://api/{CANARY}",
        records=f'{{"id":"{CANARY}"}}'.encode(),
    )
    name = f"page-{header.epoch}-{ordinal}-{page}.parquet"
    file = write_rows(ledger.store, f"{ledger.folder}/{name}", [row], footer="{}")
    done = header.partitions_done + complete
    counts = {"pages": header.pages + 1, "records": header.records + 1, "partitions_done": done}
    ledger.commit([file], rounds=header.rounds + 1, **counts, **changes)


def copies(catalog: Catalog, name: str, count: int) -> None:
    """The same ledger under other names, without a commit for each."""
    location = catalog.load_table(ledger_name(name)).metadata_location
    for number in range(count):
        catalog.register_table(ledger_name(f"raw.copy_{number:03}"), location)
