"""``airflow rfr refresh`` and ``airflow rfr tables``: refreshes in the ledgers, states of syncs, old snapshots."""

from __future__ import annotations

import logging
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_rfr.cli.common import (
    answered,
    lake_command,
    lake_of,
    plain,
    print_columns,
    print_data,
    print_error,
    print_value,
    say,
)
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.text import cut, quantity

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.lake.sample import TableSample
    from airflow_provider_rfr.lake.tables import TableFacts
    from airflow_provider_rfr.refresh.after_publish import PartLedger
    from airflow_provider_rfr.refresh.inspection import RefreshDetails, SyncFacts
    from airflow_provider_rfr.refresh.past import PastAttempt, PastGeneration
    from airflow_provider_rfr.refresh.state import LedgerHeader, TableStatus

T = TypeVar("T")

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 2.0
_MOST_UNREADABLE: Final = 5
"""Consecutive failed reads of the ledger that ``watch`` tolerates."""
_NAMED_PARTS: Final = 5
_LONGEST_KEY: Final = 60
_OF_PAGES: Final = ("unfinished", "slowest", "skipped", "missing", "files", "files_read")


@lake_command
def list_refreshes(args: Namespace) -> int:
    """Show the newest refresh of each table, those that need attention first; exit code 1 if one can't be read."""
    from airflow_provider_rfr.lake.types import check_identifier
    from airflow_provider_rfr.refresh.inspection import statuses

    tables = list(dict.fromkeys(check_identifier(table, "table") for table in args.tables))
    catalog = lake_of(args)
    refreshes = _with_tasks(catalog, answered(lambda: statuses(catalog, tables)))
    for table in tables:
        if not any(status.table == table for status in refreshes):
            raise _none_of(table)
    if not print_data({"tables": [status.to_json() for status in refreshes]}, args):
        print_columns([_row(status) for status in refreshes], "no table here has a ledger: nothing was refreshed yet")
        for status in refreshes:
            if status.state.value != "published":
                say(f"{_name(status)}: {status.sentence}")
    return 1 if any(status.state.value == "unreadable" for status in refreshes) else 0


@lake_command
def show(args: Namespace) -> int:
    """Show the facts of the refresh's page in Airflow; exit code 1 if the ledger, or its page rows, can't be read."""
    from airflow_provider_rfr.hooks.lake import shows_rows
    from airflow_provider_rfr.refresh.inspection import read_details, read_target

    catalog = lake_of(args)
    [status] = _with_tasks(catalog, [_status(catalog, args)])
    details, problem = None, None
    try:
        details = None if status.header is None else answered(lambda: read_details(catalog, status))
    except RfrError as error:
        problem = error
    if details is None:
        target, sync, is_unreadable = answered(lambda: read_target(catalog, status))
    else:
        target, sync, is_unreadable = details.target, details.sync, details.is_target_unreadable
    sample = _sample(catalog, status.table) if shows_rows() else None
    content = {
        **status.to_json(),
        "cursor": None if sync is None else sync.to_json(),
        "attempt_list": [attempt.to_json() for attempt in status.attempts],
        "generations": [generation.to_json() for generation in status.history],
        **({} if details is None else {name: asdict(details)[name] for name in _OF_PAGES}),
        "target": None if target is None else asdict(target),
        **({} if sample is None else {"sample": asdict(sample)}),
    }
    if not print_data(content, args):
        _show_all(status, details, target, sync, sample, is_unreadable=is_unreadable)
    if problem is not None:
        print_error(problem)
    return 0 if problem is None and status.state.value != "unreadable" else 1


