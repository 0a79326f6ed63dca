"""Access to Spark for a refresh: Spark starts in the background, and a job runs one function in each of its tasks.

Jobs are RDD jobs, because the first SQL job of an application costs seconds more and nothing here is a query.
``collect`` gives each task's result exactly once, also when tasks are retried or run twice.

pandas is kept out: PyArrow imports it, where it is installed, as soon as a process makes an array, which takes a second
in every worker.

This module needs no package besides the standard library and PySpark, because a Python that lacks the tasks' packages
has to import it to report which ones are missing.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import platform
import sys
import threading
import time
import zipimport
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_rfr.exceptions import PreflightError, RfrError, SourceError, SparkJobError
from airflow_provider_rfr.http.redaction import redact
from airflow_provider_rfr.lake.spark import LOCAL, application_settings, spark_problem
from airflow_provider_rfr.refresh.process import driver_java_options, is_guest

if TYPE_CHECKING:
    from pyspark import SparkContext

_T = TypeVar("_T")
_R = TypeVar("_R")

_log = logging.getLogger(__name__)

EXECUTOR_PACKAGES: Final[Mapping[str, str]] = {
    **{name: name for name in ("pyarrow", "numpy", "orjson", "pydantic", "jinja2", "urllib3", "certifi", "tenacity")},
    "yaml": "pyyaml",
    "pyiceberg": "pyiceberg",
}
"""Packages that tasks import, by the names of their modules."""
_REMEDY: Final = "set spark.pyspark.python to a Python on the executors' machines that has"
_LOOK_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 60.0
DRIVER_BYTES: Final = 16 * 1024 * 1024
"""Bytes of ledger files up to which the driver publishes a load itself, if everything is read before Spark is up."""
_BYTES_A_THREAD: Final = 1024 * 1024
_BYTES_A_TASK: Final = 64 * 1024 * 1024


class _NoPandas:
    """An import finder that refuses pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return None


