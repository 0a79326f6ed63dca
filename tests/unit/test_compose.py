"""docker-compose.yaml, its environment file and its image, as far as they can be judged without a container engine."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from demo.bare_machine import command_for_ten_rows, image_steps, ports_inside
from demo.compose_file import (
    COMPOSE_FILE,
    DOCKERFILE,
    EXAMPLE,
    ROOT,
    image_environment,
    read_compose,
    read_environment,
    variables,
)

OWN_IMAGE = "airflow-provider-rfr:local"
AIRFLOW_PARTS = {"api-server", "scheduler", "dag-processor", "triggerer", "worker"}
ENVIRONMENT = read_environment(EXAMPLE.read_text())
BIN = Path(sys.executable).parent


def package_folder(name: str) -> Path:
    """Where an installed package is, without importing it."""
    found = importlib.util.find_spec(name)
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


@cache
def document() -> dict[str, Any]:
    return read_compose(COMPOSE_FILE.read_text(), ENVIRONMENT)


SERVICES = document()["services"]
RUNS_ONCE = {
    name
    for service in SERVICES.values()
    for name, how in service.get("depends_on", {}).items()
    if how["condition"] == "service_completed_successfully"
}
STAYS = sorted(set(SERVICES) - RUNS_ONCE)


def locked() -> dict[str, str]:
    """Name to version, for the image's Python."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    image = {"python_full_version": "3.11.9", "python_version": "3.11"}
    found = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate(image)]
    return {each.name: next(iter(each.specifier)).version for each in found}


def test_a_service_says_nothing_that_compose_does_not_know() -> None:
    """Compose refuses unknown names; these are all that the file uses."""
    known = {
        *("build", "command", "depends_on", "entrypoint", "environment", "expose", "healthcheck", "hostname", "image"),
        *("init", "networks", "ports", "restart", "shm_size", "stop_grace_period", "user", "volumes", "working_dir"),
    }
    for name, service in document()["services"].items():
        assert set(service) <= known, f"{name}: {set(service) - known}"


def test_there_is_a_service_for_every_part() -> None:
    others = {"postgres", "spark-master", "spark-worker-1", "spark-worker-2", "s3", "sample-api"}
    assert set(STAYS) == AIRFLOW_PARTS | others
    assert {"migrate"} == RUNS_ONCE


@pytest.mark.parametrize("name", STAYS)
def test_every_service_has_a_health_check_with_limits(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(check)


def test_whoever_waits_waits_for_health() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in RUNS_ONCE else "service_healthy"
            assert how == {"condition": expected}


def test_every_address_inside_is_waited_for_or_comes_later() -> None:
    """A name in an address is that of a service, with a port that it listens on."""
    text = json.dumps(SERVICES)
    found = set(re.findall(r"(?://|@)([a-z][\w-]*):(\d+)", text)) - {("localhost", "8080")}
    assert len(found) >= 5
    assert not {(name, port) for name, port in found if int(port) not in ports_inside(SERVICES[name])}


def test_no_two_services_listen_on_one_port() -> None:
    """So that they can be told apart where they share a machine."""
    ports = [port for service in SERVICES.values() for port in ports_inside(service)]
    assert len(ports) == len(set(ports))


def test_only_the_ui_is_reached_from_outside_and_from_this_machine_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api-server": ["127.0.0.1:8080:8080"]}


def test_every_variable_is_in_the_example_and_the_other_way_round() -> None:
    assert variables(COMPOSE_FILE.read_text()) == set(ENVIRONMENT)


def test_the_example_holds_no_secret_and_without_one_compose_refuses() -> None:
    assert {name: value for name, value in ENVIRONMENT.items() if value != "change-me"} == {"AIRFLOW_PORT": "8080"}
    for name in set(ENVIRONMENT) - {"AIRFLOW_PORT"}:
        with pytest.raises(KeyError, match=name):
            read_compose(COMPOSE_FILE.read_text(), {**ENVIRONMENT, name: ""})


def test_secrets_are_written_nowhere_but_in_the_environment_file() -> None:
    text = COMPOSE_FILE.read_text()
    values = re.findall(r"^ *\w*(?:PASSWORD|SECRET|KEY)\w*: (\S+)", text, re.M)
    assert len(values) >= 9
    assert not [value for value in values if not value.startswith("${")]
    assert not re.findall(r'"password": "(?!\$\{)', text)


def test_a_new_environment_file_has_a_value_of_its_own_for_every_secret() -> None:
    made = [read_environment(run(str(ROOT / "docker" / "new_env.sh"))) for _ in range(2)]
    assert [set(each) for each in made] == [set(ENVIRONMENT)] * 2
    for name in set(ENVIRONMENT) - {"AIRFLOW_PORT"}:
        values = {each[name] for each in made}
        assert len(values) == 2
        assert all(len(value) >= 44 for value in values)
        assert name == "AIRFLOW_FERNET_KEY" or all(value.isalnum() for value in values)
    from cryptography.fernet import Fernet

    assert Fernet(made[0]["AIRFLOW_FERNET_KEY"]).encrypt(b"x")


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_environment_file_never_gets_into_the_repository_or_the_image() -> None:
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert not [line for line in ignored if line.startswith("!.") or "env" in line]


def test_only_tasks_and_triggers_are_given_connections_and_the_worker_no_database() -> None:
    holders = {
        name for name, service in SERVICES.items() if "AIRFLOW_CONN_RFR_LAKE_DEFAULT" in service.get("environment", {})
    }
    assert holders == {"worker", "triggerer"}
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in SERVICES["worker"]["environment"]


def test_worker_triggerer_and_api_server_share_one_control_store_in_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_rfr.hooks.control_store import ControlStoreHook

    name = "AIRFLOW_CONN_RFR_CONTROL_STORE"
    settings = {service: each.get("environment", {}) for service, each in SERVICES.items()}
    found = {service: each[name] for service, each in settings.items() if name in each}
    assert set(found) == {"api-server", "triggerer", "worker"}
    [connection] = set(found.values())
    monkeypatch.setenv(name, connection)
    url = ControlStoreHook().url
    assert url.render_as_string(hide_password=False) == "postgresql+psycopg2://control:change-me@postgres:5432/control"


def test_the_ready_dags_change_no_lake_until_somebody_unpauses_them() -> None:
    code = "from dags.builtin_migration import dag; print(dag.is_paused_upon_creation)"
    settings = {name: value for name, value in SERVICES["worker"]["environment"].items() if "CORE__DAGS_ARE" in name}
    assert run(sys.executable, "-c", code, PYTHONPATH=str(ROOT), **settings).split()[-1] == "True"


def test_the_documented_command_shows_ten_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pyarrow as pa

    from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog

    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    catalog = open_catalog(LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse}))
    rows = pa.table({"id": list(range(12))})
    catalog.create_namespace("raw")
    catalog.create_table("raw.orders", rows.schema).append(rows)
    extra = {"catalog_type": "sql", "warehouse": warehouse}
    connection = json.dumps({"conn_type": "rfr_lake", "host": uri, "extra": extra})
    shown = run(*command_for_ten_rows(), AIRFLOW_CONN_RFR_LAKE_DEFAULT=connection)
    assert [line for line in shown.splitlines() if line.startswith("{'id': ")] == [f"{{'id': {n}}}" for n in range(10)]


