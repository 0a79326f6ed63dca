"""``airflow rfr source``: read a source without Spark and without a table, and list the fields of its connection."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.cli.common import command, config_of, plain, print_data, print_error, print_schema, say_lines
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.http.redaction import redact
from airflow_provider_rfr.numbers import dumps, read_number

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.read import ConnectorStateManager

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")


@command
def read(args: Namespace) -> int:
    """Print a stream's records as JSON Lines, and its state to standard error. Secrets are masked in errors."""
    from airflow_provider_rfr.refresh.config import secret_values

    source = source_of(args.file, args)
    secrets = secret_values(source["secrets"])
    try:
        _read(source, secrets, args)
    except RfrError as error:
        print_error(error, secrets)
        return 1
    return 0


def _read(source: Mapping[str, Any], secrets: Sequence[str], args: Namespace) -> None:
    from airflow_provider_rfr.hooks.api import keep_rotated_tokens
    from airflow_provider_rfr.streams.core import LogMessage
    from airflow_provider_rfr.streams.loader import load_stream
    from airflow_provider_rfr.streams.read import ConnectorStateManager, RecordMessage, StateMessage, read_streams

    if args.limit is not None and args.limit < 1:
        raise ConfigurationError("--limit", f"is {args.limit}", "write the number of records to print, at least 1")
    states, records = ConnectorStateManager([] if args.state_file is None else _states(args.state_file)), 0
    # Before the first request, so that a state file that can't be written costs none.
    _keep(states, args)
    keep_rotated_tokens()
    stream = load_stream(source, args.stream)
    for message in read_streams([stream], state_manager=states):
        if isinstance(message, RecordMessage):
            if records == args.limit:
                break
            sys.stdout.buffer.write(dumps(message.record) + b"\n")
            records += 1
        elif isinstance(message, StateMessage):
            # A state may be stored only after the records that it covers have left this process.
            sys.stdout.flush()
            _keep(states, args)
            if records == args.limit:
                break
        elif isinstance(message, LogMessage):
            print(plain(redact(f"{message.level}: {message.message}", secrets)), file=sys.stderr)
    state = dumps(states.get_stream_state(stream.name, stream.namespace)).decode()
    # Outside of strings JSON has ASCII only, so the other characters can be escaped.
    escaped = _NOT_ASCII.sub(lambda characters: json.dumps(characters[0])[1:-1], state)
    print(f"{plain(stream.name)}: {records} records, state: {escaped}", file=sys.stderr)


def source_of(file: Path, args: Namespace) -> dict[str, Any]:
    """Return the source of a file: a definition of ours or a manifest of Airbyte, with its configuration.

    :param file: path of the source; ``package.module:Name`` if there is no such file
    :raises ConfigurationError: a file or the connection can't be read
    """
    from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
    from airflow_provider_rfr.hooks.api import settings_of
    from airflow_provider_rfr.streams.loader import is_manifest

    source: dict[str, Any] = {"file": str(file)}
    if ":" in str(file) and not file.exists():
        source = {"class": str(file)}
    elif is_manifest(file):
        source = {"manifest": file, **({"components": args.components} if args.components else {})}
    if args.components and "manifest" not in source:
        raise ConfigurationError("--components", f"{file} is no manifest of Airbyte", "leave it out")
    if args.config is not None:
        source["config"] = dict(config_of(args.config))
    settings = settings_of(args.api_conn_id)
    mask_secrets(settings.secrets.values())
    return settings.completed(source)


def _states(file: Path) -> list[Any]:
    """Return the states of a file, in the form of Airbyte's protocol; none if there is no such file yet."""
    try:
        states = json.loads(file.read_text(encoding="utf-8"), parse_float=read_number)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError("--state-file", f"{file} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        states = None
    if not isinstance(states, list) or not all(isinstance(state, Mapping) for state in states):
        raise ConfigurationError("--state-file", f"{file} is not a JSON array of states", "name a new file")
    return states


def _keep(states: ConnectorStateManager, args: Namespace) -> None:
    """Write all states to the file of ``--state-file``, atomically."""
    if args.state_file is None:
        return
    draft = args.state_file.with_name(f"{args.state_file.name}.draft")
    try:
        draft.write_bytes(dumps(states.messages()) + b"\n")
        draft.replace(args.state_file)
    except OSError as error:
        raise ConfigurationError("--state-file", f"{args.state_file} can't be written: {error.strerror}") from None


@command
def schema(args: Namespace) -> None:
    from airflow_provider_rfr.streams.rest.definition import SCHEMA_FILE

    print_schema(SCHEMA_FILE, args)


@command
def connection(args: Namespace) -> None:
    """Print the fields of the connection that a manifest needs, by its specification."""
    from airflow_provider_rfr.streams.airbyte.source import whole_manifest
    from airflow_provider_rfr.streams.airbyte.spec import config_fields, connection_field, specification
    from airflow_provider_rfr.streams.loader import is_manifest

    manifest = whole_manifest({"manifest": args.file})["manifest"]
    if not is_manifest(args.file):
        remedy = "a definition names its settings itself, as {{ config.NAME }}"
        raise ConfigurationError("file", f"{args.file} is no manifest of Airbyte", remedy)
    rows: list[dict[str, Any]] = []
    for config_field in config_fields(specification(manifest)):
        name = connection_field(config_field.place, secret=config_field.is_secret)
        if name == "password" and any(row["field"] == name for row in rows):
            # A connection has one password; further secrets get names.
            name = f"extra.secrets.{config_field.place[0]}"
        rows.append(
            {
                "field": name,
                "config": ".".join(config_field.place),
                "secret": config_field.is_secret,
                "required": config_field.is_required,
                "type": config_field.kind,
                "title": config_field.title,
                "choice": config_field.choice,
            }
        )
    if print_data({"conn_type": "rfr_api", "fields": rows}, args):
        return
    print("A connection of type rfr_api, whose id is the operator's api_conn_id; extra is a JSON object:")
    for row in rows:
        marks = ["secret"] * row["secret"] + ["required"] * row["required"] + [row["type"]]
        of = f" of {row['choice']!r}" if row["choice"] else ""
        say_lines(f"  {row['field']}: {row['config']}{of} ({', '.join(marks)}) {row['title']}".rstrip())
    if not rows:
        print("  nothing: the manifest specifies no configuration")
