"""``airflow rfr manifest``: show how a manifest of Airbyte works as a source, and which connection it needs."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.cli.common import command, config_of, print_data
from airflow_provider_rfr.lake.types import STREAM_PLACE, table_of

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.airbyte.spec import StreamReport


@command
def check(args: Namespace) -> int:
    """Build every stream, and say how it would be read. Exit code 1 if one can't be."""
    from airflow_provider_rfr.streams.airbyte.source import check_manifest, whole_manifest
    from airflow_provider_rfr.streams.airbyte.spec import specification, stand_ins

    source = whole_manifest({"manifest": args.file, "components": args.components})
    if args.config is not None:
        config = config_of(args.config)
    else:
        config = stand_ins(specification(source["manifest"]))
        if config:
            print(f"made-up values of {', '.join(config)}; --config FILE gives others", file=sys.stderr)
    reports = check_manifest({**source, "config": config})
    if not print_data([{"table": _table(report), **asdict(report)} for report in reports], args):
        for report in reports:
            table = _table(report)
            print(report.name if table in (report.name, None) else f"{report.name}, in a target: {table}")
            print(f"  resumable: {report.resumable or 'not known'} ({report.why})")
            print(f"  partitions: {' x '.join(report.partitions) or 'none'}")
            print(f"  primary key: {', '.join(report.primary_key) or 'none'}")
            columns = "" if report.columns is None else f", columns: {report.columns}"
            print(f"  schema: {report.schema}{columns}")
            for note in report.notes:
                print(f"  note: {note}")
        counts = Counter(report.resumable or "not known" for report in reports)
        how = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
        print(f"{args.file}: streams: {len(reports)}, resumable {how}", file=sys.stderr)
    return 0 if all(report.is_readable for report in reports) else 1


@command
def connection(args: Namespace) -> None:
    rows = list(_connection_rows(args.file))
    if print_data({"conn_type": "rfr_api", "fields": rows}, args):
        return
    print("A connection of type rfr_api, whose id is the operator's api_conn_id; extra is a JSON object:")
    for row in rows:
        marks = ["secret"] * row["secret"] + ["required"] * row["required"] + [row["type"]]
        of = f" of {row['choice']!r}" if row["choice"] else ""
        print(f"  {row['field']}: {row['config']}{of} ({', '.join(marks)}) {row['title']}".rstrip())
    if not rows:
        print("  nothing: the manifest specifies no configuration")


def _table(report: StreamReport) -> str | None:
    """Return the value of ``{stream}`` in a target."""
    if report.resumable is None:
        return None
    return table_of(report.name, f"_.{STREAM_PLACE}").removeprefix("_.")


def _connection_rows(file: Path) -> Iterator[dict[str, Any]]:
    from airflow_provider_rfr.streams.airbyte.source import whole_manifest
    from airflow_provider_rfr.streams.airbyte.spec import config_fields, connection_field, specification

    manifest = whole_manifest({"manifest": file})["manifest"]
    used = set()
    for config_field in config_fields(specification(manifest)):
        field = connection_field(config_field.place, secret=config_field.is_secret)
        if field == "password" and field in used:
            # A connection has one; the others are named.
            field = f"extra.secrets.{config_field.place[0]}"
        used.add(field)
        yield {
            "field": field,
            "config": ".".join(config_field.place),
            "secret": config_field.is_secret,
            "required": config_field.is_required,
            "type": config_field.kind,
            "title": config_field.title,
            "choice": config_field.choice,
        }
