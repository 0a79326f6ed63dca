"""``airflow rfr bundle``: a task's refresh as files for EMR, Dataproc, Databricks, Glue and the like."""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_provider_rfr.cli.common import command, print_data, say
from airflow_provider_rfr.cli.dags import find_dag, is_mapped, tasks_of_package
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator


@command
def bundle(args: Namespace) -> None:
    """Write the bundle, and print how it is submitted and which secrets its job needs."""
    from airflow_provider_rfr.operators.bundle import APPLICATION, DOCUMENT, PACKAGE, write_bundle

    task = _task(args.dag, args.task)
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


def _task(dag_id: str, task_id: str | None) -> ResumableFullRefreshOperator:
    """Return the task, or the only refresh of the DAG.

    :raises ConfigurationError: there is no such refresh, there are several, or it is mapped
    """
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

    refreshes = {
        task.task_id: task
        for task in tasks_of_package(find_dag(dag_id))
        if issubclass(task.operator_class if is_mapped(task) else type(task), ResumableFullRefreshOperator)
    }
    names = ", ".join(refreshes)
    if not refreshes:
        raise ConfigurationError("--dag", f"{dag_id} has no refresh", "name a DAG with a ResumableFullRefreshOperator")
    if task_id is None and len(refreshes) > 1:
        raise ConfigurationError("--task", f"{dag_id} has several refreshes", f"name one of {names}")
    if task_id is not None and task_id not in refreshes:
        raise ConfigurationError("--task", f"{dag_id} has no refresh {task_id!r}", f"name one of {names}")
    task = refreshes[task_id] if task_id is not None else next(iter(refreshes.values()))
    if is_mapped(task):
        remedy = "write a task of its own, e.g. in a DAG for bundles"
        raise ConfigurationError(f"task {task.task_id}", "is mapped, so its arguments are known in a run only", remedy)
    refresh: ResumableFullRefreshOperator = task
    return refresh
