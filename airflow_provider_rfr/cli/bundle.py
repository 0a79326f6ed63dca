"""``airflow rfr bundle``: a task's refresh as files for EMR, Dataproc, Databricks, Glue and the like."""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import asdict

from airflow_provider_rfr.cli.common import command, print_data, say
from airflow_provider_rfr.cli.dags import find_dag, is_mapped, tasks_of_package
from airflow_provider_rfr.exceptions import ConfigurationError


@command
def bundle(args: Namespace) -> None:
    """Write the bundle of the task, or of the DAG's only refresh; print how it is submitted, and its job's secrets."""
    from airflow_provider_rfr.operators.bundle import APPLICATION, DOCUMENT, PACKAGE, write_bundle
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

    refreshes = {
        task.task_id: task
        for task in tasks_of_package(find_dag(args.dag))
        if issubclass(task.operator_class if is_mapped(task) else type(task), ResumableFullRefreshOperator)
    }
    names = ", ".join(refreshes)
    if not refreshes:
        problem, remedy = f"{args.dag} has no refresh", "name a DAG with a ResumableFullRefreshOperator"
        raise ConfigurationError("--dag", problem, remedy)
    if args.task is None and len(refreshes) > 1:
        raise ConfigurationError("--task", f"{args.dag} has several refreshes", f"name one of {names}")
    if args.task is not None and args.task not in refreshes:
        raise ConfigurationError("--task", f"{args.dag} has no refresh {args.task!r}", f"name one of {names}")
    task = refreshes[args.task] if args.task is not None else next(iter(refreshes.values()))
    if is_mapped(task):
        remedy = "write a task of its own, e.g. in a DAG for bundles"
        raise ConfigurationError(f"task {task.task_id}", "is mapped, so its arguments are known in a run only", remedy)
    secrets = write_bundle(task, args.out, args.secret_files)
    package, application, document = (args.out / name for name in (PACKAGE, APPLICATION, DOCUMENT))
    submit = shlex.join(map(str, ("spark-submit", "--py-files", package, application, "--config", document)))
    if print_data({"folder": args.out, "submit": submit, "secrets": [asdict(secret) for secret in secrets]}, args):
        return
    say(f"{args.out} has {DOCUMENT}, {APPLICATION} and {PACKAGE}, without secrets")
    # Printed unchanged, because users paste it.
    print(f"submit: {submit}")
    for secret in secrets:
        kind = "environment variable" if secret.kind == "env" else "file"
        say(f"the driver needs the {kind} {secret.name}: {', '.join(secret.fields)} (connection {secret.conn_id})")
