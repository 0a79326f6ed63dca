"""``airflow rfr source``: read a source as it is, without Spark and without a table."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.cli.common import command, config_of, plain
from airflow_provider_rfr.documents import read_yaml
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.numbers import dumps

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.read import ConnectorStateManager


@command
def read(args: Namespace) -> None:
    """Print the records of a stream as JSON Lines, and log its state."""
    from airflow_provider_rfr.hooks.api import keep_rotated_tokens
    from airflow_provider_rfr.streams.core import LogMessage
    from airflow_provider_rfr.streams.loader import load_stream
    from airflow_provider_rfr.streams.read import ConnectorStateManager, RecordMessage, StateMessage, read_streams

    if args.limit is not None and args.limit < 1:
        raise ConfigurationError("--limit", f"is {args.limit}", "write the number of records to print, at least 1")
    states, records = ConnectorStateManager([] if args.state is None else _states(args.state)), 0
    # Before a request, so that a file that can't be written costs none.
    _keep(states, args)
    keep_rotated_tokens()
    stream = load_stream(_source(args), args.stream)
    for message in read_streams([stream], state_manager=states):
        if isinstance(message, RecordMessage):
            if records == args.limit:
                break
            print(dumps(message.record).decode())
            records += 1
        elif isinstance(message, StateMessage):
            # A state may be kept only when the records that it covers have left this process.
            sys.stdout.flush()
            _keep(states, args)
            if records == args.limit:
                break
        elif isinstance(message, LogMessage):
            print(plain(f"{message.level}: {message.message}"), file=sys.stderr)
    state = dumps(states.get_stream_state(stream.name, stream.namespace)).decode()
    print(plain(f"{stream.name}: {records} records, state: {state}"), file=sys.stderr)


def _source(args: Namespace) -> dict[str, Any]:
    """Return the source of the file: a definition of ours or a manifest of Airbyte, with its configuration.

    :raises ConfigurationError: a file or the connection can't be read
    """
    from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
    from airflow_provider_rfr.hooks.api import settings_of

    source: dict[str, Any] = {"file": str(args.file)}
    if _is_manifest(args.file):
        source = {"manifest": args.file, **({"components": args.components} if args.components else {})}
    elif args.components:
        raise ConfigurationError("--components", f"{args.file} is no manifest of Airbyte", "leave it out")
    if args.config is not None:
        source["config"] = dict(config_of(args.config))
    settings = settings_of(args.api_conn_id)
    mask_secrets(settings.secrets.values())
    return settings.completed(source)


def _is_manifest(file: Path) -> bool:
    """Tell whether the file is a manifest of Airbyte; one that can't be read is left to the reader of definitions."""
    try:
        document = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, Mapping) and (document.get("type") == "DeclarativeSource" or "check" in document)


def _states(file: Path) -> list[Any]:
    """Return the states of a file, in the form of Airbyte's protocol; none if there is no such file yet."""
    try:
        states = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError("--state", f"{file} can't be read: {error.strerror}") from None
    except ValueError:
        states = None
    if not isinstance(states, list) or not all(isinstance(state, Mapping) for state in states):
        raise ConfigurationError("--state", f"{file} is not a JSON array of states", "name a new file")
    return states


def _keep(states: ConnectorStateManager, args: Namespace) -> None:
    """Write all states to the file of ``--state``, which is whole at any moment."""
    if args.state is None:
        return
    draft = args.state.with_name(f"{args.state.name}.draft")
    try:
        draft.write_bytes(dumps(states.messages()) + b"\n")
        draft.replace(args.state)
    except OSError as error:
        raise ConfigurationError("--state", f"{args.state} can't be written: {error.strerror}") from None
