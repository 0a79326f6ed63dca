"""Executors that a job needs: that the cluster gives some, and that their Python can run the tasks."""

from __future__ import annotations

import logging
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.exceptions import PreflightError, SparkJobError

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger(__name__)

EXECUTOR_PACKAGES: Final[Mapping[str, str]] = {
    **{name: name for name in ("pyarrow", "numpy", "orjson", "pydantic", "jinja2", "requests", "tenacity")},
    "yaml": "pyyaml",
    "pyiceberg": "pyiceberg",
}
"""Packages that tasks import, by the names of their modules."""
_REMEDY: Final = "set spark.pyspark.python to a Python on the executors' machines that has"
_LOOK_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 60.0


def check_packages() -> None:
    """Check that this Python has the packages of tasks.

    :raises PreflightError: naming all that it lacks
    """
    missing = [package for module, package in EXECUTOR_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise PreflightError(
            f"the executors' Python ({sys.executable}, {platform.python_version()}) lacks {', '.join(missing)}:"
            f" install them there, or {_REMEDY} them"
        )


def python_error(problem: str, context: SparkContext | None) -> PreflightError | None:
    """Return the error where Spark's problem is the executors' Python; None for any other problem."""
    if "PYTHON_VERSION_MISMATCH" not in problem and "Cannot run program" not in problem:
        return None
    executable = f" {context.pythonExec}" if context is not None else ""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = ", ".join(EXECUTOR_PACKAGES.values())
    return PreflightError(
        f"the executors can't run their Python{executable}: {problem.rstrip('.')};"
        f" {_REMEDY} the driver's version {version} and the packages {packages}"
    )


@contextmanager
def executors_awaited(context: SparkContext, limit: float | None) -> Iterator[None]:
    """Cancel the jobs of the block if there is no executor for so many seconds, and say so each minute until then.

    :param limit: None: wait for ever
    :raises SparkJobError: no executor came
    """
    if str(context.master).startswith("local"):
        yield
        return
    ended, cancelled = threading.Event(), threading.Event()

    def watch() -> None:
        # SparkContext's status tracker lists the driver as an executor, so the status store is asked.
        since = reported = time.monotonic()
        while not ended.wait(min(_LOOK_SECONDS, limit or _LOOK_SECONDS)):
            now = time.monotonic()
            if _has_executors(context):
                since = reported = now
            elif limit is not None and now - since >= limit:
                cancelled.set()
                context.cancelAllJobs()
                return
            elif now - reported >= _REPORT_SECONDS:
                reported = now
                _log.warning("no executor for %.0f s: asked %s", now - since, _request(context))

    threading.Thread(target=watch, name="rfr-executors", daemon=True).start()
    try:
        yield
    except Exception:
        if not cancelled.is_set():
            raise
        raise SparkJobError(
            f"the cluster gave no executor for {limit:g} s: asked {_request(context)}; give the cluster room for one,"
            " or set the option executor_wait; what was read is kept, the next attempt continues"
        ) from None
    finally:
        ended.set()


def _has_executors(context: SparkContext) -> bool:
    listed = context._jsc.sc().statusStore().executorList(True)
    return any(listed.apply(index).id() != "driver" for index in range(listed.size()))


def _request(context: SparkContext) -> str:
    """Describe the executors that the application asks for."""
    conf = context.getConf()
    count = conf.get("spark.executor.instances") or "any number of"
    cores, memory = conf.get("spark.executor.cores"), conf.get("spark.executor.memory") or "1g"
    return f"{context.master} for {count} executors of {memory}" + (f" and {cores} cores" if cores else "")
