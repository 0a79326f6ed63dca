"""What Spark's errors are told as, and which errors of a task make Spark run it again. No Spark runs here."""

from __future__ import annotations

import errno
import importlib
import platform
import re
import subprocess
import sys
import threading
import zipfile
import zipimport
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import airflow_provider_rfr
from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError, SourceError, SparkJobError
from airflow_provider_rfr.refresh import cluster
from airflow_provider_rfr.refresh.cluster import (
    DRIVER_BYTES,
    EXECUTOR_PACKAGES,
    Cluster,
    DriverJobs,
    _outcome,
    _spark_error,
    _TaskFailure,
    check_packages,
    executors_awaited,
    read_archives_once,
)
from tests.soon import SOON, soon, wait_until
from tests.unit.messages import check_messages, raises


def of_library(module: str, name: str, text: str) -> Exception:
    return type(name, (Exception,), {"__module__": module})(text)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError(104, "Connection reset by peer"),
        EOFError(),
        of_library("py4j.protocol", "Py4JNetworkError", "Answer from Java side is empty"),
        of_library("py4j.protocol", "Py4JError", "PythonRDD.readRDDFromFile does not exist in the JVM"),
        of_library("py4j.protocol", "Py4JError", "An error occurred while calling o1.collect"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_jvm_that_died_is_told_as_that(error: Exception) -> None:
    told = _spark_error(error)
    assert isinstance(told, SparkJobError)
    assert "the JVM died (killed, often for memory" in str(told)
    assert told.retryable and not told.refuses_generation


def test_what_the_jvm_itself_answers_is_its_own_error() -> None:
    text = "An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([]) does not exist"
    assert "JVM died" not in str(_spark_error(of_library("py4j.protocol", "Py4JError", text)))


def test_a_jvm_that_died_while_it_started_is_told_as_that() -> None:
    error = of_library("pyspark.errors", "PySparkRuntimeError", "[JAVA_GATEWAY_EXITED] Java gateway process exited")
    assert "the JVM died while it started" in str(_spark_error(error))


def test_a_python_worker_that_was_killed_is_told_with_the_likely_cause() -> None:
    text = (
        "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Python worker exited unexpectedly"
        " (crashed). Consider setting 'spark.sql.execution.pyspark.udf.faulthandler.enabled' to true"
    )
    error = _spark_error(of_library("py4j.protocol", "Py4JJavaError", text))
    assert isinstance(error, SparkJobError)
    assert "a Python worker of an executor died (killed, often for memory: see spark.executor.memoryOverhead" in str(
        error
    )


@pytest.mark.parametrize(
    "problem",
    [
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11.",
        'Cannot run program "/no/such/python": error=2, No such file or directory',
    ],
)
def test_a_python_that_executors_can_t_run_tasks_with_is_no_error_that_a_retry_helps(problem: str) -> None:
    context: Any = SimpleNamespace(pythonExec="/opt/python")
    text = f"An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted: {problem}\n\tat x"
    if "No such file" in problem:
        text += "\nCaused by: java.io.IOException: error=2, No such file or directory\n\tat y"
    error = _spark_error(of_library("py4j.protocol", "Py4JJavaError", text), context)
    assert isinstance(error, PreflightError) and not error.retryable
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert problem.rstrip(".") in str(error)
    for part in ("/opt/python", "set spark.pyspark.python", f"version {version}", "orjson", "pyiceberg"):
        assert part in str(error)


def test_all_packages_that_an_executor_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages()
    monkeypatch.setattr(cluster, "find_spec", lambda name: None if name in ("yaml", "orjson") else object())
    with raises(PreflightError, f"({sys.executable}, {platform.python_version()})"):
        check_packages()


class Waiting:
    """A SparkContext whose cluster gives no executor; a job ends when it is cancelled."""

    def __init__(self, master: str, *executors: str) -> None:
        self.master = master
        self.cancelled = threading.Event()
        listed = [SimpleNamespace(id=lambda name=name: name) for name in ("driver", *executors)]
        listing = SimpleNamespace(size=lambda: len(listed), apply=listed.__getitem__)
        store = SimpleNamespace(executorList=lambda active: listing)
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store))
        asked = {"instances": "3", "memory": "4g", "cores": "2"}
        self.getConf = lambda: {f"spark.executor.{name}": value for name, value in asked.items()}
        self.cancelAllJobs = self.cancelled.set

    def run_job(self, seconds: float = SOON) -> None:
        if self.cancelled.wait(seconds):
            raise RuntimeError("Job 0 cancelled as part of cancellation of all jobs")