def _show_all(
    status: TableStatus,
    details: RefreshDetails | None,
    target: TableFacts | None,
    sync: SyncFacts | None,
    sample: TableSample | None,
    *,
    is_unreadable: bool,
) -> None:
    """Print the facts in the order and with the terms of the page in Airflow."""
    say(f"{_name(status)}: {status.state.value}")
    say(status.sentence)
    header = status.header
    if header is None:
        return
    _show_load(status, header, details)
    _show_pages(status, header, details)
    published = status.last_publish
    changes = None if published is None else published.changes
    if sync is not None or changes is not None:
        print("\nIncremental sync")
    if sync is not None:
        say(f"State: {sync.sentence}" + ("" if sync.changed_at is None else f"; changed {_when(sync.changed_at)}"))
    if published is not None and changes is not None:
        counts = ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in changes.items())
        say(f"Records of generation {published.generation}: {counts}")
    if details is not None:
        print("\nChecks")
        say(f"Rows compared with the previous refresh: {header.compared_rows}")
        say("Publish refused: " + (f"yes: {header.error or ''}" if header.refused_under else "no"))
        say(f"Overlap checks: {header.overlap_checks:,}")
        sampled = "at least " if details.files_read < details.files else ""
        say(f"Pages skipped because of ignored errors: {sampled}{details.skipped:,}")
        missing = "not known before everything is read" if details.missing is None else f"{details.missing:,}"
        say(f"Records missing by the API's own count: {missing}")
    _show_table(target, is_unreadable=is_unreadable)
    if sample is not None:
        print("\nRows")
        print_columns([dict(zip(sample.columns, row, strict=True)) for row in sample.rows], sample.why)
        if sample.hidden:
            say(f"Not read because of their names: {', '.join(sample.hidden)}")
    print("\nWebhooks")
    say(f"airflow rfr triggers list --target {status.table}")


def _show_load(status: TableStatus, header: LedgerHeader, details: RefreshDetails | None) -> None:
    """Print the amounts of the refresh, and the run that works on it."""
    from airflow_provider_rfr.refresh.state import duration_in_words, rate_in_words, size_in_words
    from airflow_provider_rfr.streams.repeats import in_words

    content = status.to_json()
    if status.percent is not None:
        left = content["seconds_left"]
        say(f"{status.percent} %" + ("" if left is None else f", about {duration_in_words(left)} left"))
    rate, before = content["pages_per_second"], header.previous_rows
    pace = f", {rate_in_words(rate)}/s in the last attempt" if rate else ""
    previous = f"before, the table had {quantity(before or 0, 'row')}"
    if not header.is_incremental:
        previous = f"the previous refresh published {before or 0:,}"
    size = size_in_words(header.bytes) + ("" if details is None else f" in {quantity(details.files, 'file')}")
    facts = {
        "Stream": header.stream,
        "Host": header.host,
        "Paging": header.paging,
        "Primary key": header.primary_key,
        "Sync": header.sync,
        "Window": header.window and f"{header.window}, frozen when the sync was opened",
        "Last result": status.last_result,
        "Generation": f"{header.generation}, opened {_when(header.opened_at)}",
        "Partitions": f"{header.partitions_done:,} of {header.partitions:,}",
        "Pages": f"{header.pages:,}{pace}",
        "Refetched": f"{header.pages_refetched:,}",
        "Records": f"{header.records:,}" + ("" if before is None else f"; {previous}"),
        "Snapshot": content["snapshot_id"],
        "Ledger": f"{status.ledger}, {size}",
    }
    _show_facts("Load", facts)
    rounds = quantity(header.rounds, "round")
    facts = {
        "Attempts": f"{header.attempts:,}, {rounds}, last commit {_when(header.committed_at)}",
        "Run": _run_of(header),
        "Retried errors": in_words(status.retried),
        "Next retry": status.retry_at and _when(status.retry_at),
        "Last error": header.error,
    }
    _show_facts("Run", facts)


def _show_facts(title: str, facts: Mapping[str, Any]) -> None:
    print(f"\n{title}")
    for term, fact in facts.items():
        if fact:
            say(f"{term}: {fact}")


