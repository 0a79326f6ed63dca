"""``airflow rfr objects``: plan and deploy built-in objects."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.cli.common import (
    command,
    lake_command,
    limit_of,
    moment,
    print_data,
    print_value,
    say_lines,
    user_name,
)
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.plan import Plan
    from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine
    from airflow_provider_rfr.hooks.builtins import BuiltinsHook

_POLICIES: Final = ("break_views", "drift", "accept_data_loss", "adopt", "keep_days")


@lake_command
def plan(args: Namespace) -> int:
    """Print the plan of a deploy. Exit code 0: nothing to do, 2: something to do, 1: it is blocked, or an error.

    With ``--check``, print the ``was`` and ``removed`` declarations that may be deleted; exit code 1 if there is any.
    """
    from airflow_provider_rfr.builtins.plan import exit_code, save_plan

    if args.check and args.save is not None:
        raise ConfigurationError("--save", "is of no use with --check, which prints no plan", "leave one of them out")
    planned = _hook(args).plan(_policies(args))
    if args.check:
        print_value([{"name": name} for name in planned.stale], args, "every `was` and `removed` is still needed")
        return 1 if planned.stale else 0
    _show(planned, args)
    if args.save is not None:
        save_plan(planned, args.save)
    return exit_code(planned)


@lake_command
def apply(args: Namespace) -> None:
    """Deploy the present declarations, or a saved plan if nothing has changed since."""
    from airflow_provider_rfr.builtins.plan import load_plan

    chosen = [f"--{name.replace('_', '-')}" for name in (*_POLICIES, "sink") if getattr(args, name) is not None]
    if args.plan is not None and chosen:
        remedy = "give it to the command plan, which saves it with the plan"
        raise ConfigurationError(chosen[0], "can't change a saved plan", remedy)
    hook = _hook(args)
    _apply(hook, hook.plan(_policies(args)) if args.plan is None else load_plan(args.plan), args)


@lake_command
def refresh(args: Namespace) -> None:
    """Refresh materialized views whose inputs have new data since their rows were computed."""
    if bool(args.names) == args.all:
        remedy = "give names or --all, not both" if args.all else "give names, or --all"
        raise ConfigurationError("name", "say which materialized views to refresh", remedy)
    hook = _hook(args)
    # The first query starts Spark, so Spark does not start if no input has new data.
    with closing(_engine(hook, args)) as sql:
        done = hook.refresh_views(args.names, sql=sql, force=args.force)
        print_value([asdict(outcome) for outcome in done], args, "no materialized view is deployed")


@lake_command
def status(args: Namespace) -> None:
    """Print the registry's state, the lease, unfinished deploys, and tables that wait to be deleted."""
    from airflow_provider_rfr.store import deploys
    from airflow_provider_rfr.store.leases import LeaseKind, lease_state

    hook = _hook(args)
    recorded, live = hook.observe()
    with hook.store.read() as connection:
        lease = lease_state(connection, LeaseKind.DEPLOY, hook.project)
        unfinished = deploys.open_deploys(connection, hook.project)
        garbage = deploys.queued(connection, hook.project)
    document = {
        "project": hook.project,
        "version": recorded.version,
        "revision": recorded.revision,
        "objects": len(recorded.objects),
        "lease": {"holder": lease.holder, "token": lease.token, "until": moment(lease.until)},
        "unfinished": [
            {"deploy_id": deploy.deploy_id, "state": deploy.state.value, "error": deploy.error} for deploy in unfinished
        ],
        "broken_views": [
            {"view": user_view.name, "reason": user_view.broken}
            for user_view in live.user_views
            if user_view.broken is not None
        ],
        "garbage": [
            {"table": row.physical, "reason": row.reason, "not_before": moment(row.not_before), "error": row.last_error}
            for row in garbage
        ],
    }
    print_value(document, args)


