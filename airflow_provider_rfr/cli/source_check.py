"""``airflow rfr source check``: read the first page of each stream, and tell how the stream would be loaded.

With ``--offline``, no request is sent, and only the declarations of the streams are checked.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_provider_rfr.cli.common import command, plain, print_columns, print_data
from airflow_provider_rfr.cli.source import source_of
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import AuthenticationError, ConfigurationError, RfrError, TypeMismatchError
from airflow_provider_rfr.http.redaction import redact

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_rfr.streams.airbyte.spec import StreamReport
    from airflow_provider_rfr.streams.paged import PagedStream

_MOST_MISFITS: Final = 3
_REMEDY: Final = "correct the source, or its settings in --config and --api-conn-id"
_KEY_REMEDY: Final = "correct the secrets in the connection that --api-conn-id names"
_TYPE_REMEDY: Final = "give the column another type, in columns of the stream"


@dataclass(frozen=True, slots=True)
class CheckedColumn:
    """A column that the table would have, by the declarations and the first page.

    :ivar type: the type in Spark SQL
    :ivar declared: whether the stream declares it; otherwise it was inferred
    """

    name: str
    type: str
    declared: bool


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """The result of checking a stream; if the check failed, only ``stream``, ``ok`` and ``problem`` are set.

    :ivar table: the value of ``{stream}`` in a target; None if only the API knows the streams
    :ivar ok: whether the page was read, and converts to rows of a table
    :ivar problem: a sentence with a remedy; empty if nothing is wrong
    :ivar records: number of records on the first page of the first partition; None without a partition, or if no page
        was read
    :ivar paging: how pages follow each other
    :ivar resumable: the units after which a refresh can resume: ``by page``, ``by slice``, ``one request`` or ``no``;
        None if only the API knows the streams
    :ivar incremental: the ways to write an incremental sync: ``merge``, ``append``
    :ivar why: the cursor column of an incremental sync, or the reason why there is none
    :ivar partitions: the fields that divide the stream; for a manifest the routers, with their parents or steps
    :ivar notes: for a manifest its limits, and the parts without effect
    """

    stream: str
    table: str | None = None
    ok: bool = True
    problem: str = ""
    records: int | None = None
    paging: str = ""
    resumable: str | None = None
    incremental: Sequence[str] = ()
    why: str = ""
    partitions: Sequence[str] = ()
    primary_key: Sequence[str] = ()
    columns: Sequence[CheckedColumn] = ()
    notes: Sequence[str] = ()


_Work: TypeAlias = Callable[[], StreamCheck]


@command
def check(args: Namespace) -> int:
    """Check the streams one after another. Exit code 1 if one of them fails.

    Without a request, a manifest needs no configuration: its streams are checked with a made-up one.
    """
    source = source_of(args.file, args)
    works: list[tuple[str, _Work]]
    if args.offline and "manifest" in source:
        from airflow_provider_rfr.streams.airbyte.source import check_manifest, whole_manifest
        from airflow_provider_rfr.streams.airbyte.spec import sample_config, specification

        whole = whole_manifest(source)
        if args.config is None and args.api_conn_id is None:
            whole["config"] = sample_config(specification(whole["manifest"]))
            if whole["config"]:
                made_up = plain(", ".join(whole["config"]))
                print(f"made-up values of {made_up}; --config FILE gives others", file=sys.stderr)
        reports = check_manifest(whole)
        works = [(report.name, partial(_of_report, report)) for report in reports if args.stream in (None, report.name)]
        if not works and args.stream is not None:
            remedy = suggestion(args.stream, [report.name for report in reports])
            raise ConfigurationError("streams", f"the source has no stream {args.stream!r}", remedy)
    else:
        names = [args.stream] if args.stream is not None else _names(source)
        works = [(name, partial(_of_stream, source, name, offline=args.offline)) for name in names]
    checks = [_checked(source, name, work) for name, work in works]
    if not print_data({"streams": [asdict(one) for one in checks]}, args):
        print_columns([_row(one, offline=args.offline) for one in checks], "the source has no streams")
    for one in checks:
        if one.problem:
            print(f"{plain(one.stream)}: {plain(one.problem)}", file=sys.stderr)
    return 0 if all(one.ok for one in checks) else 1


def _names(source: Mapping[str, Any]) -> list[str]:
    """Return the names of the streams, also of those that can't be built; some manifests ask the API for them.

    :raises ConfigurationError: the document or the code is wrong
    """
    from airflow_provider_rfr.streams.loader import inline_source, load_streams
    from airflow_provider_rfr.streams.rest.definition import streams_by_name

    if "file" in source:
        return list(streams_by_name(inline_source(source)["definition"]["streams"]))
    if "manifest" in source:
        from airflow_provider_rfr.streams.airbyte.source import check_manifest

        reports = check_manifest(source)
        if all(report.resumable is not None for report in reports):
            return [report.name for report in reports]
    try:
        return list(load_streams(source))
    except RfrError:
        raise
    except Exception as error:  # noqa: BLE001 - code of the source may raise anything, with anything in its text
        problem = f"building its streams failed with {type(error).__name__}"
        raise ConfigurationError("source.class", problem, _REMEDY) from None


def _checked(source: Mapping[str, Any], name: str, check_stream: _Work) -> StreamCheck:
    """Check one stream. A failure is returned as a result, so that the other streams are checked, too."""
    from airflow_provider_rfr.refresh.config import secret_values

    try:
        return check_stream()
    except ConfigurationError as error:
        problem = "; ".join(
            ": ".join(filter(None, (one.place, one.field, f"{one.problem}; {one.remedy or _REMEDY}")))
            for one in error.problems
        )
    except AuthenticationError as error:
        problem = f"{error}; {_KEY_REMEDY}"
    except TypeMismatchError as error:
        problem = f"{error}; {_TYPE_REMEDY}"
    except RfrError as error:
        problem = f"{error}; {_REMEDY}"
    except Exception as error:  # noqa: BLE001 - code of the source may raise anything, with anything in its text
        problem = f"checking it failed with {type(error).__name__}; {_REMEDY}"
    return StreamCheck(name, ok=False, problem=redact(problem, secret_values(source["secrets"])))


def _of_stream(source: Mapping[str, Any], name: str, *, offline: bool) -> StreamCheck:
    """Return the check of a stream by its first page, or by its declarations alone if offline.

    :raises ConfigurationError: it can't be built, the key is missing in all records, or a table can't have the columns
    :raises TypeMismatchError: values do not fit their columns
    """
    from airflow_provider_rfr.hooks.api import read_first_page
    from airflow_provider_rfr.lake.schemas import listed
    from airflow_provider_rfr.refresh.column_rules import ColumnRules
    from airflow_provider_rfr.refresh.page_rows import check_key_of_page
    from airflow_provider_rfr.streams.loader import load_stream
    from airflow_provider_rfr.streams.paged import as_paged

    stream, page = (as_paged(load_stream(source, name)), None) if offline else read_first_page(source, name)
    records = () if page is None else page.records
    check_key_of_page(stream.primary_key, records)
    problem = "" if page is None or not page.skipped else f"the page was left out by an error rule: {page.skipped}"
    facts, columns = _facts(stream, is_of_manifest="manifest" in source), tuple(_columns(stream, records))
    dropped = {name for record in records for name in record} - {column.name for column in columns}
    note: Sequence[str] = ()
    # Without a schema, a field that is null in all records has no column yet.
    if dropped and not ColumnRules.of(stream).infers:
        note = (f"fields that the schema lacks, so the table too: {listed(sorted(dropped))}",)
    return replace(
        facts,
        problem=problem,
        records=None if page is None else len(records),
        columns=columns,
        notes=(*facts.notes, *note),
    )


def _of_report(report: StreamReport) -> StreamCheck:
    """Return the check of a manifest's stream by its report.

    :raises ConfigurationError: it can't be read, or a table can't have the columns
    """
    from airflow_provider_rfr.lake.inference import arrow_schema

    if not report.is_readable:
        raise ConfigurationError("", report.why)
    declared = () if report.json_schema is None else arrow_schema(report.json_schema, "json_schema")
    return replace(_facts_of_report(report), columns=tuple(_column(column, declared=True) for column in declared))


def _facts(stream: PagedStream, *, is_of_manifest: bool) -> StreamCheck:
    """Return the part of the check that the stream's declarations give, without columns."""
    if is_of_manifest:
        from airflow_provider_rfr.streams.airbyte.source import ManifestStream

        assert isinstance(stream, ManifestStream)
        return _facts_of_report(stream.report())
    from airflow_provider_rfr.streams.core import key_paths
    from airflow_provider_rfr.streams.incremental import writes_of

    incremental: Sequence[str] = ()
    if stream.incremental is None:
        why = "; ".join(stream.why_not_incremental)
    else:
        incremental, why = writes_of(bool(stream.primary_key), f"by {stream.incremental.column.name}")
    return StreamCheck(
        stream.name,
        _table(stream.name),
        paging=stream.pages_by,
        resumable=stream.resumable,
        incremental=incremental,
        why=why,
        partitions=tuple(stream.partition_fields or ()),
        primary_key=tuple(".".join(path) for path in key_paths(stream.primary_key)),
    )


