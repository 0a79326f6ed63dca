"""Search for the DAGs whose tasks commands inspect, parsed as Airflow parses them."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError, Problem

if TYPE_CHECKING:
    from airflow.sdk import DAG

_MODULES: Final = "airflow_provider_rfr."


def find_dag(dag_id: str) -> DAG:
    """Parse Airflow's DAG bundles until one has the DAG.

    :raises ConfigurationError: no bundle has it; has the import errors of files that name it, or the nearest id
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    from airflow_provider_rfr.compat import parsed_bundle
    from airflow_provider_rfr.documents import nearest

    ids: list[str] = []
    errors: list[tuple[Path, str]] = []
    # Airflow logs a traceback for each file that can't be imported, also for files of other DAGs.
    logging.getLogger("airflow.dag_processing").setLevel(logging.CRITICAL)
    # DAG files may print, and scripts read the command's standard output.
    with redirect_stdout(sys.stderr):
        for bundle in DagBundlesManager().get_all_dag_bundles():  # type: ignore[no-untyped-call]
            bundle.initialize()
            bag = parsed_bundle(bundle)
            if (dag := bag.dags.get(dag_id)) is not None:
                return dag
            ids += bag.dags
            errors += [(bundle.path / name, error) for name, error in bag.import_errors.items()]
    whole_id = re.compile(rf"(?<![\w.-]){re.escape(dag_id)}(?![\w.-])")
    problems = []
    for file, error in errors:
        if file.is_file() and whole_id.search(file.read_text(encoding="utf-8", errors="replace")):
            *_, line = error.strip().splitlines() or [""]
            problems.append(Problem("", f"can't be imported: {line}", f"correct it; run: python {file}", str(file)))
    if problems:
        raise ConfigurationError.of(problems)
    near = nearest(dag_id, ids)
    remedy = (f"did you mean {near}? " if near else "") + "run: airflow dags list"
    if errors:
        remedy += f"; files that can't be imported: {len(errors)}, see airflow dags list-import-errors"
    raise ConfigurationError("--dag", f"there is no DAG {dag_id!r}", remedy)


def tasks_of_package(dag: DAG) -> Iterator[Any]:
    """Yield the DAG's tasks whose operator is of this package, or derived from one."""
    tasks: list[Any] = list(dag.tasks)
    for task in tasks:
        operator: type = task.operator_class if is_mapped(task) else type(task)
        if any(kind.__module__.startswith(_MODULES) for kind in operator.__mro__):
            yield task


def is_mapped(task: Any) -> bool:
    """Tell whether the task is mapped, so that its arguments exist only in a run."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    return isinstance(task, MappedOperator)
