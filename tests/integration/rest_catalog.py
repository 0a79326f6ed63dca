"""Iceberg's own REST catalog server, from its test fixtures, as a process.

What it consists of has classifiers, which ``--packages`` can't name: a POM in a repository of the test's own does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from demo.airflow_stack import free_port
from tests.soon import answers, wait_until

_ICEBERG, _JETTY, _SQLITE = "1.11.0", "12.1.14", "3.50.3.0"
_PARTS: Final = (
    ("org.apache.iceberg", "iceberg-core", _ICEBERG, ""),
    ("org.apache.iceberg", "iceberg-core", _ICEBERG, "tests"),
    ("org.apache.iceberg", "iceberg-open-api", _ICEBERG, "test-fixtures"),
    ("org.eclipse.jetty.ee10", "jetty-ee10-servlet", _JETTY, ""),
    ("org.eclipse.jetty.compression", "jetty-compression-server", _JETTY, ""),
    ("org.eclipse.jetty.compression", "jetty-compression-gzip", _JETTY, ""),
    ("org.xerial", "sqlite-jdbc", _SQLITE, ""),
)
_NAME: Final = ("rfr.test", "rest-catalog", "1")


@dataclass(frozen=True)
class RestCatalog:
    """A server that runs on loopback."""

    port: int

    @property
    def properties(self) -> dict[str, str]:
        """With which PyIceberg and Spark open the catalog."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.port}"}


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalog]:
    """Run a server with a warehouse in the folder."""
    _write_pom(folder / "repository")
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
    command += ["--repositories", (folder / "repository").as_uri(), "--packages", ":".join(_NAME)]
    command += ["--class", "org.apache.iceberg.rest.RESTCatalogServer", "spark-internal"]
    catalog = RestCatalog(free_port())
    config = f"{catalog.properties['uri']}/v1/config"
    settings = {
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
        "CATALOG_REST_PORT": str(catalog.port),
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
    }
    environment, log = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **settings}, folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environment)
    try:
        wait_until(lambda: server.poll() is not None or answers(config), every=0.2, describe=log.read_text)
        if server.poll() is not None:
            said = log.read_text(errors="replace")
            if "unresolved dependency" in said and not os.environ.get("CI"):
                pytest.skip("Iceberg's REST server can't be had from Maven here")
            raise RuntimeError(said[-4000:])
        yield catalog
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _write_pom(repository: Path) -> None:
    group, name, version = _NAME
    folder = repository.joinpath(*group.split("."), name, version)
    folder.mkdir(parents=True)
    parts = "".join(map(_dependency, _PARTS))
    coordinates = _coordinates(*_NAME)
    head = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    text = f"{head}{coordinates}<packaging>pom</packaging><dependencies>{parts}</dependencies></project>"
    (folder / f"{name}-{version}.pom").write_text(text)


def _dependency(part: tuple[str, str, str, str]) -> str:
    *coordinates, classifier = part
    of_class = f"<classifier>{classifier}</classifier>" if classifier else ""
    return f"<dependency>{_coordinates(*coordinates)}{of_class}</dependency>"


def _coordinates(group: str, name: str, version: str) -> str:
    return f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
