"""``airflow rfr triggers``: render templates, check and seal triggers blocks, and manage deliveries."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.cli.common import (
    command,
    lake_command,
    limit_of,
    plain,
    print_columns,
    print_data,
    print_schema,
    print_value,
    write_text,
)
from airflow_provider_rfr.exceptions import ConfigurationError, TemplateError
from airflow_provider_rfr.store.engine import instant

if TYPE_CHECKING:
    from airflow_provider_rfr.store.deliveries import EndpointKey, Selection


@command
def render(args: Namespace) -> None:
    from airflow_provider_rfr.webhooks.handlebars import compile_template

    try:
        variables = json.loads(_text(args.variables, "--variables"))
    except ValueError as error:
        raise ConfigurationError("--variables", f"is not JSON: {error}", "give a file with a JSON object") from None
    except RecursionError:
        raise ConfigurationError("--variables", "is nested too deep") from None
    if not isinstance(variables, Mapping):
        raise ConfigurationError("--variables", "is not a JSON object", 'write e.g. {"run_id": "1"}')
    template = _text(args.template, "--template")
    try:
        text = compile_template(template, json_mode=args.json_mode).render(variables)
    except TemplateError as error:
        raise ConfigurationError(str(args.template), str(error)) from None
    if not print_data({"text": text}, args):
        write_text(text)


@command
def validate(args: Namespace) -> None:
    from airflow_provider_rfr.hooks.webhooks import check_triggers

    count = len(check_triggers(args.path).endpoints)
    if not print_data({"path": str(args.path), "triggers": count}, args):
        print(f"{args.path}: nothing wrong, triggers: {count}")


@command
def schema(args: Namespace) -> None:
    from airflow_provider_rfr.webhooks.block import SCHEMA_FILE

    print_schema(SCHEMA_FILE, args)


@command
def seal(args: Namespace) -> None:
    """Print the sealed file. A file that is sealed already is printed unchanged, unless ``--reseal`` is given."""
    from airflow_provider_rfr.webhooks import sealing

    if args.reseal:
        text = sealing.reseal_file(args.path, recipients=args.recipient)
    else:
        text = sealing.seal_file(args.path, args.recipient)
    if not print_data({"text": text}, args):
        write_text(text)


@lake_command
def deliver(args: Namespace) -> int:
    """Enqueue and deliver due deliveries, once; exit code 1 if one became a dead letter or was refused."""
    from airflow_provider_rfr.hooks.webhooks import WebhookHook

    hook = WebhookHook(args.path, args.lake_conn_id, args.control_store_conn_id)
    tables = args.target or hook.all_tables()
    enqueued = hook.enqueue(tables, args.start_from)
    summary = hook.deliver(tables)
    counts = {"enqueued": enqueued, "delivered": summary.delivered, "to be repeated": summary.failed}
    counts |= {"given up": summary.dead, "pending": summary.pending}
    named = {name.replace(" ", "_"): count for name, count in counts.items()}
    if not print_data({**named, "problems": list(summary.problems)}, args):
        print(", ".join(f"{count} {name}" for name, count in counts.items()))
    for problem in summary.problems:
        print(plain(str(problem)), file=sys.stderr)
    hook.raise_unread()
    return 1 if summary.error() else 0


@command
def test_fire(args: Namespace) -> int:
    """Call an endpoint with an invented event; exit code 1 if the endpoint does not accept it."""
    from airflow_provider_rfr.hooks.api import http_settings
    from airflow_provider_rfr.hooks.webhooks import WebhookHook, configured_hosts
    from airflow_provider_rfr.store.deliveries import parts_of
    from airflow_provider_rfr.webhooks import operations
    from airflow_provider_rfr.webhooks.block import valid_name
    from airflow_provider_rfr.webhooks.validation import placeholder_events

    block = WebhookHook(args.path).block
    name, block_name = parts_of(args.trigger)
    endpoint = block.config.get(name)
    if endpoint is None or block_name not in (None, block.name or valid_name(args.path.stem)):
        raise ConfigurationError("trigger", f"there is no {args.trigger!r}", f"one of {', '.join(block.config)}")
    event = replace(placeholder_events()[0], committed_at=datetime.now(timezone.utc))
    answer = operations.test_fire(endpoint, event, connections=http_settings, allowed_hosts=configured_hosts())
    print_value(asdict(answer), args)
    return 0 if answer.delivered else 1


@command
def list_deliveries(args: Namespace) -> None:
    """Show deliveries, the newest first."""
    from airflow_provider_rfr.webhooks import operations

    limit = limit_of(args)
    store, selection = _selected(args)
    newest = operations.deliveries(store, selection, limit)
    endpoints = {row.key: row for row in operations.endpoints(store, _lake(args))}
    shown = []
    for delivery in newest:
        is_pending, hold_reason = delivery.state == "pending", None
        endpoint = endpoints.get(delivery.key) if is_pending else None
        if endpoint is not None and endpoint.disabled_at is not None:
            hold_reason = f"the endpoint is disabled: {endpoint.disabled_reason}"
        elif endpoint is not None and endpoint.paused_at is not None:
            hold_reason = "the endpoint is paused"
        is_due = is_pending and not hold_reason
        row = {
            "id": delivery.id,
            "table": delivery.key.table,
            "trigger": delivery.key.name,
            "state": delivery.state,
            "attempts": delivery.attempts,
            "sequence": delivery.sequence,
            "status": delivery.status,
            "due": instant(delivery.due_at).isoformat(timespec="seconds") if is_due else None,
            "detail": hold_reason or delivery.detail,
        }
        shown.append(row)
    if not print_data(shown, args):
        print_columns(shown, "there are no such deliveries")


@command
def replay(args: Namespace) -> int:
    """Queue deliveries again, under the same ids; exit code 1 if one that is named can't be queued."""
    from airflow_provider_rfr.webhooks import operations

    return _change(args, operations.replay, "to be delivered again", is_replay=True)