def _show_pages(status: TableStatus, header: LedgerHeader, details: RefreshDetails | None) -> None:
    """Print the attempts, the generations, and the partitions that are unfinished or took longest."""
    from airflow_provider_rfr.refresh.state import duration_in_words
    from airflow_provider_rfr.streams.repeats import in_words

    attempts = [
        {
            "attempt": attempt.epoch,
            "outcome": attempt.outcome,
            "began": f"{attempt.began_at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}",
            "duration": duration_in_words(attempt.seconds),
            "pages": f"{attempt.pages:,}",
            "retried errors": in_words(attempt.retried),
            # The page in Airflow has a link to the log here.
            "log": _run_of(attempt) + (f", try {attempt.try_number}" if attempt.try_number else ""),
            "error": attempt.error,
        }
        for attempt in status.attempts
    ]
    _show_part("Attempts", attempts)
    _show_part("Generations", _generations(status))
    if details is None or header.partitions <= 1:
        return
    for title, spans in (("Unfinished partitions", details.unfinished), ("Slowest partitions", details.slowest)):
        rows = [
            {
                "partition": cut(span.key, _LONGEST_KEY),
                "pages": f"{span.pages:,}",
                "records": f"{span.records:,}",
                "duration": duration_in_words(span.seconds),
                "restarts": span.restarts or "",
                "last page": _when(span.last_page_at),
            }
            for span in spans
        ]
        _show_part(title, rows)


def _show_table(target: TableFacts | None, *, is_unreadable: bool) -> None:
    from airflow_provider_rfr.refresh.state import size_in_words

    print("\nTable")
    if target is None:
        say("The table can't be read now" if is_unreadable else "The first publish creates the table")
        return
    rows, files = quantity(target.rows or 0, "row"), quantity(target.files or 0, "file")
    size = f"{rows}, {files}, {size_in_words(target.bytes or 0)}"
    snapshot = f", snapshot {target.snapshot_id} {_when(target.committed_at)}" if target.committed_at else ""
    copies = f"; rfr.expire.max-copies {target.max_copies}" if target.max_copies else ""
    say(f"{size}{snapshot}; snapshots: {target.snapshots:,}{copies}")
    for change in target.changes:
        say(f"{'' if change.at is None else f'{_when(change.at)} '}{'; '.join(change.sentences)}")
    say(f"{len(target.columns)} columns: {', '.join(f'{column.name} {column.type}' for column in target.columns)}")


def _sample(catalog: Catalog, name: str) -> TableSample:
    from airflow_provider_rfr.lake.catalog import load_table
    from airflow_provider_rfr.lake.sample import TableSample, sample_of

    try:
        table = answered(lambda: load_table(catalog, name))
        return TableSample(why="The first publish creates the table.") if table is None else sample_of(table)
    except Exception as error:  # noqa: BLE001 - of any store; its text may hold rows
        return TableSample(why=f"The rows of the table can't be read: {type(error).__name__}")


