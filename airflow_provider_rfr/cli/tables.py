"""``airflow rfr tables``: old snapshots, history tables, and ledgers of parts."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from datetime import timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.cli.common import command, lake_of, print_value
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.refresh.after_publish import PartLedger


@command
def expire(args: Namespace) -> int:
    """Expire snapshots as each publish does; without names, also add waiting rows to the history tables.

    Exit code 1 if files could not be deleted: run it again.
    """
    from airflow_provider_rfr.lake.catalog import load_table
    from airflow_provider_rfr.lake.commits import write_table_properties
    from airflow_provider_rfr.lake.expiry import HOLD, KIND, expire_table, hold_property, is_ours

    rows = []
    catalog, names = _tables(args, KIND)
    for name in names:
        table = load_table(catalog, name)
        if table is None:
            raise ConfigurationError("table", f"there is no table {name}")
        # A table that is named is meant; among all tables are ledgers, which expire by themselves.
        if not args.tables and not is_ours(table.properties):
            continue
        if args.release and not args.dry_run:
            holders = sorted(key.removeprefix(HOLD) for key in table.properties if key.startswith(HOLD))
            if unknown := [holder for holder in args.release if holder not in holders]:
                remedy = f"one of {', '.join(holders)}" if holders else "nothing holds any"
                problem = f"nothing called {unknown[0]!r} holds snapshots of {name}"
                raise ConfigurationError("--release", problem, remedy)
            write_table_properties(catalog, name, {hold_property(holder): None for holder in args.release})
        done = expire_table(catalog, name, dry_run=args.dry_run)
        held = ", ".join(f"{holder} ({count})" for holder, count in done.held.items())
        row = {"table": name, "snapshots": done.snapshots, "files": done.files, "undeleted": done.undeleted}
        rows.append({**row, "held": held or None})
    print_value(rows, args, "no table here is ours")
    if not (args.tables or args.dry_run):
        _append_history(catalog)
    return 1 if any(row["undeleted"] for row in rows) else 0


@command
def ledgers(args: Namespace) -> None:
    from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY
    from airflow_provider_rfr.refresh.after_publish import part_ledgers

    catalog, names = _tables(args, PUBLISHED_PROPERTY)
    print_value(
        [_row(part_ledger) for name in names for part_ledger in part_ledgers(catalog, name)],
        args,
        "no part of a table has a ledger",
    )


@command
def drop_ledgers(args: Namespace) -> None:
    """Drop ledgers of parts that are published, or no longer resumed."""
    from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY
    from airflow_provider_rfr.refresh.after_publish import drop_part_ledgers, part_ledgers

    if args.days < 0:
        raise ConfigurationError("--days", "must not be negative", "give a number from 0 on")
    catalog, names = _tables(args, PUBLISHED_PROPERTY)
    seconds = args.days * 86400.0
    dropped: list[PartLedger] = []
    for name in names:
        if args.dry_run:
            dropped += [part_ledger for part_ledger in part_ledgers(catalog, name) if part_ledger.is_expired(seconds)]
        else:
            dropped += drop_part_ledgers(catalog, name, seconds)
    print_value([_row(ledger) for ledger in dropped], args, "no ledger of a part is that old")


def _append_history(catalog: Catalog) -> None:
    from airflow_provider_rfr.history import History
    from airflow_provider_rfr.hooks.control_store import ControlStoreHook

    hook = ControlStoreHook()
    if hook.is_there():
        with closing(hook.get_store()) as store:
            History(store, catalog).maintain(always=True)


def _tables(args: Namespace, key: str) -> tuple[Catalog, list[str]]:
    """Return the catalog, and the named tables; without names, all tables with that property."""
    from airflow_provider_rfr.lake.catalog import tables_with_property
    from airflow_provider_rfr.lake.types import check_identifier

    catalog = lake_of(args)
    named = [check_identifier(table, "table") for table in args.tables or ()]
    return catalog, named or tables_with_property(catalog, key)


def _row(ledger: PartLedger) -> dict[str, Any]:
    header = ledger.header
    row = {"ledger": ledger.table, "idle_days": round(ledger.idle / 86400, 1)}
    if header is None:
        return row
    return {
        **row,
        "replace_where": header.replace_where,
        "generation": header.generation,
        "state": header.state.value,
        "run": header.dag_run_id and f"{header.dag_id}/{header.dag_run_id}/{header.task_id}",
        "rows": header.published_rows,
        "last_commit": header.committed_at.astimezone(timezone.utc).isoformat(timespec="seconds"),
    }