def test_the_connections_are_what_the_hooks_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_rfr.hooks.api import ApiHook
    from airflow_provider_rfr.hooks.lake import LakeHook

    for name, value in SERVICES["worker"]["environment"].items():
        if name.startswith("AIRFLOW_CONN_"):
            monkeypatch.setenv(name, value)
    assert ApiHook().get_source_config().config["base_url"] == "http://sample-api:8091"
    lake = LakeHook().get_lake_document()
    assert lake.properties["uri"] == "postgresql+psycopg2://lake:change-me@postgres:5432/lake"
    assert lake.properties["warehouse"] == "s3://lake/warehouse"
    assert lake.properties["s3.endpoint"] == "http://s3:9000"
    assert json.loads(os.environ["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "spark://spark-master:7077"


def test_every_setting_is_one_that_airflow_knows() -> None:
    sections = yaml.safe_load((package_folder("airflow") / "config_templates" / "config.yml").read_text())
    from airflow.providers.edge3.get_provider_info import get_provider_info

    sections |= get_provider_info()["config"]
    names = {name for service in SERVICES.values() for name in service.get("environment", {})}
    settings = [name.split("__")[1:] for name in names if name.startswith("AIRFLOW__")]
    assert len(settings) >= 15
    assert not [each for each in settings if each[1].lower() not in sections[each[0].lower()]["options"]]


def commands() -> list[tuple[str, ...]]:
    found = [tuple(service["command"]) for service in SERVICES.values() if "command" in service]
    checks = [tuple(SERVICES[name]["healthcheck"]["test"][1:]) for name in STAYS]
    return sorted({*found, *checks})


def test_every_airflow_command_and_option_exists() -> None:
    from airflow.cli.cli_parser import get_parser

    parser = get_parser()
    seen = [command for command in commands() if command[0] == "airflow"]
    assert len(seen) >= 6
    for command in seen:
        parser.parse_args(command[1:])
    api = next(command for command in commands() if command[0] == "docker/api_server.sh")
    parser.parse_args(["api-server", *api[1:]])


@pytest.mark.test
def test_every_module_that_is_run_exists_and_takes_its_options() -> None:
    seen = [command for command in commands() if command[0] == "python"]
    assert {command[2] for command in seen} == {"demo.probe", "demo.s3_store", "demo.sample_api"}
    for module in ("demo.s3_store", "demo.sample_api"):
        [command] = [command for command in seen if command[2] == module]
        help_text = run(sys.executable, "-m", module, "--help", PYTHONPATH=str(ROOT))
        assert not [option for option in command if option.startswith("--") and option not in help_text]


def test_every_other_command_is_known_and_sparks_classes_are_in_the_installed_spark() -> None:
    firsts = {command[0] for command in commands()}
    assert firsts == {"airflow", "python", "spark-class", "docker/api_server.sh", "pg_isready"}
    assert (BIN / "spark-class").is_file()
    assert os.access(ROOT / "docker" / "api_server.sh", os.X_OK)
    [core] = (package_folder("pyspark") / "jars").glob("spark-core_*.jar")

    inside = set(zipfile.ZipFile(core).namelist())
    classes = {command[1] for command in commands() if command[0] == "spark-class"}
    assert len(classes) == 2
    assert {f"{name.replace('.', '/')}.class" for name in classes} <= inside


def test_every_python_package_of_the_image_has_its_version_from_the_lock() -> None:
    installs = [shlex.split(step) for step in image_steps(DOCKERFILE.read_text()) if step.startswith("RUN ")]
    assert len(installs) == 3
    for step in installs[:2]:
        assert step[step.index("-c") + 1] == "constraints.txt"
    needs = installs[1]
    assert needs[needs.index("-r") + 1] == "pyproject.toml"
    named = [needs[place + 1] for place, part in enumerate(needs) if part == "--extra"]
    assert named == ["pyspark", "postgres", "openlineage"]
    others = needs[needs.index("openlineage") + 1 :]
    assert others[0] == "apache-airflow-providers-edge3"
    assert installs[2][5:] == ["install", "--no-deps", "-b", "constraints.txt", "-e", "."]
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(each for name in named for each in extras[name]), *others]
    pins = locked()
    assert not [each for each in needed if Requirement(each).name not in pins]
    outside = [each for each in map(Requirement, needed) if not each.specifier.contains(pins[each.name])]
    assert not outside


def test_a_change_of_the_code_does_not_install_everything_again() -> None:
    """A COPY of what changed discards every step after it."""
    steps = image_steps(DOCKERFILE.read_text())
    before = steps[: next(place for place, step in enumerate(steps) if "-r pyproject.toml" in step)]
    copied = {source for step in before if step.startswith("COPY ") for source in step.split()[1:-1]}
    assert copied == {"constraints.txt", "pyproject.toml"}


def test_every_image_is_this_projects_or_pinned_to_its_exact_version() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert {name for name, image in images.items() if image != OWN_IMAGE} == {"postgres"}
    assert re.fullmatch(r"postgres:15\.\d+-bookworm", images["postgres"])
    [base] = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.M)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base)
    for image in (images["postgres"], base):
        assert image in (ROOT / "docs" / "containers.md").read_text()
    assert "openjdk-17-jre-headless" in DOCKERFILE.read_text()