@command
def cancel(args: Namespace) -> int:
    """Cancel pending or dead deliveries for good; exit code 1 if one that is named can't be cancelled."""
    from airflow_provider_rfr.webhooks import operations

    change = partial(operations.cancel, detail=args.reason or "cancelled")
    return _change(args, change, "cancelled", is_replay=False)


@command
def pause(args: Namespace) -> None:
    from airflow_provider_rfr.webhooks import operations

    _change_endpoint(args, operations.pause, "paused")


@command
def resume(args: Namespace) -> None:
    from airflow_provider_rfr.webhooks import operations

    _change_endpoint(args, operations.resume, "resumed")


def _change_endpoint(args: Namespace, change: Callable[[Any, Sequence[EndpointKey]], object], state: str) -> None:
    from airflow_provider_rfr.webhooks import operations

    store = _store(args)
    key = operations.endpoint_named(store, _lake(args), args.target, args.trigger)
    change(store, [key])
    if not print_data({"endpoint": str(key), "state": state}, args):
        print(f"{key}: {state}")


def _store(args: Namespace) -> Any:
    from airflow_provider_rfr.hooks.control_store import ControlStoreHook

    return ControlStoreHook(args.control_store_conn_id).get_store()


def _lake(args: Namespace) -> str:
    from airflow_provider_rfr.hooks.lake import LakeHook

    return LakeHook(args.lake_conn_id).get_lake_settings().name


def _selected(args: Namespace) -> tuple[Any, Selection]:
    """Return the store, and the selection that the options name."""
    from airflow_provider_rfr.store.deliveries import Selection, parts_of

    trigger, block = parts_of(args.trigger) if args.trigger else (None, None)
    selection = Selection(
        lake=_lake(args),
        tables=args.target or (),
        trigger=trigger,
        block=block,
        states=(args.state,) if getattr(args, "state", None) else (),
        ids=tuple(getattr(args, "delivery_id", ())),
    )
    return _store(args), selection


def _change(
    args: Namespace,
    change: Callable[[Any, Selection], list[str]],
    done: str,
    *,
    is_replay: bool,
) -> int:
    """Change the named deliveries, and print them and the reasons why others were not changed; return the exit code."""
    from airflow_provider_rfr.webhooks import operations

    if not (args.delivery_id or args.target or args.trigger):
        raise ConfigurationError("deliveries", "none are named", "give ids, --target or --trigger")
    store, selection = _selected(args)
    for table in args.target or (None,):
        operations.known_endpoints(store, _lake(args), table, args.trigger)
    changed = change(store, selection)
    left = [delivery_id for delivery_id in args.delivery_id if delivery_id not in changed]
    refused = operations.why_not_changed(store, _lake(args), left, is_replay=is_replay)
    if not print_data({"changed": changed, "refused": dict(refused)}, args):
        for identity in changed:
            print(identity)
        print(f"{len(changed)} {done}", file=sys.stderr)
    for delivery_id, reason in refused.items():
        print(f"{delivery_id}: {reason}", file=sys.stderr)
    return 1 if refused else 0


def _text(path: Path, name: str) -> str:
    try:
        # Read as bytes, which keeps line ends: they are part of a template.
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(name, f"{path} can't be read: {type(error).__name__}", "name a text file") from None
