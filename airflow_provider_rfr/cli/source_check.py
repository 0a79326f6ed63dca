"""``airflow rfr source check``: read the first page of each stream, and tell how the stream would be loaded."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.cli.common import command, plain, print_columns, print_data
from airflow_provider_rfr.cli.source import source_of
from airflow_provider_rfr.exceptions import AuthenticationError, ConfigurationError, RfrError, TypeMismatchError
from airflow_provider_rfr.http.redaction import redact

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.core import Page
    from airflow_provider_rfr.streams.paged import PagedStream

_MOST_MISFITS: Final = 3
_REMEDY: Final = "correct the source, or its settings in --config and --api-conn-id"
_KEY_REMEDY: Final = "correct the secrets in the connection that --api-conn-id names"
_TYPE_REMEDY: Final = "give the column another type, in columns of the stream"


@dataclass(frozen=True, slots=True)
class CheckedColumn:
    """A column that the table would have by the first page.

    :ivar type: as Spark SQL writes it
    :ivar declared: whether the stream declares it; otherwise it was inferred
    """

    name: str
    type: str
    declared: bool


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """The first page of a stream, and the ways to load it; all but the name is empty where the check failed.

    :ivar ok: whether the page came, and can be rows of a table
    :ivar problem: a sentence with a remedy; empty where nothing is wrong
    :ivar records: on the first page of the first partition; None where there is no partition
    :ivar paging: how pages follow each other
    :ivar resumable: the parts after which a refresh continues: ``by page``, ``by slice``, ``one request`` or ``no``
    :ivar incremental: the ways to write an incremental sync: ``merge``, ``append``
    :ivar why: the cursor column of these ways, or the reason for none
    """

    stream: str
    ok: bool = True
    problem: str = ""
    records: int | None = None
    paging: str = ""
    resumable: str = ""
    incremental: Sequence[str] = ()
    why: str = ""
    columns: Sequence[CheckedColumn] = ()


@command
def check(args: Namespace) -> int:
    """Check the streams one after another. Exit code 1 if one of them fails."""
    source = source_of(args.file, args)
    names = [args.stream] if args.stream is not None else _names(source)
    checks = [_checked(source, name) for name in names]
    if not print_data({"streams": [asdict(one) for one in checks]}, args):
        print_columns([_row(one) for one in checks], "the source has no streams")
    for one in checks:
        if one.problem:
            print(f"{plain(one.stream)}: {plain(one.problem)}", file=sys.stderr)
    return 0 if all(one.ok for one in checks) else 1


def _names(source: Mapping[str, Any]) -> list[str]:
    """Return the names of the streams; of a definition also of those that can't be built.

    :raises ConfigurationError: the document is wrong
    """
    from airflow_provider_rfr.streams.loader import inline_source, load_streams
    from airflow_provider_rfr.streams.rest.definition import streams_by_name

    if "file" in source:
        return list(streams_by_name(inline_source(source)["definition"]["streams"]))
    return list(load_streams(source))


def _checked(source: Mapping[str, Any], name: str) -> StreamCheck:
    """Check one stream; a failure is a check as well, and the other streams go on."""
    from airflow_provider_rfr.hooks.api import read_first_page
    from airflow_provider_rfr.refresh.config import secret_values

    try:
        stream, page = read_first_page(source, name)
        paging, resumable = _manifest_paging(stream) if "manifest" in source else (stream.pages_by, stream.resumable)
        return replace(_check_of(stream, page), paging=paging, resumable=resumable)
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
        problem = f"reading the first page failed with {type(error).__name__}; {_REMEDY}"
    return StreamCheck(name, ok=False, problem=redact(problem, secret_values(source["secrets"])))


def _check_of(stream: PagedStream, page: Page | None) -> StreamCheck:
    """Return the check of a stream whose first page came, but for its paging.

    :param page: None where the stream has no partition
    :raises ConfigurationError: the key is missing in all records, or a table can't have the columns
    :raises TypeMismatchError: values do not fit their columns
    """
    from airflow_provider_rfr.refresh.pages import check_key_of_page

    records = () if page is None else page.records
    check_key_of_page(stream.primary_key, records)
    incremental, why = _incremental(stream)
    problem = "" if page is None or not page.skipped else f"the page was left out by an error rule: {page.skipped}"
    return StreamCheck(
        stream.name,
        problem=problem,
        records=None if page is None else len(records),
        incremental=incremental,
        why=why,
        columns=tuple(_columns(stream, records)),
    )


def _manifest_paging(stream: PagedStream) -> tuple[str, str]:
    """Return how the pages of a manifest's stream follow each other, and after which parts it is resumed."""
    from airflow_provider_rfr.streams.airbyte.source import ManifestStream

    assert isinstance(stream, ManifestStream)
    return stream.paging.why, "by page" if stream.paging.by_page else "by slice"


def _incremental(stream: PagedStream) -> tuple[Sequence[str], str]:
    """Return the ways to sync the stream, with the cursor column or the reason."""
    if stream.incremental is None:
        problem, remedy = stream.why_not_incremental
        return (), f"{problem}; {remedy}"
    column = stream.incremental.column.name
    if stream.primary_key:
        return ("merge", "append"), f"by {column}"
    return ("append",), f"by {column}; merge needs a primary key"


def _columns(stream: PagedStream, records: Sequence[Mapping[str, Any]]) -> Iterator[CheckedColumn]:
    """Yield the columns of the stream's rows, declared ones first.

    :raises ConfigurationError: a table can't have them
    :raises TypeMismatchError: values do not fit their columns
    """
    from airflow_provider_rfr.lake.schemas import iceberg_type, type_text
    from airflow_provider_rfr.refresh.column_rules import ColumnRules, misfits_in_words
    from airflow_provider_rfr.refresh.pages import SeenColumns, encode_records, see_columns
    from airflow_provider_rfr.refresh.typed_rows import LedgerPage, type_pages

    rules = ColumnRules.of(stream)
    page = LedgerPage("{}", 1, encode_records(records), len(records), 0)
    columns = rules.columns(see_columns([([page], [0])]) if rules.infers and records else SeenColumns())
    rows = type_pages([page], columns, generation=0, max_offenders=_MOST_MISFITS, casts=stream.casts)
    if rows.offenders:
        raise TypeMismatchError(misfits_in_words(rows))
    declared = rules.typed_names()
    # A later page may have the fields that the source gives a type.
    for column in (*columns, *(hint for name, hint in rules.hints.items() if name not in columns.names)):
        yield CheckedColumn(column.name, type_text(iceberg_type(column.type)), column.name in declared)


def _row(checked: StreamCheck) -> dict[str, Any]:
    if not checked.ok:
        return {"stream": checked.stream, "result": "failed"}
    kinds = (("declared", True), ("inferred", False))
    listed = {kind: [one for one in checked.columns if one.declared is declared] for kind, declared in kinds}
    return {
        "stream": checked.stream,
        "result": "ok" if checked.records is not None else "ok, no partition",
        "records": checked.records,
        "paging": checked.paging,
        "resumable": checked.resumable,
        "incremental": f"{', '.join(checked.incremental) or 'no'} ({checked.why.partition('; ')[0]})",
        "columns": "; ".join(
            f"{kind}: {', '.join(f'{one.name} {one.type}' for one in columns)}"
            for kind, columns in listed.items()
            if columns
        ),
    }
