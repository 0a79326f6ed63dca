"""What is inside the wheel, what its metadata says, and what the lock holds."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import airflow_provider_rfr
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import as_paged

ROOT = Path(__file__).resolve().parents[2]
VERSION = airflow_provider_rfr.__version__
SPARKS = ("35", "40", "41", "42", "43")
LOCKED_SPARK = "41"
PINS = {
    "apache-airflow": "3.3.2",
    "apache-airflow-providers-apache-spark": "6.3.4",
    "pyspark": "4.1.3",
    "pyspark-client": "4.1.3",
    "pyiceberg": "0.12.0",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(iter(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files as an installation lays them out."""
    folder = tmp_path_factory.mktemp("installed") / "site-packages"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def stated(installed: Path) -> Message:
    return Parser().parsestr((installed / f"airflow_provider_rfr-{VERSION}.dist-info" / "METADATA").read_text())


def requirements(stated: Message) -> list[Requirement]:
    return [Requirement(text) for text in stated.get_all("Requires-Dist", [])]


def names(found: list[Requirement], extra: str = "") -> set[str]:
    """Names that an installation with this extra brings."""
    return {
        requirement.name
        for requirement in found
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    }


def locked() -> dict[str, str]:
    """Name to version, for this Python."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    stated_requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    return {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
        for requirement in stated_requirements
        if requirement.marker is None or requirement.marker.evaluate()
    }


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=installed.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_the_wheel_holds_the_package_with_its_applications_and_dags_and_nothing_else(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    info = f"airflow_provider_rfr-{VERSION}.dist-info"
    assert {name.partition("/")[0] for name in inside} == {"airflow_provider_rfr", "pyspark_rfr", info}
    expected = {"py.typed", "get_provider_info.py", "spark_apps/full_refresh.py", "dags/full_refresh.py"}
    expected |= {"sample_api/__main__.py", "sample_api/shop.yaml", "docs/glossary.md", "docs/ui.md"}
    expected |= {"cli/templates/shop.yaml", "cli/templates/dag.py.jinja"}
    assert {f"airflow_provider_rfr/{name}" for name in expected} <= inside
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= inside
    assert not [name for name in inside if "__pycache__" in name]


def test_every_module_of_the_checkout_is_in_the_wheel(installed: Path) -> None:
    ours = "airflow_provider_rfr"
    places = {ours: ours, "pyspark_rfr": "pyspark_rfr", "spark_apps": f"{ours}/spark_apps", "dags": f"{ours}/dags"}
    for package, place in places.items():
        for path in (ROOT / package).rglob("*.py"):
            copy = installed / place / path.relative_to(ROOT / package)
            assert copy.read_text() == path.read_text()


def test_an_installed_operator_finds_its_application_which_runs(installed: Path) -> None:
    program = "from airflow_provider_rfr.operators import submit; print(submit.application_path('full_refresh'))"
    output = run(installed, "-c", program)
    assert output.returncode == 0, output.stderr
    path = Path(output.stdout.splitlines()[-1])
    assert path == installed / "airflow_provider_rfr" / "spark_apps" / "full_refresh.py"
    shown = run(installed, str(path), "--help")
    assert shown.returncode == 0, shown.stderr
    assert "--config FILE" in shown.stdout
    shown = run(installed, "-m", "airflow_provider_rfr.spark_apps.full_refresh", "--help")
    assert shown.returncode == 0, shown.stderr


DAG_BAG = """
import json, sys
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag
bag = DagBag(sys.argv[1])
print(json.dumps({"errors": bag.import_errors, "dags": {dag.dag_id: dag.fileloc for dag in bag.dags.values()}}))
"""


SEVERAL_DAGS = ("builtin_sources", "builtin_materialized_views", "incremental_sync")


def dags_of(installed: Path, folder: Path) -> dict[str, str]:
    """Path of the file by id of each DAG in the folder, as Airflow finds them with the wheel alone."""
    done = run(installed, "-c", DAG_BAG, str(folder))
    assert done.returncode == 0, done.stderr
    bag = json.loads(done.stdout.splitlines()[-1])
    assert bag["errors"] == {}
    return dict(bag["dags"])


def test_a_file_that_imports_a_ready_dag_of_an_installation_has_it(installed: Path, tmp_path: Path) -> None:
    ready = {path.stem for path in (ROOT / "dags").glob("*.py")} - {*SEVERAL_DAGS}
    assert len(ready) >= 6
    for name in ready:
        (tmp_path / f"my_{name}.py").write_text(f"from airflow_provider_rfr.dags.{name} import dag\n")
    # Files that a DAG names are looked up next to the user's own file.
    assert sorted(dags_of(installed, tmp_path).values()) == sorted(str(tmp_path / f"my_{name}.py") for name in ready)


def test_a_file_that_imports_a_ready_module_with_several_dags_has_them_all(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "objects").mkdir()
    for name in ("orders", "customers"):
        declared = f"kind: source\nname: raw.{name}\ncolumns: [{{name: id, type: bigint}}]\n"
        declared += f"source: {{source: {{file: {SHOP}}}, streams: [{name}], api_conn_id: shop}}\n"
        (tmp_path / "objects" / f"{name}.yaml").write_text(declared)
    monkeypatch.setenv("RFR_BUILTIN_OBJECTS", str(tmp_path / "objects"))
    for name in SEVERAL_DAGS:
        (tmp_path / f"{name}.py").write_text(f"import airflow_provider_rfr.dags.{name}\n")
    dags = {"builtin_sources": ("refresh_raw.orders", "refresh_raw.customers")}
    dags |= {"incremental_sync": ("incremental_sync", "incremental_sync_in_full")}
    expected = {dag_id: str(tmp_path / f"{name}.py") for name, dag_ids in dags.items() for dag_id in dag_ids}
    assert dags_of(installed, tmp_path) == expected


@pytest.mark.test
def test_the_sample_api_of_an_installation_runs_and_names_a_source_for_it(installed: Path) -> None:
    command = [sys.executable, "-m", "airflow_provider_rfr.sample_api", "--until-stdin-closes", "--records=300"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=installed, env=environment, stdin=pipe, stdout=pipe, text=True) as api:
        ready = json.loads(api.stdout.readline())
        source = {"file": ready["source"], "config": {"base_url": ready["base_url"]}}
        slices = list(as_paged(load_stream(source, "orders")).stream_slices())
        page = as_paged(load_stream(source, "orders")).read_page(slices[0], None)
        api.stdin.close()
    assert Path(ready["source"]).is_relative_to(installed)
    assert len(page.records) == 100


def test_an_installation_alone_brings_no_pyspark_for_operators_only_submit(stated: Message) -> None:
    assert not {"pyspark", "pyspark-client"} & names(requirements(stated))


@pytest.mark.parametrize("spark", SPARKS)
def test_the_extra_of_a_spark_brings_equal_versions_or_no_client(stated: Message, spark: str) -> None:
    found = {
        requirement.name: str(requirement.specifier)
        for requirement in requirements(stated)
        if requirement.marker and f'"spark{spark}"' in str(requirement.marker)
    }
    assert ".".join(spark) in found["pyspark"]
    if "pyspark-client" in found:
        assert found["pyspark"] == found["pyspark-client"] and found["pyspark"].startswith("==")
        row = f"| `spark{spark}` | {found['pyspark'].removeprefix('==')}"
        assert row in (ROOT / "docs" / "compatibility.md").read_text()
    else:
        # The last Spark provider that does not bring the client.
        assert found["apache-airflow-providers-apache-spark"] == "<6"


def test_the_metadata_names_licence_pythons_and_the_documentation_that_airflow_links_to(stated: Message) -> None:
    assert stated["Name"] == "airflow-provider-rfr"
    assert stated["License-Expression"] == "Apache-2.0"
    assert stated["Requires-Python"] == ">=3.10"
    assert [url for url in stated.get_all("Project-URL", []) if url.startswith("Documentation, https://")]
    assert set(stated.get_all("Provides-Extra", [])) == {
        "airbyte",
        "dev",
        "glue",
        "hive",
        "kubernetes",
        "openlineage",
        "postgres",
        "pyspark",
        "sops",
        *(f"spark{version}" for version in SPARKS),
    }


def test_everything_that_the_package_imports_is_required(stated: Message) -> None:
    known = {"yaml": "pyyaml", "airflow": "apache-airflow", "pydantic_core": "pydantic", "py4j": "pyspark"}
    # OpenLineage's comes with the extra of that name; for Kerberos a sentence says what to install.
    known |= {"openlineage": "apache-airflow", "requests_kerberos": "requests"}
    # Only catalogs of AWS and Hive need them, and come with them: pyiceberg[glue], pyiceberg[hive].
    known |= dict.fromkeys(("botocore", "thrift", "hive_metastore"), "pyiceberg")
    # airbyte-cdk comes with the extra of that name, and with it what it requires itself.
    known |= {"airbyte_cdk": "airbyte-cdk", "jsonschema": "airbyte-cdk", "isodate": "airbyte-cdk"}
    known |= {"pybars": "pybars3", "pymeta": "pybars3", "typing_extensions": "pydantic"}
    # The pages run in Airflow's own API server; uvloop, which the sample API can do without, comes with it.
    known |= {"fastapi": "apache-airflow", "starlette": "apache-airflow", "uvloop": "apache-airflow"}
    modules = set()
    for path in (ROOT / "airflow_provider_rfr").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    outside = modules - sys.stdlib_module_names - {"airflow_provider_rfr", "__future__"}
    extras = {name for extra in ("pyspark", "sops", "airbyte") for name in names(requirements(stated), extra)}
    required = names(requirements(stated)) | extras
    assert not {name for name in outside if known.get(name, name) not in required}


def test_the_lock_pins_one_version_of_each_and_names_no_index_and_no_hash() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pin = re.compile(r"[a-z0-9][a-z0-9.-]*==[a-z0-9.!+]+( ; [^;#]+)?")
    assert not [line for line in lines if not line.startswith("#") and not pin.fullmatch(line)]


def test_the_lock_holds_the_tested_versions() -> None:
    pins = locked()
    older = {"apache-airflow-providers-apache-spark"} if sys.version_info < (3, 11) else set()
    assert {name: pins[name] for name in PINS if name not in older} == {
        name: version for name, version in PINS.items() if name not in older
    }


def test_the_lock_covers_every_requirement_within_its_range(stated: Message) -> None:
    pins = locked()
    others = [f"spark{version}" for version in SPARKS if version != LOCKED_SPARK]
    wanted = [found for found in requirements(stated) if not any(extra in str(found.marker) for extra in others)]
    missing = [found.name for found in wanted if canonicalize_name(found.name) not in pins]
    outside = [str(found) for found in wanted if not found.specifier.contains(pins.get(found.name.lower(), ""))]
    assert (missing, outside) == ([], [])