def _show_part(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        print(f"\n{title}")
        print_columns(rows, "")


def _when(at: datetime) -> str:
    """Return a time in UTC, with its distance from now."""
    from airflow_provider_rfr.refresh.state import duration_in_words

    age = (datetime.now(timezone.utc) - at).total_seconds()
    distance = f"{duration_in_words(age)} ago" if age >= 0 else f"in {duration_in_words(-age)}"
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC ({distance})"


def _run_of(header: LedgerHeader | PastGeneration | PastAttempt) -> str:
    return "/".join(part for part in (header.dag_id, header.dag_run_id, header.task_id) if part)


def _generations(status: TableStatus) -> list[dict[str, Any]]:
    """Return the generations as rows, like the page in Airflow."""
    from airflow_provider_rfr.refresh.state import duration_in_words

    return [
        {
            "generation": generation.generation,
            "outcome": generation.outcome,
            "sync": generation.sync,
            "opened": f"{generation.opened_at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}",
            "duration": duration_in_words(generation.seconds),
            "rows": generation.rows,
            "result": generation.result,
            "records": generation.records,
            "pages": generation.pages,
            "attempts": generation.attempts,
            "run": _run_of(generation),
            "error": generation.error,
        }
        for generation in status.history
    ]


@lake_command
def history(args: Namespace) -> int:
    """Show the table's generations, the newest first; exit code 1 if the ledger can't be read."""
    catalog = lake_of(args)
    [status] = _with_tasks(catalog, [_status(catalog, args)])
    rows = [{**generation.to_json(), "seconds": round(generation.seconds, 1)} for generation in status.history]
    document = {"table": status.table, "state": status.state.value, "sentence": status.sentence, "generations": rows}
    if not print_data(document, args):
        print_columns(_generations(status), status.sentence)
    return int(status.state.value == "unreadable")


@lake_command
def watch(args: Namespace) -> int:
    """Follow a refresh until it is over; exit code 1 unless it is published.

    It is not over while its ledger shows a working attempt, or while Airflow will retry its task.
    """
    catalog = lake_of(args)
    status = _status(catalog, args)
    missed = int(status.state.value == "unreadable")
    with _display(args) as show_status:
        while status.is_working or 0 < missed <= _MOST_UNREADABLE or _is_retried(status):
            show_status(status)
            time.sleep(_POLL_SECONDS)
            status = _status(catalog, args)
            missed = missed + 1 if status.state.value == "unreadable" else 0
        show_status(status)
    [status] = _with_tasks(catalog, [status])
    if not print_data(status.to_json(), args):
        say(f"{_name(status)}: {status.state.value}: {status.sentence}")
    return 0 if status.state.value == "published" else 1


@lake_command
def drop(args: Namespace) -> None:
    """Drop the ledger of a table or a part, with the pages of an unpublished refresh; the table itself stays."""
    from airflow_provider_rfr.lake.ledger_table import LedgerTable
    from airflow_provider_rfr.lake.row_filter import part_of

    catalog = lake_of(args)
    [status] = _with_tasks(catalog, [_status(catalog, args)])
    _refuse_working(status)
    files = ""
    try:
        ledger = answered(lambda: LedgerTable.load(catalog, status.table, part_of(args.replace_where)))
    except (FileNotFoundError, ValueError, KeyError):
        # The metadata is lost. A store that does not answer for a moment raises other errors.
        files = ", but not its files, because its metadata is lost"
        answered(lambda: catalog.drop_table(status.ledger))
    else:
        if status.state.value == "unreadable":
            # The catalog may have been away for a moment; a refresh that works must not lose its ledger by that.
            [status] = _with_tasks(catalog, [_status(catalog, args)])
            _refuse_working(status)
        if ledger is not None:
            answered(ledger.drop)
    if not print_data({"table": status.table, "ledger": status.ledger}, args):
        say(f"Dropped {status.ledger}{files}. The next run reads all pages of {_name(status)} again")


def _refuse_working(status: TableStatus) -> None:
    if status.is_working:
        raise ConfigurationError(
            "table", f"a refresh of {_name(status)} is running", "wait for its end, or stop its task, and try again"
        )


@contextmanager
def _display(args: Namespace) -> Iterator[Callable[[TableStatus], None]]:
    """Yield a function that shows a status: a progress bar in a terminal, nothing for scripts, else lines."""
    from airflow_provider_rfr.refresh.follow import can_draw, drawn_bar
    from airflow_provider_rfr.refresh.state import Progress

    progressed_at: datetime | None = None

    def say_line(status: TableStatus) -> None:
        """Print a line if a commit with pages was made since the last one."""
        nonlocal progressed_at
        if status.header is not None and status.header.progressed_at != progressed_at:
            progressed_at = status.header.progressed_at
            say(Progress.of(status.header).line(status.table))

    if args.output in ("json", "yaml"):
        yield lambda status: None
    elif can_draw():
        with drawn_bar() as bar:
            yield bar.update
    else:
        yield say_line


def _status(catalog: Catalog, args: Namespace) -> TableStatus:
    """Return the refresh of the table, or of its part, that the arguments name.

    :raises ConfigurationError: there is no such refresh
    """
    from airflow_provider_rfr.lake.types import check_identifier
    from airflow_provider_rfr.refresh.inspection import status_of, statuses

    table = check_identifier(args.table, "table")
    status = answered(lambda: status_of(catalog, table, args.replace_where))
    if status is not None:
        return status
    others = answered(lambda: statuses(catalog, [table]))
    if not others:
        raise _none_of(table)
    parts = [other.header.replace_where for other in others if other.header is not None]
    if not parts:
        raise ConfigurationError("table", f"{_name(others[0])}: {others[0].sentence}", "see airflow rfr refresh list")
    named = "; ".join(str(part) for part in parts[:_NAMED_PARTS]) + (" ..." if len(parts) > _NAMED_PARTS else "")
    problem = f"{table} has no refresh of " + ("that part" if args.replace_where else "its own, only of parts")
    raise ConfigurationError("--replace-where", problem, f"give one of: {named}")


def _with_tasks(catalog: Catalog, from_ledgers: Sequence[TableStatus]) -> Sequence[TableStatus]:
    """Correct the statuses by the state of their Airflow tasks, if Airflow's database can be read."""
    from airflow_provider_rfr.hooks.task_states import with_tasks
    from airflow_provider_rfr.refresh.inspection import read_again
    from airflow_provider_rfr.refresh.state import by_urgency

    def corrected() -> Sequence[TableStatus]:
        return sorted(with_tasks(from_ledgers, lambda status: read_again(catalog, status)), key=by_urgency)

    # The ledgers alone are right, too, but later: a killed attempt counts as working until its heartbeats are overdue.
    return _from_airflow(corrected, otherwise=from_ledgers)


def _is_retried(status: TableStatus) -> bool:
    """Tell whether, by Airflow's database, the task of an ended attempt runs or will be retried."""
    from airflow_provider_rfr.hooks.task_states import is_retried

    may_go_on = status.state.value not in ("published", "unreadable")
    return may_go_on and _from_airflow(lambda: is_retried(status), otherwise=False)


def _from_airflow(read: Callable[[], T], *, otherwise: T) -> T:
    """Return the result of a read of Airflow's database, or ``otherwise`` where it can't be read."""
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_provider_rfr.connections.airflow.lookup import has_airflow_database

    if not has_airflow_database():
        return otherwise
    try:
        return read()
    except SQLAlchemyError as error:
        _log.debug("Airflow's database can't be read", exc_info=error)
        return otherwise


def _none_of(table: str) -> ConfigurationError:
    return ConfigurationError("table", f"no refresh of {table} was begun", "see airflow rfr refresh list")


def _name(status: TableStatus) -> str:
    where = status.header.replace_where if status.header is not None else None
    return status.table if where is None else f"{status.table} ({where})"


def _row(status: TableStatus) -> dict[str, str]:
    """Return the most important values of a refresh, as a row of the list."""
    from airflow_provider_rfr.refresh.state import Progress, duration_in_words, rate_in_words

    row = {"table": _name(status), "state": status.state.value}
    header, content = status.header, status.to_json()
    if header is None:
        return row
    percent, rate, left = status.percent, Progress.of(header).pages_per_second, content["seconds_left"]
    age = (datetime.now(timezone.utc) - header.committed_at).total_seconds()
    return {
        **row,
        "sync": header.sync,
        "last result": status.last_result,
        "done": ("" if percent is None else f"{percent} %, ") + f"{header.partitions_done:,} of {header.partitions:,}",
        "left": "" if left is None else duration_in_words(left),
        "pages": f"{header.pages:,}",
        "records": f"{header.records:,}",
        "pages/s": "" if rate is None else rate_in_words(rate),
        "attempts": str(header.attempts),
        "last commit": f"{duration_in_words(max(0.0, age))} ago",
        "run": _run_of(header),
    }


@lake_command
def expire(args: Namespace) -> int:
    """Expire snapshots as each publish does; without names, also add waiting rows to the history tables.

    Exit code 1 if files could not be deleted, or a table could not be expired: run it again.
    """
    from airflow_provider_rfr.lake.catalog import load_table
    from airflow_provider_rfr.lake.expiry import HOLD, KIND

    catalog, names = _tables(args, KIND)
    if args.release:
        # Before anything is released: each named table has the holds; without names, some table has.
        holders = {}
        for name in names:
            table = load_table(catalog, name)
            properties = () if table is None else table.properties
            holders[name] = {key.removeprefix(HOLD) for key in properties if key.startswith(HOLD)}
        places = holders if args.tables else {"any table": set().union(*holders.values())}
        for place, known in places.items():
            if unknown := [holder for holder in args.release if holder not in known]:
                remedy = f"one of {', '.join(sorted(known))}" if known else "nothing holds any"
                problem = f"nothing called {unknown[0]!r} holds snapshots of {place}"
                raise ConfigurationError("--release", problem, remedy)
    rows, failed = _of_each(names, lambda name: _expired(catalog, name, args))
    print_value(rows, args, "" if failed else "no table here is ours")
    if not (args.tables or args.dry_run):
        from airflow_provider_rfr.history import History
        from airflow_provider_rfr.hooks.control_store import ControlStoreHook

        hook = ControlStoreHook(args.control_store_conn_id)
        if hook.is_there():
            with closing(hook.get_store()) as store:
                History(store, catalog).maintain(always=True)
    return 1 if failed or any(row["undeleted"] for row in rows) else 0


def _expired(catalog: Catalog, name: str, args: Namespace) -> list[dict[str, Any]]:
    """Expire a table's snapshots, and return one row; none for a ledger, unless it is named.

    :raises ConfigurationError: there is no such table
    """
    from airflow_provider_rfr.lake.catalog import load_table
    from airflow_provider_rfr.lake.commits import write_table_properties
    from airflow_provider_rfr.lake.expiry import expire_table, hold_property, is_ours

    table = load_table(catalog, name)
    if table is None:
        raise ConfigurationError("table", f"there is no table {name}")
    # A named table is always expired. The list of all tables includes ledgers, which expire by themselves.
    if not args.tables and not is_ours(table.properties):
        return []
    released = [holder for holder in args.release or () if hold_property(holder) in table.properties]
    if released and not args.dry_run:
        write_table_properties(catalog, name, {hold_property(holder): None for holder in released})
    done = expire_table(catalog, name, dry_run=args.dry_run, released=released)
    held = ", ".join(f"{holder} ({count})" for holder, count in done.held.items())
    row = {"table": name, "snapshots": done.snapshots, "files": done.files, "undeleted": done.undeleted}
    return [{**row, "held": held or None}]


def _of_each(names: Sequence[str], work: Callable[[str], list[T]]) -> tuple[list[T], bool]:
    """Call ``work`` for each table; return all results, and whether it failed for a table.

    A failure is printed, and the other tables go on.

    :raises ConfigurationError: an argument is wrong
    """
    results: list[T] = []
    failed = False
    for name in names:
        try:
            results += work(name)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - each catalog and file store fails in its own way
            failed = True
            # The texts of other errors may hold secrets.
            problem = str(error) if isinstance(error, RfrError) else type(error).__name__
            print(plain(f"{name}: {problem}"), file=sys.stderr)
    return results, failed


@lake_command
def drop_ledgers(args: Namespace) -> int:
    """Drop ledgers of parts that are published or no longer resumed; exit code 1 if a table's can't be read."""
    from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY
    from airflow_provider_rfr.refresh.after_publish import drop_part_ledgers, part_ledgers

    if args.days < 0:
        raise ConfigurationError("--days", "must not be negative", "give a number from 0 on")
    catalog, names = _tables(args, PUBLISHED_PROPERTY)
    seconds = args.days * 86400.0

    def dropped_of(name: str) -> list[PartLedger]:
        if not args.dry_run:
            return drop_part_ledgers(catalog, name, seconds)
        return [part_ledger for part_ledger in part_ledgers(catalog, name) if part_ledger.is_expired(seconds)]

    dropped, failed = _of_each(names, dropped_of)
    rows: list[dict[str, Any]] = []
    for ledger in dropped:
        rows.append({"ledger": ledger.table, "idle_days": round(ledger.idle / 86400, 1)})
        if (header := ledger.header) is not None:
            rows[-1] |= {
                "replace_where": header.replace_where,
                "generation": header.generation,
                "state": header.state.value,
                "run": header.dag_run_id and f"{header.dag_id}/{header.dag_run_id}/{header.task_id}",
                "rows": header.published_rows,
                "last_commit": header.committed_at.astimezone(timezone.utc).isoformat(timespec="seconds"),
            }
    print_value(rows, args, "" if failed else "no ledger of a part is that old")
    return 1 if failed else 0


def _tables(args: Namespace, key: str) -> tuple[Catalog, list[str]]:
    """Return the catalog, and the named tables; without names, all tables with that property."""
    from airflow_provider_rfr.lake.catalog import tables_with_property
    from airflow_provider_rfr.lake.types import check_identifier

    catalog = lake_of(args)
    named = [check_identifier(table, "table") for table in args.tables or ()]
    return catalog, named or tables_with_property(catalog, key)