@command
def history(args: Namespace) -> None:
    """Print deploys, the newest first; with an id, the steps of one."""
    from airflow_provider_rfr.store import deploys

    hook, limit, empty = _hook(args), limit_of(args), "nothing was deployed yet"
    with hook.store.read() as connection:
        if args.deploy_id:
            if deploys.find_deploy(connection, args.deploy_id) is None:
                remedy = "see airflow rfr objects history"
                raise ConfigurationError("deploy", f"there is no deploy {args.deploy_id!r}", remedy)
            empty = "this deploy had no steps"
            rows = [_row(step, _OF_STEPS) for step in deploys.steps_of(connection, args.deploy_id)]
        else:
            rows = [_row(deploy, _OF_DEPLOYS) for deploy in deploys.history(connection, hook.project, limit)]
    print_value(rows, args, empty)


@lake_command
def drift(args: Namespace) -> int:
    """Print the objects that were changed by hand. Exit code 2 if there is any."""
    planned = _hook(args).plan(_policies(args))
    rows = [
        {"name": finding.name, "kind": finding.kind.value, "problems": list(map(str, finding.problems))}
        for finding in planned.drift
    ]
    print_value(rows, args, "nothing was changed by hand")
    return 2 if planned.drift else 0


@lake_command
def adopt(args: Namespace) -> None:
    """Adopt existing tables and views that are as declared; neither they nor other objects are changed."""
    hook = _hook(args)
    planned = hook.plan(_policies(args, adopt=args.names))
    adopted = {step.name.casefold() for step in planned.steps if step.how.value == "adopt"}
    if missing := [name for name in args.names if name.casefold() not in adopted]:
        problems = {finding.name.casefold(): "; ".join(map(str, finding.problems)) for finding in planned.blocked}
        problem = problems.get(missing[0].casefold(), "it is managed already, is not declared, or is not there")
        raise ConfigurationError("name", f"{missing[0]} can't be adopted: {problem}", "see the plan")
    if others := [f"{step.how.value} {step.name}" for step in planned.steps if step.how.value != "adopt"]:
        problem = f"a deploy would also do other steps: {', '.join(others)}"
        raise ConfigurationError("name", problem, "see airflow rfr objects apply --adopt")
    _apply(hook, planned, args)


@lake_command
def forget(args: Namespace) -> None:
    """Remove objects from the registry, and our markers from them; tables, views and rows stay."""
    from airflow_provider_rfr.builtins.maintenance import forget_objects

    hook = _hook(args)
    views = {obj.key for obj in hook.observe()[0].objects if obj.kind.value == "view"}
    needs_sql = not views.isdisjoint(name.casefold() for name in args.names)
    with closing(_engine(hook, args)) if needs_sql else nullcontext() as sql:
        done = list(forget_objects(args.names, project=hook.project, catalog=hook.catalog, store=hook.store, sql=sql))
    if not print_data({"forgot": done}, args):
        for name in done:
            print(f"forgot {name}")


@command
def force_unlock(args: Namespace) -> None:
    """Take the lease from a deploy that is known to be dead."""
    from airflow_provider_rfr.store.leases import force_unlock as unlock

    hook = _hook(args)
    unlock(hook.store, hook.project, args.token)
    if not print_data({"project": hook.project, "token": args.token, "state": "free"}, args):
        print(f"project {hook.project} is free; the holder of token {args.token} can no longer write")


@command
def release_sink(args: Namespace) -> None:
    """Release a sink that is on hold, with a choice how it continues."""
    from airflow_provider_rfr.sinks.run import release_sink as release

    hook = _hook(args)
    sink = hook.spec.by_key().get(args.sink_name.casefold())
    if sink is None or sink.sink is None:
        raise ConfigurationError("sink", f"{args.sink_name} is not a declared sink", "name one of the plan's sinks")
    hook.store.run(lambda connection: release(connection, sink.id, args.choice, hook.store.now(connection)))
    if not print_data({"sink": sink.name, "choice": args.choice}, args):
        print(f"{sink.name} is released: {args.choice}")