def _facts_of_report(report: StreamReport) -> StreamCheck:
    schema = () if report.schema in ("declared", "none") else (f"the schema is {report.schema}",)
    return StreamCheck(
        report.name,
        None if report.resumable is None else _table(report.name),
        paging=report.why,
        resumable=report.resumable,
        incremental=report.incremental,
        why=report.why_incremental,
        partitions=report.partitions,
        primary_key=report.primary_key,
        notes=(*schema, *report.notes),
    )


def _table(stream: str) -> str:
    from airflow_provider_rfr.lake.types import STREAM_PLACE, table_of

    return table_of(stream, f"_.{STREAM_PLACE}").removeprefix("_.")


def _columns(stream: PagedStream, records: Sequence[Mapping[str, Any]]) -> Iterator[CheckedColumn]:
    """Yield the columns of the stream's rows, declared ones first.

    :raises ConfigurationError: a table can't have them
    :raises TypeMismatchError: values do not fit their columns
    """
    from airflow_provider_rfr.refresh.column_rules import ColumnRules, misfits_in_words
    from airflow_provider_rfr.refresh.page_rows import SeenColumns, encode_records, see_columns
    from airflow_provider_rfr.refresh.typed_rows import LedgerPage, type_pages

    rules = ColumnRules.of(stream)
    page = LedgerPage("{}", 1, encode_records(records), len(records), 0)
    columns = rules.columns(see_columns([([page], [0])]) if rules.infers and records else SeenColumns())
    rows = type_pages([page], columns, generation=0, max_offenders=_MOST_MISFITS, casts=stream.casts)
    if rows.offenders:
        raise TypeMismatchError(misfits_in_words(rows))
    declared = rules.typed_names()
    # Fields for which the source gives a type may appear on later pages only.
    for column in (*columns, *(hint for name, hint in rules.hints.items() if name not in columns.names)):
        yield _column(column, declared=column.name in declared)


