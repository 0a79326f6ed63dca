"""What Spark's errors are told as, and which errors of a task make Spark run it again. No Spark runs here."""

from __future__ import annotations

import errno
import importlib
import zipfile
import zipimport
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import SourceError, SparkJobError
from airflow_provider_rfr.refresh.cluster import _each, _spark_error, _TaskFailure, read_archives_once


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


def results(function: Callable[[Any], Any]) -> list[Any]:
    return list(_each(function)(iter([1])))


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
    def fail(item: Any) -> None:
        raise error

    [failure] = results(fail)
    assert isinstance(failure, _TaskFailure)
    assert (type(failure.error), str(failure.error)) == (type(error), str(error))


@pytest.mark.parametrize(
    "error",
    [OSError("AWS Error NETWORK_CONNECTION"), ConnectionResetError(104, "reset"), TimeoutError(), MemoryError()],
)
def test_what_may_pass_is_left_to_spark_to_repeat(error: Exception) -> None:
    def fail(item: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        results(fail)


def test_an_error_that_cant_travel_comes_back_by_its_words() -> None:
    def fail(item: Any) -> None:
        raise of_library("somewhere", "OddError", "it is odd")

    [failure] = results(fail)
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
