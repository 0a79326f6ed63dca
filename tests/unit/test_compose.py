"""docker-compose.yaml, its environment file and its image: what a run of them (in CI) does not show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yaml").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?][^}]*)?\}")


def environment_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


ENVIRONMENT = environment_of(EXAMPLE)
SERVICES: dict[str, Any] = yaml.safe_load(VARIABLE.sub(lambda found: ENVIRONMENT[found[1]], COMPOSE))["services"]


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_image_is_this_projects_or_pinned_to_its_exact_version() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    postgres, lake = images.pop("postgres"), images.pop("lake")
    assert set(images.values()) == {"airflow-provider-rfr:local"}
    assert {"api-server", "scheduler", "dag-processor", "triggerer", "worker"} < set(images)
    assert re.fullmatch(r"postgres:15\.\d+-bookworm", postgres)
    assert re.fullmatch(r"chrislusf/seaweedfs:4\.\d+", lake)
    [base] = re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base)


def test_only_the_ui_and_the_lake_are_reached_from_outside_and_from_this_machine_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    lake = ["127.0.0.1:8181:8181", "127.0.0.1:8333:8333"]
    assert published == {"api-server": ["127.0.0.1:8080:8080"], "lake": lake}


def test_every_variable_is_in_the_example_and_the_other_way_round() -> None:
    lines = [line for line in COMPOSE.splitlines() if not line.lstrip().startswith("#")]
    assert set(VARIABLE.findall("\n".join(lines))) == set(ENVIRONMENT)


def test_secrets_are_written_nowhere_but_in_the_environment_file_and_compose_refuses_to_start_without_them() -> None:
    assert {name: value for name, value in ENVIRONMENT.items() if value != "change-me"} == {"AIRFLOW_PORT": "8080"}
    for name in set(ENVIRONMENT) - {"AIRFLOW_PORT"}:
        assert not re.search(rf"\$\{{{name}(?!:\?)", COMPOSE), f"{name} has to be set"
    values = re.findall(r"^ *\w*(?:PASSWORD|SECRET|KEY)\w*: (\S+)", COMPOSE, re.M)
    assert len(values) >= 9
    assert not [value for value in values if not value.startswith("${")]
    assert not re.findall(r'"password": "(?!\$\{)', COMPOSE)
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_new_environment_file_has_a_value_of_its_own_for_every_secret() -> None:
    from cryptography.fernet import Fernet

    first, second = (environment_of(run(str(ROOT / "docker" / "new_env.sh"))) for _ in range(2))
    assert set(first) == set(second) == set(ENVIRONMENT)
    for name in set(ENVIRONMENT) - {"AIRFLOW_PORT"}:
        assert first[name] != second[name] and len(first[name]) >= 44
    assert Fernet(first["AIRFLOW_FERNET_KEY"]).encrypt(b"x")


def test_only_tasks_and_triggers_are_given_connections_and_the_worker_no_database() -> None:
    settings = {name: set(service.get("environment", {})) for name, service in SERVICES.items()}
    assert {name for name in settings if "AIRFLOW_CONN_RFR_LAKE_DEFAULT" in settings[name]} == {"worker", "triggerer"}
    stores = {name for name in settings if "AIRFLOW_CONN_RFR_CONTROL_STORE" in settings[name]}
    assert stores == {"api-server", "triggerer", "worker"}
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in settings["worker"]


def test_every_setting_is_one_that_airflow_knows() -> None:
    from airflow.providers.edge3.get_provider_info import get_provider_info

    sections = yaml.safe_load((resources.files("airflow") / "config_templates" / "config.yml").read_text())
    sections |= get_provider_info()["config"]
    names = {name for service in SERVICES.values() for name in service.get("environment", {})}
    settings = [name.lower().split("__")[1:] for name in names if name.startswith("AIRFLOW__")]
    assert len(settings) >= 15
    assert not [(section, option) for section, option in settings if option not in sections[section]["options"]]


def test_every_python_package_of_the_image_has_its_version_from_the_lock() -> None:
    tomllib = pytest.importorskip("tomllib")
    steps = [shlex.split(step) for step in re.findall(r"^RUN python -m (.*)$", DOCKERFILE, re.M)]
    assert all("constraints.txt" in step for step in steps)
    [needs] = [step for step in steps if "pyproject.toml" in step]
    extras = [extra for option, extra in pairwise(needs) if option == "--extra"]
    others = needs[needs.index(extras[-1]) + 1 :]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [package for extra in extras for package in project["optional-dependencies"][extra]]
    image = {"python_full_version": "3.11.9", "python_version": "3.11"}
    lines = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    locked = [pin for pin in lines if pin.marker is None or pin.marker.evaluate(image)]
    versions = {pin.name: next(iter(pin.specifier)).version for pin in locked}
    for package in map(Requirement, [*project["dependencies"], *optional, *others]):
        assert package.specifier.contains(versions[package.name]), package


def test_the_ready_dags_change_no_lake_until_somebody_unpauses_them() -> None:
    code = "from dags.builtin_migration import dag; print(dag.is_paused_upon_creation)"
    settings = {name: value for name, value in SERVICES["worker"]["environment"].items() if "CORE__DAGS_ARE" in name}
    assert run(sys.executable, "-c", code, PYTHONPATH=str(ROOT), **settings).split()[-1] == "True"
