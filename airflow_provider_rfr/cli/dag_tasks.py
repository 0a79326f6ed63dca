"""The DAG of ``airflow rfr doctor --dag``, with its tasks of this package and their connections."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError, Problem
from airflow_provider_rfr.hooks.dag_arguments import is_pending

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

_PACKAGE: Final = "airflow_provider_rfr."
_CONNECTIONS: Final = ("conn_id", "lake_conn_id", "api_conn_id", "airflow_api_conn_id", "control_store_conn_id")
_INLINE: Final = ("definition", "manifest")
"""Fields of a source whose templates a refresh fills in itself, where they hold a mapping."""


def find_dag(dag_id: str) -> DAG:
    """Parse Airflow's DAG bundles until one has the DAG.

    :raises ConfigurationError: none has it; with the import errors of files that name it, or the nearest id
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag

    from airflow_provider_rfr.streams.rest.templates import guess

    ids: list[str] = []
    problems: list[Problem] = []
    broken = 0
    # It logs a traceback for each file that can't be imported, also where that is another DAG's.
    logging.getLogger("airflow.dag_processing").setLevel(logging.CRITICAL)
    # Files may print, and scripts read what the command prints.
    with redirect_stdout(sys.stderr):
        for bundle in DagBundlesManager().get_all_dag_bundles():  # type: ignore[no-untyped-call]
            bundle.initialize()
            bag = BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
            if (dag := bag.dags.get(dag_id)) is not None:
                return dag
            ids += bag.dags
            broken += len(bag.import_errors)
            problems += _import_errors(bag, bundle.path, dag_id)
    if problems:
        raise ConfigurationError.of(problems)
    remedy = f"{guess(dag_id, ids)}airflow dags list shows all"
    if broken:
        remedy += f"; files that can't be imported: {broken}, see airflow dags list-import-errors"
    raise ConfigurationError("--dag", f"there is no DAG {dag_id!r}", remedy)


def _import_errors(bag: DagBag, folder: Path, dag_id: str) -> Iterator[Problem]:
    """Yield the last line of the error of each file that names the DAG."""
    whole_id = re.compile(rf"(?<![\w.-]){re.escape(dag_id)}(?![\w.-])")
    for name, error in bag.import_errors.items():
        file = folder / name
        if file.is_file() and whole_id.search(file.read_text(encoding="utf-8", errors="replace")):
            *_, line = error.strip().splitlines() or [""]
            remedy = f"correct it; python {file} shows the whole error"
            yield Problem("", f"can't be imported: {line}", remedy, str(file))


def tasks_of_package(dag: DAG) -> list[Any]:
    """Return the DAG's tasks whose operator is of this package, or derived from one."""
    tasks: list[Any] = list(dag.tasks)
    return [task for task in tasks if any(kind.__module__.startswith(_PACKAGE) for kind in _operator(task).__mro__)]


def _operator(task: Any) -> type:
    operator: type = task.operator_class if is_mapped(task) else type(task)
    return operator


def is_mapped(task: Any) -> bool:
    """Return True if the task's arguments exist only in a run."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    return isinstance(task, MappedOperator)


def connections_of(task: Any) -> dict[str, Any]:
    """Return the connections that the task names, by argument; an id may be a template."""
    named = {field: getattr(task, field, None) for field in _CONNECTIONS}
    return {field: conn_id for field, conn_id in named.items() if conn_id}


def pending_arguments(task: ResumableFullRefreshOperator) -> list[str]:
    """Return the arguments that are needed to read a page and exist only in a run."""
    arguments: dict[str, Any] = {"api_conn_id": task.api_conn_id, "streams": task.streams, "source": task.source}
    if isinstance(task.source, Mapping):
        del arguments["source"]
        fields = {key: value for key, value in task.source.items() if key not in _INLINE or isinstance(value, str)}
        arguments |= {f"source.{key}": value for key, value in fields.items()}
    return [name for name, value in arguments.items() if is_pending(value)]
