"""Iceberg's own REST catalog server, from its test fixtures, as a process.

What it consists of has classifiers, which ``--packages`` can't name: a POM in a repository of the test's own does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from demo.airflow_stack import free_port
from tests.soon import PATIENCE

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


class RestCatalogServer:
    """A context manager around one server with a warehouse in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()

    @property
    def properties(self) -> dict[str, str]:
        """With which PyIceberg and Spark open the catalog."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self._port}"}

    def __enter__(self) -> RestCatalogServer:
        _write_pom(self._folder / "repository")
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
        command += ["--repositories", (self._folder / "repository").as_uri(), "--packages", ":".join(_NAME)]
        command += ["--class", "org.apache.iceberg.rest.RESTCatalogServer", "spark-internal"]
        catalog = {
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{self._folder}/warehouse",
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **catalog},
            )
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.properties['uri']}/v1/config", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        output = self._log.read_text(errors="replace")
        if "unresolved dependency" in output and not os.environ.get("CI"):
            pytest.skip("Iceberg's REST server can't be had from Maven here")
        raise RuntimeError(output[-4000:])

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