def test_the_image_gets_every_file_that_it_copies_and_that_its_services_name() -> None:
    copied = [step.split()[1:-1] for step in image_steps(DOCKERFILE.read_text()) if step.startswith("COPY ")]
    sources = {source for each in copied for source in each}
    assert not [source for source in sources if not (ROOT / source).exists()]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == kept
    inside = set(re.findall(r"/opt/rfr/([\w./]+)", json.dumps(SERVICES)))
    assert inside == {"dags", "demo/shop.yaml"}
    assert {path.partition("/")[0] for path in inside} <= sources


def test_every_volume_is_named_and_its_folder_belongs_to_the_images_user() -> None:
    mounts = [volume.split(":") for service in SERVICES.values() for volume in service.get("volumes", ())]
    named = {mount[0]: mount[1] for mount in mounts if not mount[0].startswith(".")}
    scripts = {mount[0] for mount in mounts if mount[0].startswith(".")} - {"./dags"}
    assert set(named) == set(document()["volumes"]) == {"postgres-data", "s3-data", "airflow-logs"}
    for folder in (named["s3-data"], named["airflow-logs"]):
        assert folder in DOCKERFILE.read_text()
    assert scripts
    assert not [script for script in scripts if not (ROOT / script).is_file()]


def test_everything_that_reads_dags_sees_the_folder_of_the_checkout() -> None:
    folder = SERVICES["worker"]["environment"]["AIRFLOW__CORE__DAGS_FOLDER"]
    holders = {name for name, service in SERVICES.items() if f"./dags:{folder}:ro" in service.get("volumes", ())}
    assert holders == {"dag-processor", "triggerer", "worker"}
    assert (ROOT / "dags").is_dir()


def test_the_scripts_are_sound_bash_and_can_be_run() -> None:
    scripts = sorted((ROOT / "docker").glob("*.sh"))
    assert len(scripts) == 3
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
        assert "set -euo pipefail" in script.read_text()
        assert os.access(script, os.X_OK)


def test_the_images_settings_are_read() -> None:
    assert image_environment("FROM x\nENV A=1\nRUN y\nENV B=/c\n") == {"A": "1", "B": "/c"}


def test_variables_are_filled_in_as_compose_does() -> None:
    text = "a: ${A}\nb: ${B:-two}\nc: $$HOME\nd: [{e: '${A}-${B:?say it}'}]\n"
    assert read_compose(text, {"A": "1", "B": "x"}) == {"a": "1", "b": "x", "c": "$HOME", "d": [{"e": "1-x"}]}
    with pytest.raises(KeyError):
        read_compose(text, {"A": "1"})
