"""Helpers that all engines on Spark share: an application's settings and last line, translation of errors, SQL quoting.

Nothing here imports pyspark: its errors are recognised by the module names of their classes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from airflow_provider_rfr.exceptions import SparkJobError
from airflow_provider_rfr.http.redaction import Redactor

LOCAL: Final = "local[*,4]"
"""The default master. In local mode, Spark retries a failed task only if the master URL has a number of attempts."""
RESULT_START: Final = '{"rfr": "result", '
"""The beginning of an application's last line. It tells the line from other libraries' lines of JSON."""
_LIKELY_CAUSE: Final = "killed, often for memory: see spark.driver.memory and the machine's limits"
_WORKER_EXIT: Final = "Python worker exited unexpectedly"
_LIKELY_CAUSE_OF_WORKER: Final = "killed, often for memory: see spark.executor.memoryOverhead and the machines' limits"
_NO_PROGRAM: Final = re.compile(r'Cannot run program "[^"\n]+"[^\n]{0,100}')
_OF_PYTHON: Final = re.compile(r"^(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): (?!org\.apache|Traceback)(.+)$", re.M)
_OF_JAVA: Final = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.{1,300})", re.M)
_FAILED: Final = re.compile(r"Job aborted due to stage failure: (.{1,300})")


def application_settings(app_name: str, master: str | None) -> dict[str, str]:
    """Return the settings of an application that this process starts. A local one listens on this machine alone.

    Also set ``PYSPARK_PYTHON``, and for a local application ``SPARK_LOCAL_IP``, if they are not set.

    :param master: the master's URL; None if spark-submit sets it
    """
    # If plain python started the driver, its workers must run the same interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.app.name": app_name, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master is None:
        return settings
    settings["spark.master"] = master
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        settings["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    return settings


def result_line(content: Mapping[str, Any]) -> str:
    """Return the last line of an application: one JSON object with figures or errors, which are not empty."""
    return RESULT_START + json.dumps(content)[1:]


def spark_problem(error: BaseException) -> str | None:
    """Describe the failure of a Spark call in one sentence without the stack; return None for any other error."""
    kind, text = type(error), str(error)
    library = kind.__module__.partition(".")[0]
    # If the JVM dies during a call, Py4J raises a plain Py4JError, whose text may say that the method does not exist.
    # An error that the JVM itself returns has a stack trace.
    has_answer = kind.__name__ == "Py4JJavaError" or "Trace:" in text
    if isinstance(error, (ConnectionError, EOFError)) or (library == "py4j" and not has_answer):
        return f"the JVM died ({_LIKELY_CAUSE})"
    if library not in ("py4j", "pyspark"):
        return None
    if "JAVA_GATEWAY_EXITED" in text:
        return f"the JVM died while it started ({_LIKELY_CAUSE}); its output is in the log above"
    if no_program := _NO_PROGRAM.search(text):
        return no_program.group()
    if _WORKER_EXIT in text:
        return f"a Python worker of an executor died ({_LIKELY_CAUSE_OF_WORKER})"
    first, failed = text.strip().partition("\n")[0], _FAILED.search(text)
    if kind.__module__.startswith("pyspark.errors") and failed is None:
        return first
    if of_python := _OF_PYTHON.search(text):
        return of_python.group(1)
    if causes := _OF_JAVA.findall(text):
        return str(causes[-1])
    return failed.group(1) if failed else first


@contextmanager
def spark_errors(attempted: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Raise errors of Spark as a :class:`SparkJobError` of one sentence without secrets; leave other errors unchanged.

    :param attempted: what was tried, e.g. ``view ops.v``
    """
    try:
        yield
    except Exception as error:
        problem = spark_problem(error)
        if problem is None:
            raise
        raise SparkJobError(f"{attempted}: {Redactor(secrets).text(problem)}") from None


def identifier(name: str) -> str:
    """Quote one part of a name, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def table_name(name: str, catalog: str) -> str:
    """Return ``catalog.namespace.name``, each part in backticks."""
    return ".".join(map(identifier, [catalog, *name.split(".")]))


def string_literal(value: str) -> str:
    """Quote a string, whatever characters it has."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def property_list(values: Mapping[str, str]) -> str:
    """Return the properties in SQL, as a list of ``'key' = 'value'`` in parentheses, sorted by key."""
    return "(" + ", ".join(f"{string_literal(key)} = {string_literal(values[key])}" for key in sorted(values)) + ")"