def _column(column: pa.Field, *, declared: bool) -> CheckedColumn:
    from airflow_provider_rfr.lake.schemas import iceberg_type, type_text

    return CheckedColumn(column.name, type_text(iceberg_type(column.type)), declared)


def _row(checked: StreamCheck, *, offline: bool) -> dict[str, Any]:
    if not checked.ok:
        return {"stream": checked.stream, "result": "failed"}
    without_page = "not read" if offline else "ok, no partition"
    kinds = (("declared", True), ("inferred", False))
    listed = {kind: [one for one in checked.columns if one.declared is declared] for kind, declared in kinds}
    return {
        "stream": checked.stream,
        "table": "" if checked.table == checked.stream else checked.table,
        "result": "ok" if checked.records is not None else without_page,
        "records": checked.records,
        "paging": checked.paging,
        "resumable": checked.resumable or "not known",
        "incremental": f"{', '.join(checked.incremental) or 'no'} ({checked.why.partition('; ')[0]})",
        "partitions": " x ".join(checked.partitions),
        "primary key": ", ".join(checked.primary_key),
        "notes": "; ".join(checked.notes),
        "columns": "; ".join(
            f"{kind}: {', '.join(f'{one.name} {one.type}' for one in columns)}"
            for kind, columns in listed.items()
            if columns
        ),
    }