def test_a_job_without_executors_is_cancelled_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.01)
    context: Any = Waiting("yarn")
    with soon(), pytest.raises(SparkJobError) as ended, executors_awaited(context, 0.1):
        context.run_job()
    check_messages(str(ended.value))
    assert ended.value.retryable and ended.value.exit_code == 1


def test_a_job_that_waits_for_executors_without_a_limit_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "_REPORT_SECONDS", 0.02)
    context: Any = Waiting("yarn")
    with executors_awaited(context, None):
        wait_until(lambda: len(caplog.records) >= 2)
    assert re.fullmatch(r"no executor for \d+ s: asked yarn for 3 executors of 4g and 2 cores", caplog.messages[0])
    assert not context.cancelled.is_set()


@pytest.mark.parametrize(("master", "executors"), [("local[2]", ()), ("yarn", ("1",))])
def test_a_job_with_executors_or_in_the_local_mode_is_not_cancelled(
    master: str, executors: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.01)
    context: Any = Waiting(master, *executors)
    with executors_awaited(context, 0.02):
        context.run_job(seconds=0.3)
    assert not context.cancelled.is_set()


def result_of(error: Exception) -> Any:
    """Return what a task that raises this error sends to the driver."""

    def fail(item: Any) -> None:
        raise error

    return _outcome(fail, 1)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/lake/x.parquet"),
        PermissionError(errno.EACCES, "Permission denied", "/lake/x.parquet"),
        ValueError("Invalid schema"),
        SourceError("403", status=403),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_task_would_meet_again_comes_back_instead_of_being_repeated(error: Exception) -> None:
    failure = result_of(error)
    assert isinstance(failure, _TaskFailure)
    assert (type(failure.error), str(failure.error)) == (type(error), str(error))


@pytest.mark.parametrize(
    "error",
    [OSError("AWS Error NETWORK_CONNECTION"), ConnectionResetError(104, "reset"), TimeoutError(), MemoryError()],
)
def test_what_may_pass_is_left_to_spark_to_repeat(error: Exception) -> None:
    with pytest.raises(type(error)):
        result_of(error)


def test_an_error_that_cant_travel_comes_back_by_its_words() -> None:
    failure = result_of(of_library("somewhere", "OddError", "it is odd"))
    assert str(failure.error) == "a task failed: OddError: it is odd"


def test_an_archive_that_is_added_later_is_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", zipimport.zipimporter.invalidate_caches)
    archive = tmp_path / "added.zip"
    monkeypatch.syspath_prepend(archive)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("added_by_spark")
    read_archives_once()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("added_by_spark.py", "")
    importlib.invalidate_caches()
    assert importlib.import_module("added_by_spark").__name__ == "added_by_spark"


class NeverUp(Cluster):
    """Spark that is being started, and not up."""

    def _start(self) -> None: ...

    @property
    def context(self) -> Any:
        raise AssertionError("waits for Spark")


def test_the_driver_publishes_what_it_has_read_before_spark_is_up() -> None:
    starting = NeverUp("test")
    assert isinstance(starting.jobs_for(2**40), DriverJobs), "Spark was not started"
    starting.start()
    jobs = starting.jobs_for(DRIVER_BYTES)
    assert isinstance(jobs, DriverJobs)
    assert jobs.run(abs, range(-50, 0)) == list(range(50, 0, -1))
    with pytest.raises(AssertionError, match="waits"):
        starting.jobs_for(DRIVER_BYTES + 1)
    always = NeverUp("test", always=True)
    always.start()
    with pytest.raises(AssertionError, match="waits"):
        always.jobs_for(1)
    starting.ready.set()
    with pytest.raises(AssertionError, match="waits"):
        starting.jobs_for(1)


@pytest.mark.parametrize("error", [ConfigurationError("a", "b"), ConnectionError("c")])
def test_the_error_of_a_job_in_the_driver_is_raised_as_it_is(error: Exception) -> None:
    def fail(item: int) -> None:
        raise error

    with pytest.raises(type(error)):
        DriverJobs(2).run(fail, [1, 2, 3])


def test_a_python_without_packages_can_name_all_that_it_lacks() -> None:
    # As on an executor: the standard library and this package, and nothing of site-packages.
    program = """
import pickle
from airflow_provider_rfr.exceptions import PreflightError
from airflow_provider_rfr.refresh import cluster
try:
    cluster.check_packages()
except PreflightError as error:
    print(str(pickle.loads(pickle.dumps(cluster.task_error(error)))))
"""
    folder = str(Path(airflow_provider_rfr.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env={"PYTHONPATH": folder}, capture_output=True, text=True, check=False
    )
    assert f"lacks {', '.join(EXECUTOR_PACKAGES.values())}:" in done.stdout, done.stderr
