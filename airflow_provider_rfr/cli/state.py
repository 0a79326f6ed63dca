"""``airflow rfr refresh state``: the state of a table's incremental sync."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace
from datetime import datetime, timezone

from airflow_provider_rfr.cli.common import answered, json_of, lake_command, lake_of, print_data, say
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.numbers import read_number


@lake_command
def show_state(args: Namespace) -> int:
    """Print the state as JSON; exit code 1 if the table has none."""
    from airflow_provider_rfr.lake.sync_state import has_lost_state, load_existing, read_state
    from airflow_provider_rfr.lake.types import check_identifier

    name = check_identifier(args.table, "table")
    catalog = lake_of(args)
    table = answered(lambda: load_existing(catalog, name))
    state = answered(lambda: read_state(table))
    if state is None:
        if not print_data(None, args):
            then = "is refused, since it had one" if has_lost_state(table.metadata) else "reads everything"
            say(f"{args.table} has no state: the next incremental sync {then}")
        return 1
    if not print_data(state.to_json(), args):
        print(json_of(state.to_json()))
    return 0


@lake_command
def set_state(args: Namespace) -> None:
    """Set the state from a file, or from standard input, in an empty snapshot of its own."""
    from airflow_provider_rfr.lake.sync_state import SyncState, write_state
    from airflow_provider_rfr.lake.types import check_identifier
    from airflow_provider_rfr.refresh.sync import check_values

    place, table = args.file or "standard input", check_identifier(args.table, "table")
    try:
        text = sys.stdin.read() if args.file is None else args.file.read_text(encoding="utf-8")
        state = SyncState.from_json(json.loads(text, parse_float=read_number))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("file", f"{place} can't be read: {error}", "name a file with a state") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError("file", f"{place} is not JSON: {error}", "write what `state show` prints") from None
    check_values(state, datetime.now(timezone.utc))
    catalog = lake_of(args)
    snapshot_id = answered(lambda: write_state(catalog, table, state))
    if not print_data({"table": table, "snapshot_id": str(snapshot_id)}, args):
        say(f"Set the state of {table} in snapshot {snapshot_id}; the next sync starts from it")


@lake_command
def import_state(args: Namespace) -> None:
    """Set the state that another tool has reached, converted so that a sync of the source's stream continues it."""
    from airflow_provider_rfr.cli.source import source_of
    from airflow_provider_rfr.lake.sync_state import load_existing, write_state
    from airflow_provider_rfr.lake.types import check_identifier
    from airflow_provider_rfr.operators.connections import api_addresses
    from airflow_provider_rfr.refresh.foreign_states import check_table, choose, converted, states_in
    from airflow_provider_rfr.streams.loader import load_stream, load_streams
    from airflow_provider_rfr.streams.paged import as_paged

    table = check_identifier(args.table, "table")
    try:
        states = states_in(args.state.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("state", f"{args.state} can't be read: {error}", "name a file with a state") from None
    chosen, foreign = choose(states, args.stream)
    source = source_of(args.source, args)
    if foreign.tool == "dlt" and "manifest" in source:
        remedy = "use a definition of ours as the source, or a full refresh"
        raise ConfigurationError("--source", "a manifest can't continue the state of a dlt pipeline", remedy)
    try:
        loaded = load_stream(source, args.name or chosen)
    except ConfigurationError:
        # All streams are built only to tell their names, because a source may have hundreds.
        if args.name is not None or chosen in (names := load_streams(source)):
            raise
        problem = f"is needed: the source has no stream {chosen!r}"
        raise ConfigurationError("--as", problem, f"one of {', '.join(names)}") from None
    stream = as_paged(loaded)
    state = converted(foreign, stream)
    # Without the name of the API to which the connection leads now, this would count as a state of the former API.
    if upstreams := [place["upstream"] for place in api_addresses(args.api_conn_id) if "upstream" in place]:
        state = replace(state, rules={**state.rules, "upstream": upstreams[-1]})
    catalog = lake_of(args)
    answered(lambda: check_table(stream, load_existing(catalog, table)))
    snapshot_id = answered(lambda: write_state(catalog, table, state))
    if not print_data({"table": table, "snapshot_id": str(snapshot_id), "state": state.to_json()}, args):
        print(json_of(state.to_json()))
        say(f"Set the state of {table} in snapshot {snapshot_id}; the next sync starts from it")
