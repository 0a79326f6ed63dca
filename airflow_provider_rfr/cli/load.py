"""``airflow rfr load``: run a refresh or a sync that a file describes, on the Spark of this machine.

The file has the operator's arguments. They become the same document as an operator's, and the same application runs it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_rfr.cli.common import command, plain, print_error
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import EXIT_FAILED, ConfigurationError, Problem, RfrError

_OF_SYNC: Final = ("write", "full_refresh", "window")
"""Arguments of IncrementalSyncOperator alone."""
_REQUIRED: Final = {
    "source": 'name it, e.g. {"file": "shop.yaml"}',
    "streams": "name at least one stream of the source",
    "target": "write namespace.table, e.g. raw.{stream}",
}


@command
def load(args: Namespace) -> int:
    """Run the file's refresh as a process of its own. Return the exit code of the application."""
    from airflow_provider_rfr.operators.submit import private_folder, this_process, write_config

    try:
        document = _document(args.file)
        with private_folder() as folder:
            document["run"] = {**document["run"], "supervisor": this_process()}
            return _run(write_config(folder, document), document["source"])
    except RfrError as error:
        print_error(error)
        return error.exit_code


def _document(file: Path) -> dict[str, Any]:
    """Return the application's document; it holds the secrets of the connections.

    :raises ConfigurationError: the file, or a connection that it names, is wrong
    """
    from airflow_provider_rfr.hooks.lake import LakeHook
    from airflow_provider_rfr.lake import LakeSettings
    from airflow_provider_rfr.operators.arguments import REFRESH_ARGUMENTS, pending_arguments
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator, store_url
    from airflow_provider_rfr.operators.incremental import IncrementalSyncOperator
    from airflow_provider_rfr.refresh.config import parse_config, read_document

    arguments = _arguments(read_document(file, "FILE"), file)
    lake = arguments.pop("lake", None)
    of_sync = [name for name in _OF_SYNC if name in arguments]
    options = arguments.get("options")
    # The operator that a DAG would have with these arguments.
    kind = IncrementalSyncOperator if of_sync else ResumableFullRefreshOperator
    try:
        if not of_sync and isinstance(options, Mapping) and options.get("mode") == "merge":
            problem, remedy = "merge needs an incremental sync", "write it beside options, as write: merge"
            raise ConfigurationError("options.mode", problem, remedy)
        task = kind(task_id="load", **arguments)
        if pending := pending_arguments(task, *REFRESH_ARGUMENTS, *of_sync):
            problem, remedy = "is a template, which only a run of a DAG fills in", "write the value itself"
            raise ConfigurationError(pending[0], problem, remedy)
        settings = LakeHook(task.lake_conn_id).get_lake_settings() if lake is None else LakeSettings("", {})
        document = task.document_without_run(settings)
    except ConfigurationError as error:
        raise error.inside(str(file)) from None
    if lake is not None:
        document["lake"] = lake
    if (store := store_url(elsewhere=False)) is not None:
        document["store"] = store
    # The application resolves references of `lake` itself; here they are only checked.
    parse_config(document, str(file))
    return document


def _arguments(document: Any, file: Path) -> dict[str, Any]:
    """Return the arguments that the file holds; relative paths in it begin at the file's folder.

    :raises ConfigurationError: a key is unknown or missing; with every such mistake
    """
    from airflow_provider_rfr.hooks.dag_arguments import paths_in, place_of
    from airflow_provider_rfr.operators.arguments import REFRESH_ARGUMENTS

    keys = (*REFRESH_ARGUMENTS, *_OF_SYNC, "lake")
    if not isinstance(document, Mapping):
        problem = f"must be a mapping, is {type(document).__name__}"
        raise ConfigurationError("document", problem, "write source, streams and target", str(file))
    problems = [
        *(Problem(str(key), "unknown key", suggestion(str(key), keys)) for key in document if key not in keys),
        *(Problem(key, "is missing", remedy) for key, remedy in _REQUIRED.items() if document.get(key) is None),
    ]
    for key in ("api_conn_id", "lake_conn_id"):
        if not isinstance(conn_id := document.get(key, ""), str | None):
            problem = f"must be the id of a connection, is {type(conn_id).__name__}"
            problems.append(Problem(key, problem, "write it as text"))
    if document.get("lake") is not None and document.get("lake_conn_id") is not None:
        problems.append(Problem("lake", "is named by lake_conn_id as well", "leave out one of the two"))
    if problems:
        raise ConfigurationError.of(problems).at(str(file))
    arguments = {str(key): value for key, value in document.items() if value is not None}
    if isinstance(source := arguments["source"], Mapping):
        folder = file.absolute().parent
        places = {key: str(place_of(path, [folder])) for key, path in paths_in(source).items()}
        arguments["source"] = {**source, **places}
    return arguments


def _run(config: Path, source: Mapping[str, Any]) -> int:
    """Run the application, and return its exit code; signals to this process are passed on to it.

    On a terminal it draws its bar. Elsewhere standard output gets the JSON of its last line alone, and all other lines
    are printed to standard error.
    """
    from airflow_provider_rfr.hooks.spark import parse_result_line
    from airflow_provider_rfr.operators.submit import application_path, python_environment
    from airflow_provider_rfr.preflight import child_environment

    words = [sys.executable, str(application_path("full_refresh")), "--config", str(config)]
    environment = {**child_environment(), **python_environment(source, os.environ, local=True)}
    on_terminal = sys.stdout.isatty()
    output = None if on_terminal else subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdout=output, text=True, errors="replace") as process:
        # At a signal, the application commits its round and ends.
        before = {
            number: signal.signal(number, lambda received, _frame: process.send_signal(received))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            for line in process.stdout or ():
                is_result = parse_result_line(line) is not None
                print(line, end="", flush=True, file=sys.stdout if is_result else sys.stderr)
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if code < 0:
        name = signal.Signals(-code).name
        print(
            plain(f"the application was ended by {name}; run the same command again, and it continues"), file=sys.stderr
        )
        return EXIT_FAILED
    return code
