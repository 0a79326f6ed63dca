"""The set-up's choices, made by the real scripts with programs in Java's place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import test_preflight

ROOT = Path(__file__).resolve().parents[2]


def java(home: Path, version: str) -> Path:
    """A program that tells a version and its home as Java does; returns the home."""
    return test_preflight.java(home, f'    java.home = {home}\nopenjdk version "{version}"')


def found_java(**environment: str) -> str:
    """The home that the set-up chooses."""
    command = ["bash", "-euo", "pipefail", "-c", f"source '{ROOT}/scripts/machine.sh'; find_java"]
    clean = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=False
    ).stdout.strip()


@pytest.mark.parametrize(("version", "is_chosen"), [("21.0.4", True), ("25.0.1", False), (None, False)])
def test_java_home_wins_over_the_path_unless_it_is_too_new(
    tmp_path: Path, version: str | None, is_chosen: bool
) -> None:
    first, other = tmp_path / "first", java(tmp_path / "other", "17.0.15")
    home = {} if version is None else {"JAVA_HOME": str(java(first, version))}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(other / "bin" / "java")
    chosen = found_java(**home, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert chosen == str(first if is_chosen else other)


def test_every_script_is_sound_bash_and_stops_at_its_first_failure() -> None:
    scripts = [*(ROOT / "scripts").glob("*.sh"), ROOT / ".ci" / "run"]
    assert len(scripts) >= 5
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
        text = script.read_text()
        assert "set -euo pipefail" in text or not text.startswith("#!"), script
        assert os.access(script, os.X_OK) == text.startswith("#!"), script


def test_a_tier_of_tests_that_there_is_not_is_told_with_those_that_there_are() -> None:
    for tiers in ((), ("slow",)):
        done = subprocess.run([ROOT / "scripts" / "test.sh", *tiers], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (
            2,
            "usage: scripts/test.sh check|test|gate|all [pytest's arguments]\n",
        )


def test_everything_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    """For a user who may install nothing, on a machine without Java, with a Python as Debian installs it."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "scripts" / "machine.sh").open("a") as machine:
        machine.write("find_java() { return 1; }\nroot_with_apt() { return 1; }\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase $* in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "scripts" / "setup.sh"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line == (
        "Missing: Java 17 or 21 for Spark (or set JAVA_HOME); Python's venv module; install it, then run this again."
        " On Debian and Ubuntu: apt-get install openjdk-17-jre-headless python3-venv"
    )
    assert not (tmp_path / ".venv").exists()


PYTHON = """#!/bin/bash
printf '%s\\n' "UV_SYSTEM_CERTS=$UV_SYSTEM_CERTS PIP_CONSTRAINT=$PIP_CONSTRAINT $*" >>"{log}"
[[ $* == "-m uv"* ]] && exit {uv}
exit 0
"""


@pytest.mark.parametrize("uv", [0, 1])
def test_packages_are_installed_by_uv_with_the_systems_certificates_and_by_pip_where_uv_fails(
    tmp_path: Path, uv: int
) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    home, log = java(tmp_path / "jdk", "17.0.15"), tmp_path / "log"
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(log=log, uv=uv))
    python.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    subprocess.run([tmp_path / "scripts" / "setup.sh"], env={**clean, "JAVA_HOME": str(home)}, check=True)
    lines = log.read_text().splitlines()
    by_uv = [line for line in lines if " -m uv pip install " in line]
    by_pip = [line for line in lines if " -m pip install " in line and "PIP_CONSTRAINT=constraints.txt " in line]
    assert len(by_uv) == 2
    assert all(line.startswith("UV_SYSTEM_CERTS=true ") for line in by_uv)
    assert len(by_pip) == (2 if uv else 0)
    for first, second in (by_uv, *([by_pip] if uv else ())):
        assert "-e .[spark41,postgres,hive,sops,openlineage,airbyte,dev]" in first
        assert "--no-deps --target .venv/kubernetes apache-airflow-providers-cncf-kubernetes==" in second