@lake_command
def gc(args: Namespace) -> int:
    """Delete tables that deploys have replaced. Exit code 1 if something could not be deleted."""
    from airflow_provider_rfr.builtins.model import encode

    done = _hook(args).collect_garbage()
    print_value(encode(done), args)
    return 1 if done.failed else 0


@command
def graph(args: Namespace) -> None:
    """Print the dependencies between objects as a graph for Graphviz."""
    from airflow_provider_rfr.builtins.queries import object_reads

    spec = _hook(args).spec
    keys = set(spec.by_key())
    lines = ["digraph builtins {", "  rankdir=LR;"]
    for obj in spec.objects:
        lines.append(f"  {json.dumps(obj.name)} [shape={'box' if obj.query is None else 'ellipse'}];")
        for read in sorted({object_read.name for object_read in object_reads(obj, known=keys)}):
            lines.append(f"  {json.dumps(read)} -> {json.dumps(obj.name)};")
    text = "\n".join([*lines, "}"])
    if not print_data({"text": text}, args):
        print(text)


_OF_STEPS: Final = ("seq", "name", "action", "attempts", "error", "state", "evidence")
_OF_DEPLOYS: Final = (
    *("deploy_id", "from_version", "to_version", "base_revision", "revision", "attempts", "actor", "error", "state"),
    *("started_at", "ended_at"),
)


def _row(record: Any, names: tuple[str, ...]) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in names}
    row["state"] = record.state.value
    if "evidence" in row:
        row["evidence"] = json.loads(record.evidence or "{}")
    return row | {name: moment(row[name]) for name in ("started_at", "ended_at") if name in row}


def _hook(args: Namespace) -> BuiltinsHook:
    from airflow_provider_rfr.hooks.builtins import BuiltinsHook

    return BuiltinsHook(
        [str(obj) for obj in args.objects or ()],
        project=args.project,
        version=args.declared_version,
        lake_conn_id=args.lake_conn_id,
        control_store_conn_id=args.control_store_conn_id,
    )


def _policies(args: Namespace, **more: Any) -> Any:
    from airflow_provider_rfr.hooks.builtins import policies_of

    policies = {name: getattr(args, name, None) for name in _POLICIES} | more
    policies["sinks"] = _pairs("--sink", getattr(args, "sink", None), "write NAME=hold, NAME=resend ...")
    return policies_of({name: value for name, value in policies.items() if value not in (None, [], {})})


def _pairs(option: str, texts: Sequence[str] | None, remedy: str) -> dict[str, str]:
    """Parse the values of a repeated option, each ``NAME=VALUE``."""
    if wrong := [text for text in texts or () if "=" not in text]:
        raise ConfigurationError(option, f"{wrong[0]!r} has no value", remedy)
    return {name: value for name, _, value in (text.partition("=") for text in texts or ())}


def _apply(hook: BuiltinsHook, planned: Plan, args: Namespace) -> None:
    """Apply a plan, and print it and the outcome; where ``--output`` asks for JSON or YAML, the outcome alone."""
    if args.output not in ("json", "yaml"):
        _show(planned, args)
    actor = f"{user_name()}, airflow rfr objects"
    # The first statement starts Spark, and most plans have none.
    with closing(_engine(hook, args)) as sql:
        done = hook.apply(planned, sql=sql, actor=actor, replan=getattr(args, "plan", None) is None)
    steps = [{"seq": step.seq, "name": step.name, "how": step.how.value} for step in done.steps]
    if not print_data({**asdict(replace(done, steps=())), "steps": steps}, args):
        print(f"deploy {done.deploy_id}: {done.state}, registry at revision {done.revision}")


def _engine(hook: BuiltinsHook, args: Namespace) -> SparkSqlEngine:
    settings = _pairs("--spark-conf", args.spark_conf, "write NAME=VALUE, e.g. spark.executor.memory=2g")
    return hook.spark_engine(settings, args.jars or ())


def _show(planned: Plan, args: Namespace) -> None:
    from airflow_provider_rfr.builtins.plan import render

    if not print_data(planned.to_json(), args):
        say_lines(render(planned))
