"""What is checked before Spark starts, in processes of their own with real folders and real programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_rfr
from airflow_provider_rfr import preflight
from airflow_provider_rfr.exceptions import PreflightError, SparkJobError
from airflow_provider_rfr.preflight import check_java, check_localhost
from tests.unit.messages import raises

pytestmark = pytest.mark.test

ROOT = Path(airflow_provider_rfr.__file__).parents[1]
PROGRAM = """
from airflow_provider_rfr.exceptions import PreflightError
from airflow_provider_rfr.preflight import check_pyspark
try:
    check_pyspark()
except PreflightError as error:
    print(error)
"""


def check_pyspark(site: Path, **installed: str) -> str:
    """What the check says where these distributions are installed and nothing else is; empty for nothing."""
    for name, version in installed.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    environment = {"PYTHONPATH": f"{site}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def pyspark_files(site: Path, version: str) -> None:
    """A pyspark that can't be imported, as an overwritten one can't."""
    folder = site / "pyspark"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('cannot import name SparkExecutorInfo')\n")
    (folder / "version.py").write_text(f"__version__: str = {version!r}\n")


def java(folder: Path, tells: str) -> Path:
    """A program in Java's place; returns its home."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{tells}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("installed", [{"pyspark": "4.1.3", "pyspark_client": "4.1.3"}, {"pyspark": "4.1.3"}, {}])
def test_one_version_passes_and_so_does_a_machine_whose_spark_is_elsewhere(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    if installed:
        pyspark_files(tmp_path, "4.1.3")
    assert check_pyspark(tmp_path, **installed) == ""


def test_two_versions_are_named_with_the_command_that_repairs_them(tmp_path: Path) -> None:
    message = check_pyspark(tmp_path, pyspark="4.1.4", pyspark_client="4.2.0")
    assert message.startswith("pyspark 4.1.4 and pyspark-client 4.2.0 are both installed")
    assert "pip install --force-reinstall --no-deps pyspark==4.2.0 pyspark-client==4.2.0" in message
    assert "\n" not in message


def test_files_that_another_installation_left_are_found_without_importing_them(tmp_path: Path) -> None:
    pyspark_files(tmp_path, "4.2.0")
    message = check_pyspark(tmp_path, pyspark="4.1.3", pyspark_client="4.1.3")
    assert message.startswith("pyspark 4.1.3 is installed but the files in its folder are of 4.2.0")
    assert "pyspark==4.1.3 pyspark-client==4.1.3" in message


@pytest.mark.parametrize("tells", ['openjdk version "25.0.1"', 'java version "1.8.0_402"', "hello"])
def test_another_program_than_java_17_or_21_is_named_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", 'openjdk version "21" 2023-09-19')))
    check_java()
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, tells)))
    with raises(PreflightError, tmp_path / "bin" / "java"):
        check_java()
    (tmp_path / "bin" / "java").chmod(0o644)
    with pytest.raises(PreflightError, match="a Java of unknown version"):
        check_java()


def test_a_java_home_without_java_is_named_and_the_path_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(java(tmp_path / "other", 'version "17.0.1"') / "bin"), prepend=":")
    with raises(PreflightError, tmp_path / "gone"):
        check_java()


def test_without_java_home_the_path_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises(PreflightError):
        check_java()
    monkeypatch.setenv("PATH", str(java(tmp_path / "jdk", 'openjdk version "17.0.1"') / "bin"), prepend=":")
    check_java()


def test_a_java_that_is_killed_or_slow_is_no_reason_to_give_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    program = java(tmp_path, "hello") / "bin" / "java"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    with raises(SparkJobError) as caught:
        check_java()
    assert caught.value.retryable
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(preflight, "_JAVA_SECONDS", 0.2)
    with raises(SparkJobError):
        check_java()


def test_java_is_asked_without_the_connections_that_this_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java(tmp_path / "jdk", 'openjdk version "17.0.1"')
    program = home / "bin" / "java"
    program.write_text(f"{program.read_text()}env > {tmp_path}/environment\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    for name in ("AIRFLOW_CONN_LAKE", "AIRFLOW_VAR_KEY", "AIRFLOW__CORE__FERNET_KEY"):
        monkeypatch.setenv(name, "canary-5d1e")
    check_java()
    told = (tmp_path / "environment").read_text()
    assert f"JAVA_HOME={home}" in told
    assert "canary-5d1e" not in told


def test_a_machine_that_does_not_know_localhost_is_told_which_line_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, port: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    check_localhost()
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with raises(PreflightError):
        check_localhost()


def test_a_refresh_by_plain_python_says_what_an_operator_says_where_java_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "spark_apps/full_refresh.py", "--config", str(tmp_path / "refresh.yaml")]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    environment["JAVA_HOME"] = str(tmp_path / "gone")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    message = json.loads(done.stdout.splitlines()[-1])["error"]["message"]
    remedy = "run: unset JAVA_HOME, or set it to a Java 17 or 21"
    assert message == f"no Java was found in JAVA_HOME, {tmp_path}/gone; {remedy}"
