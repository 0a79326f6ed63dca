"""The files and the environment of a submitted application."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_rfr.exceptions import PreflightError
from airflow_provider_rfr.operators import submit
from airflow_provider_rfr.operators.submit import python_environment, spark_environment
from airflow_provider_rfr.refresh import process
from airflow_provider_rfr.refresh.process import process_started
from tests.unit.messages import raises


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_configuration_is_readable_for_its_owner_alone_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        with submit.private_folder() as folder:
            path = submit.write_config(folder, {"a": "s3cret"})
            assert [mode(path), mode(folder), mode(folder.parent)] == [0o600, 0o700, 0o700]
    finally:
        os.umask(before)


def test_it_is_gone_after_an_error_too_and_names_differ_because_files_share_the_drivers_folder() -> None:
    with pytest.raises(RuntimeError), submit.private_folder() as folder, submit.private_folder() as other:
        assert submit.write_config(folder, {}).name != submit.write_config(other, {}).name
        raise RuntimeError
    assert not (folder.exists() or other.exists())


def test_what_a_killed_attempt_left_is_swept_by_the_next() -> None:
    code = (
        "import os, signal, tempfile; from airflow_provider_rfr.operators import submit\n"
        f"tempfile.tempdir = {os.fspath(submit.tempfile.gettempdir())!r}\n"
        "with submit.private_folder() as f: submit.write_config(f, {}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3])
    base = submit._base_folder()
    assert len(list(base.rglob("*.json"))) == 1
    with submit.private_folder() as folder:
        assert list(base.iterdir()) == [folder]


def test_folders_of_the_living_and_of_other_hosts_are_left_alone() -> None:
    base = submit._base_folder()
    own = base / f"{socket.gethostname()}~{os.getpid()}~{process_started(os.getpid())}~a"
    kept = [own, base / "elsewhere~1~1~a", base / "something else"]
    for folder in kept:
        folder.mkdir()
    with submit.private_folder() as folder:
        assert set(base.iterdir()) == {folder, *kept}


def test_a_folder_that_somebody_else_could_have_made_is_not_trusted(own_temporary_folder: Path) -> None:
    (own_temporary_folder / "target").mkdir()
    (own_temporary_folder / f"airflow-provider-rfr-{os.getuid()}").symlink_to(own_temporary_folder / "target")
    with raises(PreflightError), submit.private_folder():
        pass


def test_executors_get_the_domain_and_no_airflow(tmp_path: Path) -> None:
    archive = submit.zip_package(tmp_path)
    names = zipfile.ZipFile(archive).namelist()
    modules = {"__init__.py", "documents.py", "exceptions.py", "numbers.py", "preflight.py", "text.py", "timeouts.py"}
    assert {name.split("/")[1] for name in names} == modules | {"http", "streams", "lake", "refresh"}
    assert_imports_without_airflow(archive, "airflow_provider_rfr.refresh.engine")


def test_a_migration_takes_along_what_it_imports(tmp_path: Path) -> None:
    archive = submit.zip_package(tmp_path, submit._MIGRATION_PARTS)
    assert_imports_without_airflow(archive, "airflow_provider_rfr.builtins.deploy")


def assert_imports_without_airflow(archive: Path, module: str) -> None:
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {module} as m"
    code += "; assert m.__file__.startswith(sys.argv[1]), m.__file__; assert 'airflow' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    subprocess.run([sys.executable, "-c", code, str(archive)], check=True, env=environment, cwd=archive.parent)


def test_the_application_is_found() -> None:
    assert submit.application_path("full_refresh").is_file()


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


def test_a_driver_runs_this_python_and_local_executors_too_unless_the_user_chose_one() -> None:
    local, elsewhere = (python_environment({}, {}, local=is_local) for is_local in (True, False))
    assert (local["PYSPARK_PYTHON"], local["SPARK_LOCAL_IP"]) == (sys.executable, "127.0.0.1")
    assert elsewhere["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert not {"PYSPARK_PYTHON", "SPARK_LOCAL_IP"} & elsewhere.keys()
    assert "PYSPARK_PYTHON" not in python_environment({}, {"PYSPARK_PYTHON": "/opt/python"}, local=True)
    assert local["MALLOC_ARENA_MAX"] == "2"
    assert "MALLOC_ARENA_MAX" not in python_environment({}, {"MALLOC_ARENA_MAX": "8"}, local=True)


def test_the_driver_finds_a_sources_class_where_airflow_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_shop.py").write_text("raise SystemExit('not to be imported here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = python_environment({"class": "my_shop:Orders"}, {"PYTHONPATH": "/given"}, local=True)
    assert str(tmp_path) in environment["PYTHONPATH"].split(":")
    assert environment["PYTHONPATH"].endswith(":/given")


def test_a_machine_without_a_home_starts_without_a_class_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert not any("SharedArchiveFile" in option for option in process.driver_java_options())
    assert process.write_in_background() is None
