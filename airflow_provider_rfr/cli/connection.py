"""``airflow rfr connection``: alter, drop or try a connection; show its uses and its history."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.cli.common import command, limit_of, moment, plain, print_data, say_lines, user_name
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.text import quantity

if TYPE_CHECKING:
    from airflow_provider_rfr.connections.alteration import Outcome
    from airflow_provider_rfr.connections.statement import Statement
    from airflow_provider_rfr.hooks.connections import ConnectionsHook


@command
def alter(args: Namespace) -> int:
    """Execute a statement; exit code 1 if a dependent of the connection could not be restarted."""
    from airflow_provider_rfr.connections import parse_statement
    from airflow_provider_rfr.operators.connections import settings_with

    statement = parse_statement(args.statement)
    settings = settings_with(
        statement.settings,
        dry_run=args.dry_run,
        validate=not args.no_validate,
        restart=not args.no_restart,
        new_identity=args.new_identity,
    )
    parameters: Any = {}
    if args.parameters is not None:
        try:
            file = args.parameters
            parameters = json.loads(sys.stdin.read() if file == Path("-") else file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            # Not the parser's message, which may quote the secrets.
            problem = f"can't be read: {type(error).__name__}"
            raise ConfigurationError("--parameters", problem, "name a JSON file") from None
    if not isinstance(parameters, dict):
        raise ConfigurationError("--parameters", "must be a JSON object", 'write e.g. {"token": "..."}')
    outcome = _execute(replace(statement, settings=settings), args, parameters)
    return 1 if any(task.outcome.startswith(("could not", "unknown")) for task in outcome.dependents) else 0


@command
def validate(args: Namespace) -> None:
    from airflow_provider_rfr.connections import Statement, Verb

    _execute(Statement(Verb.VALIDATE, args.connection), args, {})


@command
def dependents(args: Namespace) -> None:
    tasks = _hook(args).dependents(args.connection)
    if print_data([task.to_json() for task in tasks], args):
        return
    for task in tasks:
        stale = ", with settings that were altered since" if task.use.is_stale else ""
        error = f" ({task.use.error})" if task.use.error else ""
        say_lines(task.line("", f"{task.reason}{stale}{error}"))
    use = "uses" if len(tasks) == 1 else "use"
    print(f"{quantity(len(tasks), 'task')} {use} {args.connection}", file=sys.stderr)


@command
def history(args: Namespace) -> None:
    """Print the alterations, the newest first."""
    rows = _hook(args).history(args.connection, limit_of(args))
    if print_data([asdict(row) for row in rows], args):
        return
    for row in rows:
        tried = {True: ", tried before", False: ", not tried before", None: ""}[row.validated]
        say_lines(f"{moment(row.started_at)} {row.conn_id} {row.state}{tried}, by {row.actor}: {row.statement}")
        for option, change in row.options.items():
            say_lines(f"  {option}: {change['before']} -> {change['after']}")
        for dependent in row.dependents:
            task = f"{dependent['dag_id']}.{dependent['task_id']} ({dependent['run_id']})"
            say_lines(f"  {dependent['kind']} {task}: {dependent.get('outcome') or dependent['verdict']}")
        if row.detail:
            say_lines(f"  {row.detail}")
    if not rows:
        of = f" of {args.connection}" if args.connection else ""
        print(f"no ALTER CONNECTION{of} yet", file=sys.stderr)


def _execute(statement: Statement, args: Namespace, parameters: Mapping[str, Any]) -> Outcome:
    outcome = _hook(args).execute(statement, actor=f"{user_name()} at the command line", parameters=parameters)
    if not print_data(outcome.to_json(), args):
        say_lines("\n".join(outcome.lines()))
    return outcome


def _hook(args: Namespace) -> ConnectionsHook:
    from airflow_provider_rfr.connections.airflow.lookup import has_airflow_database
    from airflow_provider_rfr.hooks.connections import ConnectionsHook

    return ConnectionsHook(
        args.airflow_api_conn_id,
        args.control_store_conn_id,
        report=lambda line: print(plain(line), file=sys.stderr),
        at_database=args.airflow_api_conn_id is None and has_airflow_database(),
    )