@contextmanager
def without_pandas() -> Iterator[None]:
    """Let ``import pandas`` fail as if it were not installed, until the context ends.

    Only for processes that run no user code, which might hand pandas objects to PyArrow later.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def read_archives_once() -> None:
    """Let this Python worker read the directory of each archive on its path once, instead of once per task.

    Spark calls ``importlib.invalidate_caches`` before each task. Python 3.10 to 3.12 then read the directory of
    ``pyspark.zip`` again for each package in it, in 100 ms of processor time; later versions read it once more, for
    the next import.

    This is safe in every version: ``zipimporter.invalidate_caches`` does nothing but forget what was read of an
    archive, and the archives of an application don't change while it runs. One that Spark adds gets an importer of
    its own, which reads its directory. Other importers, and folders, are invalidated as before.
    """
    zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]


_frozen_modules = 0


def freeze_modules() -> None:
    """Hide the objects of new modules from the garbage collector, which Spark calls after each task."""
    global _frozen_modules
    if len(sys.modules) > _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@dataclass(frozen=True, slots=True)
class _TaskFailure:
    """A permanent error of a task: the task would fail with it again."""

    error: BaseException


def equal_shares(items: Iterable[_T], least: int, size_of: Callable[[_T], int]) -> list[list[_T]]:
    """Divide items into shares of about equal size, for one task each.

    :param least: number of shares, if there are so many items; large data is divided into more, of about 64 MiB each
    :param size_of: returns an item's bytes
    """
    ordered = sorted(items, key=size_of, reverse=True)
    count = max(1, min(len(ordered), max(least, sum(map(size_of, ordered)) // _BYTES_A_TASK)))
    totals = [0] * count
    shares: list[list[_T]] = [[] for _ in totals]
    for item in ordered:
        lightest = totals.index(min(totals))
        totals[lightest] += size_of(item)
        shares[lightest].append(item)
    return [share for share in shares if share]


class DriverJobs:
    """A runner of jobs on threads of the driver.

    :ivar cores: number of tasks that run at the same time
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores

    def run(self, function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Run ``function`` once for each item; return the results in the items' order."""
        with ThreadPoolExecutor(self.cores, thread_name_prefix="rfr-publish") as pool:
            return _results(pool.map(partial(_outcome, function), items))


class Cluster:
    """The Spark application; :meth:`start` returns at once, and the first :meth:`run` waits until Spark is up.

    :param settings: Spark settings for an application that this process starts itself
    :param preload: whether the tasks' modules are loaded before local workers fork, without pandas; not for sources
        that run user code
    :param executor_wait: seconds after which a job without executors is an error; None for no limit
    :param always: whether all jobs run on Spark, even if the driver would be done before Spark is up
    :ivar is_started: whether Spark was started, or is being started
    :ivar submitted: number of jobs so far
    :ivar running: number of tasks in jobs that have not ended
    """

    def __init__(
        self,
        app_name: str,
        settings: dict[str, str] | None = None,
        *,
        preload: bool = False,
        executor_wait: float | None = None,
        always: bool = False,
    ) -> None:
        self._app_name = app_name
        self._always = always
        self._preload = preload
        self._executor_wait = executor_wait
        self._settings = settings or {}
        self._is_guest = is_guest()
        self._context: SparkContext | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self.is_started = False
        self.submitted = 0
        self.running = 0
        self.ready = threading.Event()

    def start(self) -> None:
        """Start Spark in the background, once; :attr:`ready` is set when it is warm, or has failed."""
        with self._lock:
            if self.is_started:
                return
            self.is_started = True
        threading.Thread(target=self._start, name="rfr-spark-start", daemon=True).start()

    def jobs_for(self, size: int) -> Cluster | DriverJobs:
        """Return the runner of a publish: the driver if that is faster than to wait for Spark, else Spark once up.

        :param size: bytes of the ledger's files
        :raises SparkJobError: Spark did not start
        """
        if not self.is_started or not (self._always or self.ready.is_set() or size > DRIVER_BYTES):
            return DriverJobs(min(os.cpu_count() or 1, 2) if size > _BYTES_A_THREAD else 1)
        self.context  # noqa: B018 - waits, and raises
        return self

    @property
    def context(self) -> SparkContext:
        """Return the Spark context: start Spark if necessary, wait for it, and raise the error of its start."""
        self.start()
        self.ready.wait()
        if self._error is not None:
            raise self._error
        assert self._context is not None
        return self._context

    @property
    def cores(self) -> int:
        """Return how many tasks can run at the same time on the executors that there are now."""
        # Not defaultParallelism, which is at least two outside the local mode, also with a single core.
        context = self.context
        with _readable_errors():
            if self.is_local:
                return max(1, int(context.defaultParallelism))
            cores = sum(int(executor.totalCores()) for executor in _executors(context))
            return max(1, cores // int(context.getConf().get("spark.task.cpus") or 1))

    @property
    def is_local(self) -> bool:
        """Tell whether everything runs in the driver's own processes; False while there is no context."""
        return self.ready.is_set() and self._context is not None and str(self._context.master).startswith("local")

    @property
    def ui_address(self) -> str | None:
        """Return the address of the Spark UI; None where it is turned off or there is no context."""
        if not self.ready.is_set() or self._context is None:
            return None
        url = self._context.uiWebUrl
        return str(url) if url else None

    @property
    def driver_host(self) -> str:
        """Return the address that executors reach the driver at."""
        return self.context.getConf().get("spark.driver.host") or "127.0.0.1"

    @property
    def bind_address(self) -> str:
        """Return the address that the driver listens on."""
        return self.context.getConf().get("spark.driver.bindAddress") or self.driver_host

    def run(self, function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Run ``function`` once for each item, each in a task of its own; return the results in the items' order.

        A permanent error does not make Spark repeat the task: the task returns it as a value, and it is raised here. A
        transient error (network, memory) makes Spark repeat the task, as often as Spark is configured to.
        """
        if not items:
            return []
        context = self.context
        with self._lock:
            self.submitted += 1
            self.running += len(items)
        try:
            return self._collect(context, function, items)
        finally:
            with self._lock:
                self.running -= len(items)

    def _collect(self, context: SparkContext, function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        with _readable_errors(context), executors_awaited(context, self._executor_wait):
            rdd = context.parallelize(list(items), len(items))
            return _results(rdd.mapPartitions(_in_worker(function)).collect())

    def stop(self) -> None:
        """Stop Spark, unless another program in this process started it; a local Spark ends with this process."""
        if self.ready.is_set() and self._context is not None and not (self.is_local or self._is_guest):
            self._context.stop()

    def _start(self) -> None:
        try:
            from pyspark import SparkConf, SparkContext

            if self._preload:
                # PySpark's first call imports this module to see if NumPy is installed. The real one imports pandas and
                # unittest for that, which takes a second. This substitute says no: a process that runs no user code
                # hands no NumPy value to Spark.
                answer = ModuleType("pyspark.testing.utils")
                answer.have_numpy = False  # type: ignore[attr-defined]
                sys.modules.setdefault(answer.__name__, answer)
            if is_submitted():
                # spark-submit's settings are in the JVM, and SparkConf sees them only once it is connected.
                SparkContext._ensure_initialized()
            conf = SparkConf()
            master = conf.get("spark.master") or self._settings.get("spark.master") or LOCAL
            defaults = {**application_settings(self._app_name, master), **self._settings}
            if master.startswith("local"):
                defaults.setdefault("spark.driver.extraJavaOptions", " ".join(driver_java_options()))
                if self._preload:
                    defaults.setdefault("spark.python.daemon.module", "airflow_provider_rfr.refresh.worker_daemon")
            for key, value in defaults.items():
                conf.setIfMissing(key, value)
            context = self._context = SparkContext.getOrCreate(conf)
            context.setLogLevel("ERROR")
            # Executors lack this package if it was loaded from an archive that spark-submit does not distribute.
            loader = globals()["__loader__"]
            is_archive = isinstance(loader, zipimport.zipimporter)
            if is_archive and os.path.basename(loader.archive) not in context._python_includes:
                context.addPyFile(loader.archive)
            # Start the Python workers and let them import what tasks need, while the driver reads.
            slots = max(1, int(context.defaultParallelism))
            self._collect(context, _prepare_worker, range(slots))
        except BaseException as error:  # noqa: BLE001 - raised by the property context
            self._error = _spark_error(error)
        finally:
            self.ready.set()


def is_submitted() -> bool:
    """Tell whether spark-submit started this process, so that there is a JVM already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def task_attempt() -> int:
    """Return how often Spark began the present task before, speculative copies included; 0 outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0


@contextmanager
def _readable_errors(context: SparkContext | None = None) -> Iterator[None]:
    """Shorten errors of the JVM that are raised inside to one sentence."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised again, as what caused it
        raise _spark_error(error, context) from None


def _spark_error(error: BaseException, context: SparkContext | None = None) -> BaseException:
    """Return an error of the JVM, shortened to one sentence; return any other error unchanged."""
    problem = spark_problem(error)
    if problem is None:
        return error
    return python_error(problem, context) or SparkJobError(
        f"Spark: {problem}; what was read is kept, the next attempt continues"
    )


def _prepare_worker(item: int) -> None:
    """Import the packages and modules that tasks need."""
    check_packages()
    from airflow_provider_rfr.refresh import publish_task  # noqa: F401


def _results(results: Iterable[_R | _TaskFailure]) -> list[_R]:
    """Return the results of all tasks; raise the error of the first one that failed."""
    values: list[_R] = []
    for result in results:
        if isinstance(result, _TaskFailure):
            raise result.error
        values.append(result)
    return values


def _outcome(function: Callable[[_T], _R], item: _T) -> _R | _TaskFailure:
    """Run a task; return its result, or a permanent error as a value.

    :raises Exception: a transient error, so that Spark repeats the task
    """
    try:
        return function(item)
    except Exception as error:
        if is_transient(error):
            raise
        return _TaskFailure(task_error(error))


def _in_worker(function: Callable[[_T], _R]) -> Callable[[Iterator[_T]], Iterator[_R | _TaskFailure]]:
    def run(items: Iterator[_T]) -> Iterator[_R | _TaskFailure]:
        # Called in every task, because workers of executors that join later have to be patched, too.
        read_archives_once()
        for item in items:
            yield _outcome(function, item)
        freeze_modules()

    return run


def portable_error(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """Return the error if it can be pickled and names no secret.

    Return a :class:`SourceError` with the same text, redacted, otherwise.
    """
    text = redact(str(error), secrets)
    if isinstance(error, RfrError) and text == str(error) and _travels(error):
        return error
    name = "" if isinstance(error, RfrError) else f"{type(error).__name__}: "
    return SourceError(
        f"{name}{text}" if text else type(error).__name__,
        status=getattr(error, "status", None),
        partition=getattr(error, "partition", None),
        page=getattr(error, "page", None),
    )


def task_error(error: BaseException) -> BaseException:
    """Return a task's error in a form that can be pickled; the driver redacts secrets in it."""
    if isinstance(error, RfrError):
        return portable_error(error)
    return error if _travels(error) else SparkJobError(f"a task failed: {type(error).__name__}: {error}")


def is_transient(error: BaseException) -> bool:
    """Tell whether an error is transient, so that a repeated task may succeed: network, object store, memory."""
    if isinstance(error, RfrError):
        return False
    # PyArrow's errors of an object store have no errno; those of a local disk (full, read-only) have one, and are
    # permanent.
    return isinstance(error, (ConnectionError, TimeoutError, EOFError, MemoryError)) or (
        isinstance(error, OSError) and error.errno is None
    )


def _travels(error: BaseException) -> bool:
    """Tell whether the error can be pickled without a change of its text."""
    try:
        return str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:  # noqa: BLE001 - however pickling fails, the error can't travel
        return False


def check_packages() -> None:
    """Check that this Python has the packages of tasks.

    :raises PreflightError: packages are missing; it lists all of them
    """
    missing = [package for module, package in EXECUTOR_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise PreflightError(
            f"the executors' Python ({sys.executable}, {platform.python_version()}) lacks {', '.join(missing)}:"
            f" install them there, or {_REMEDY} them"
        )


def python_error(problem: str, context: SparkContext | None) -> PreflightError | None:
    """Return the error and its remedy if Spark can't run the executors' Python; None for any other problem."""
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
    """Cancel the application's jobs if there is no executor for ``limit`` seconds; warn each minute until then.

    :param limit: seconds; None for no limit
    :raises SparkJobError: the jobs were cancelled
    """
    if str(context.master).startswith("local"):
        yield
        return
    ended, cancelled = threading.Event(), threading.Event()

    def watch() -> None:
        since = reported = time.monotonic()
        while not ended.wait(min(_LOOK_SECONDS, limit or _LOOK_SECONDS)):
            now = time.monotonic()
            if any(executor.id() != "driver" for executor in _executors(context)):
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


def _executors(context: SparkContext) -> list[Any]:
    """Return the executors that there are now, and the driver."""
    # From the JVM's status store, because the executors of SparkContext's status tracker have neither ids nor cores.
    executors = context._jsc.sc().statusStore().executorList(True)
    return [executors.apply(index) for index in range(executors.size())]


def _request(context: SparkContext) -> str:
    """Describe the executors that the application asks for."""
    conf = context.getConf()
    count = conf.get("spark.executor.instances") or "any number of"
    cores, memory = conf.get("spark.executor.cores"), conf.get("spark.executor.memory") or "1g"
    return f"{context.master} for {count} executors of {memory}" + (f" and {cores} cores" if cores else "")
