"""``airflow rfr tables``: old snapshots, and ledgers of parts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from datetime import timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.cli.common import command, print_value
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.refresh.maintenance import PartLedger


@command
def expire(args: Namespace) -> int:
    """Do what each publish does. Exit code 1 if files could not be deleted: run it again."""
    from airflow_provider_rfr.lake.catalog import load_table
    from airflow_provider_rfr.lake.expiry import KIND, expire_table, is_ours

    catalog, rows, failed = _catalog(args), [], False
    for name in _names(catalog, args, KIND):
        table = load_table(catalog, name)
        if table is None:
            raise ConfigurationError("table", f"there is no table {name}")
        # Who names a table means it; among all of them are ledgers, which look after themselves.
        if not args.tables and not is_ours(table.properties):
            continue
        if args.release and not args.dry_run:
            _release(catalog, name, table.properties, args.release)
        done = expire_table(catalog, name, dry_run=args.dry_run)
        failed = failed or done.undeleted > 0
        held = ", ".join(f"{holder} ({count})" for holder, count in done.held.items())
        row = {"table": name, "snapshots": done.snapshots, "files": done.files, "undeleted": done.undeleted}
        rows.append({**row, "held": held or None})
    print_value(rows, args)
    return 1 if failed else 0


@command
def ledgers(args: Namespace) -> None:
    """Show the ledgers of parts."""
    from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY
    from airflow_provider_rfr.refresh.maintenance import part_ledgers

    catalog = _catalog(args)
    names = _names(catalog, args, PUBLISHED_PROPERTY)
    print_value([_row(each) for name in names for each in part_ledgers(catalog, name)], args)


@command
def drop_ledgers(args: Namespace) -> None:
    """Drop ledgers of parts that are published, or that nobody resumes."""
    from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY
    from airflow_provider_rfr.refresh.maintenance import drop_part_ledgers, part_ledgers

    if args.days < 0:
        raise ConfigurationError("--days", "is less than nothing", "give a number from 0 on")
    catalog, seconds = _catalog(args), args.days * 86400.0
    dropped: list[PartLedger] = []
    for name in _names(catalog, args, PUBLISHED_PROPERTY):
        if args.dry_run:
            dropped += [each for each in part_ledgers(catalog, name) if each.may_go(seconds)]
        else:
            dropped += drop_part_ledgers(catalog, name, seconds)
    print_value([_row(each) for each in dropped], args)


def _catalog(args: Namespace) -> Catalog:
    from airflow_provider_rfr.hooks.lake import LakeHook
    from airflow_provider_rfr.lake.catalog import open_catalog

    return open_catalog(LakeHook(args.lake_conn_id).get_lake_settings())


def _names(catalog: Catalog, args: Namespace, key: str) -> list[str]:
    from airflow_provider_rfr.lake.catalog import tables_with_property
    from airflow_provider_rfr.lake.names import check_identifier

    if args.tables:
        return [check_identifier(each, "table") for each in args.tables]
    return tables_with_property(catalog, key)


def _release(catalog: Catalog, name: str, properties: Any, holders: list[str]) -> None:
    from airflow_provider_rfr.lake.commits import write_table_properties
    from airflow_provider_rfr.lake.expiry import HOLD, hold_property

    known = sorted(key.removeprefix(HOLD) for key in properties if key.startswith(HOLD))
    if unknown := [each for each in holders if each not in known]:
        told = f"one of {', '.join(known)}" if known else "nothing holds any"
        raise ConfigurationError("--release", f"nothing called {unknown[0]!r} holds snapshots of {name}", told)
    write_table_properties(catalog, name, {hold_property(each): None for each in holders})


def _row(ledger: PartLedger) -> dict[str, Any]:
    header = ledger.header
    row = {"ledger": ledger.table, "idle_days": round(ledger.idle / 86400, 1)}
    return row if header is None else {**row, **dict(_of_header(header))}


def _of_header(header: Any) -> Iterator[tuple[str, Any]]:
    yield "replace_where", header.replace_where
    yield "generation", header.generation
    yield "state", header.state.value
    yield "run", header.dag_run_id and f"{header.dag_id}/{header.dag_run_id}/{header.task_id}"
    yield "rows", header.published_rows
    yield "last_commit", header.committed_at.astimezone(timezone.utc).isoformat(timespec="seconds")
