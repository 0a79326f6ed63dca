"""``airflow rfr refresh state``: the state of a table's incremental sync."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from airflow_provider_rfr.cli.common import answered, command, lake_of, print_data, say
from airflow_provider_rfr.exceptions import ConfigurationError


@command
def show(args: Namespace) -> int:
    """Print the state as JSON; 1 if the table has none."""
    from airflow_provider_rfr.lake.sync_state import load_existing, read_state

    catalog = lake_of(args)
    state = answered(lambda: read_state(load_existing(catalog, args.table)))
    if state is None:
        if not print_data(None, args):
            say(f"{args.table} has no state: the next incremental sync reads everything")
        return 1
    if not print_data(state.to_json(), args):
        say(json.dumps(state.to_json(), indent=2, ensure_ascii=False))
    return 0


@command
def set_from_file(args: Namespace) -> None:
    """Set the state from a file, or from standard input, in an empty snapshot of its own."""
    from airflow_provider_rfr.lake.sync_state import SyncState, write_state

    place = args.file or "standard input"
    try:
        text = sys.stdin.read() if args.file is None else args.file.read_text(encoding="utf-8")
        state = SyncState.from_json(json.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("file", f"{place} can't be read: {error}", "name a file with a state") from None
    except ValueError as error:
        raise ConfigurationError("file", f"{place} is not JSON: {error}", "write what `state show` prints") from None
    catalog = lake_of(args)
    snapshot_id = answered(lambda: write_state(catalog, args.table, state))
    if not print_data({"table": args.table, "snapshot_id": str(snapshot_id)}, args):
        say(f"Set the state of {args.table} in snapshot {snapshot_id}; the next sync starts from it")
