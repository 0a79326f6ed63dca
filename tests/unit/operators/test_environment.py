from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from airflow_provider_rfr.exceptions import PreflightError
from airflow_provider_rfr.operators.submit import _python_environment, spark_environment
from tests.unit.messages import raises

SCRIPTS = Path(sys.executable).parent
OURS = {"PATH": f"{SCRIPTS}:/usr/bin"}


def spark_at(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "spark-submit").write_text("#!/bin/sh\n")
    (folder / "spark-submit").chmod(0o755)
    return folder


def test_a_spark_that_pip_installed_is_told_its_home_and_put_on_the_path() -> None:
    for path in (f"{SCRIPTS}:/usr/bin", "/usr/bin"):
        environment = spark_environment("spark-submit", {"PATH": path})
        assert Path(environment["SPARK_HOME"], "jars").is_dir()
        assert environment["PATH"].startswith(str(SCRIPTS))


def test_another_spark_on_the_path_is_left_as_it_is(tmp_path: Path) -> None:
    assert spark_environment("spark-submit", {"PATH": str(spark_at(tmp_path / "bin"))}) == {}


def test_the_spark_that_spark_home_names_is_put_on_the_path(tmp_path: Path) -> None:
    scripts = spark_at(tmp_path / "spark" / "bin")
    environment = spark_environment("spark-submit", {"PATH": "/nowhere", "SPARK_HOME": str(tmp_path / "spark")})
    assert environment == {"PATH": f"{scripts}{os.pathsep}/nowhere"}


def test_where_there_is_no_spark_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    with raises(PreflightError):
        spark_environment("spark-submit", {"PATH": "/nowhere", "SPARK_HOME": str(tmp_path)})
    (tmp_path / "bin").mkdir()
    with raises(PreflightError):
        spark_environment("spark-submit", {"PATH": "/nowhere", "SPARK_HOME": str(tmp_path)})


def test_a_local_driver_runs_this_python() -> None:
    assert _python_environment({}, {}, local=True)["PYSPARK_PYTHON"] == sys.executable
    assert _python_environment({}, {}, local=True)["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_executors_elsewhere_keep_their_own_python() -> None:
    environment = _python_environment({}, {}, local=False)
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in environment
    assert "SPARK_LOCAL_IP" not in environment


def test_a_python_that_the_user_chose_stays() -> None:
    assert "PYSPARK_PYTHON" not in _python_environment({}, {"PYSPARK_PYTHON": "/opt/python"}, local=True)


def test_the_driver_finds_a_sources_class_where_airflow_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_shop.py").write_text("raise SystemExit('not to be imported here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = _python_environment({"class": "my_shop:Orders"}, {"PYTHONPATH": "/given"}, local=True)
    assert str(tmp_path) in environment["PYTHONPATH"].split(":")
    assert environment["PYTHONPATH"].endswith(":/given")
