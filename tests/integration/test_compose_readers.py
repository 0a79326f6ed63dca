"""The lake of docker-compose.yaml: loaded through the product, and read by other engines as docs/containers.md says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.conftest import ROOT, Lake, Runner, kill_group, shop
from tests.integration.weed import SeaweedServer
from tests.soon import PATIENCE

DOCS = (ROOT / "docs" / "containers.md").read_text()
ENVIRONMENT = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["x-connections"]
RECORDS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("weed")) as running:
        yield running


def here(text: str, server: SeaweedServer) -> str:
    """Return the text with the server's addresses on this machine instead of those of Compose."""
    return re.sub(
        r"\b(?:lake|localhost):(8181|8333)\b",
        lambda found: f"127.0.0.1:{server.catalog_port if found[1] == '8181' else server.s3_port}",
        text,
    )


def keys(server: SeaweedServer) -> dict[str, str]:
    return {"S3_ACCESS_KEY_ID": server.key_id, "S3_SECRET_ACCESS_KEY": server.secret}


@pytest.fixture
def lake(server: SeaweedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The lake of the connection that Compose gives to tasks."""
    from airflow_provider_rfr.hooks.lake import LakeHook

    text = here(ENVIRONMENT["AIRFLOW_CONN_RFR_LAKE_DEFAULT"], server)
    text = re.sub(r"\$\{(\w+)[^}]*\}", lambda found: keys(server)[found[1]], text)
    monkeypatch.setenv("AIRFLOW_CONN_RFR_LAKE_DEFAULT", json.dumps(json.loads(text)))
    hook = LakeHook()
    assert hook.test_connection()[0]
    settings = hook.get_conn()
    return Lake(tmp_path, dict(settings.properties), settings.name)


def test_other_engines_read_what_a_killed_and_resumed_refresh_published(
    lake: Lake, runner: Runner, api: SampleApi, server: SeaweedServer, tmp_path: Path
) -> None:
    source = shop(api, page_size=10)
    config = runner.config(source=source, streams=["orders"], options={"requests_per_second": 10, "round_seconds": 0.5})
    process = runner.start(config)
    api.wait_for_pages(20)
    kill_group(process)
    figures = runner.run(config).figures
    assert (figures["generation"], figures["attempts"]) == (1, 2)
    ids = lake.rows("raw.orders")["id"].to_pylist()
    assert sorted(ids) == sorted(api.truth("/orders")["ids"])
    count = len(ids)
    assert duckdb_count(server, tmp_path) == f"({count},)"
    assert spark_count(server, tmp_path) == str(count)


def block(language: str, holding: str) -> str:
    """Return the one block of code of the page in the language that has the text."""
    [code] = [code for code in re.findall(rf"```{language}\n(.*?)```", DOCS, re.S) if holding in code]
    return str(code)


def duckdb_count(server: SeaweedServer, folder: Path) -> str:
    program = block("python", "import duckdb")
    for name in ("avro", "httpfs", "iceberg"):
        # Here they come from PyPI.
        extensions = Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
        file = next(extensions.rglob(f"{name}.duckdb_extension"))
        program, count = re.subn(rf"INSTALL {name}\b", f"INSTALL '{file}'", program)
        assert count == 1
    return last_line([sys.executable, "-c", here(program, server)], server, folder)


def spark_count(server: SeaweedServer, folder: Path) -> str:
    commands = "\n".join(line.removeprefix("$ ") for line in block("console", "spark-sql").splitlines())
    line = last_line(["bash", "-euc", here(commands, server)], server, folder)
    assert (folder / "lake.conf").stat().st_mode & 0o077 == 0
    return line


def last_line(command: Sequence[str], server: SeaweedServer, folder: Path) -> str:
    """Run the command as a user who has read .env; return the last line that it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **keys(server), "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if "unresolved dependency" in ended.stderr + ended.stdout and not os.environ.get("CI"):
        pytest.skip("Iceberg's runtime can't be had from Maven here")
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout.strip().splitlines()[-1]
