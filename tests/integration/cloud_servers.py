"""Catalogs and stores of the clouds as processes on loopback: a Hive metastore, Azurite, and one for GCS.

Each comes from its ecosystem's registry by that ecosystem's own client, which also caches it: Ivy (a part of Spark),
npx, go. Without the client, the tests are skipped, except in CI.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from demo.airflow_stack import free_port
from tests.soon import PATIENCE, wait_until

AZURITE, FAKE_GCS, HIVE = "3.35.0", "v1.56.1", "4.0.1"


@dataclass(frozen=True)
class MavenFile:
    """A file of a Maven repository."""

    group: str
    name: str
    version: str
    type: str = "jar"
    classifier: str = ""

    def as_ivy(self) -> str:
        classifier = f' m:classifier="{self.classifier}"' if self.classifier else ""
        artifact = f'<artifact name="{self.name}" type="{self.type}" ext="{self.type}"{classifier}/>'
        coordinates = f'org="{self.group}" name="{self.name}" rev="{self.version}" transitive="false"'
        return f"<dependency {coordinates}>{artifact}</dependency>"


_BUILD_SECONDS: Final = 1500
"""For the first build of a server, whose modules have to be downloaded."""
_METASTORE: Final = (
    MavenFile("org.apache.hive", "hive-standalone-metastore-server", HIVE, "tar.gz", "bin"),
    # Parts of Hadoop and what it brings, which Spark's own Hadoop has not.
    MavenFile("org.apache.hadoop", "hadoop-hdfs", "3.4.2"),
    MavenFile("commons-collections", "commons-collections", "3.2.2"),
)
_SITE: Final = {
    "metastore.schema.verification": "false",
    "metastore.task.threads.always": "",
    "metastore.thrift.bind.host": "127.0.0.1",
}


def _spark_jars() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "jars"


def _program(name: str) -> str:
    return shutil.which(name) or _missing(name)


def _missing(need: str) -> str:
    reason = f"{need} is not installed, or can't get what it needs"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def from_maven(folder: Path, *files: MavenFile) -> list[Path]:
    """Return the files, in this order, as Ivy retrieves them into the folder."""
    module = folder / "ivy.xml"
    wanted = "".join(file.as_ivy() for file in files)
    head = (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="rfr.test" module="m"/>'
    )
    module.write_text(f"{head}<dependencies>{wanted}</dependencies></ivy-module>")
    ivy = next(_spark_jars().glob("ivy-*.jar"))
    command = ["java", "-jar", str(ivy), "-ivy", str(module), "-confs", "default"]
    ended = subprocess.run(
        [*command, "-retrieve", f"{folder}/[artifact].[ext]"], capture_output=True, text=True, timeout=PATIENCE
    )
    if ended.returncode != 0:
        print(ended.stdout[-3000:], ended.stderr[-3000:])
        _missing("Ivy")
    return [folder / f"{file.name}.{file.type}" for file in files]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def _process(
    command: Sequence[str], folder: Path, is_ready: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server until the block ends; its output goes to a file in the folder."""
    log = folder / "server.log"
    with log.open("wb") as output:
        environment = {**os.environ, **(environment or {})}
        server = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, cwd=folder, env=environment
        )
    try:
        wait_until(lambda: server.poll() is not None or is_ready(), every=0.2, describe=log.read_text)
        assert server.poll() is None, log.read_text(errors="replace")[-4000:]
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextmanager
def hive_metastore(folder: Path) -> Iterator[int]:
    """Run a metastore on Derby, with databases in the folder; yield its port."""
    distribution, *jars = from_maven(folder, *_METASTORE)
    with tarfile.open(distribution) as archive:
        archive.extractall(folder, filter="data")
    home = next(folder.glob("apache-hive-metastore-*"))
    # Of Hive's and of Spark's, the classes of one version each.
    of_hive = [jar for jar in (home / "lib").glob("*.jar") if not jar.name.startswith(("log4j-", "derby"))]
    skipped = ("hive-", "datanucleus-", "spark-")
    of_spark = [jar for jar in _spark_jars().glob("*.jar") if not jar.name.startswith(skipped)]
    site = {
        **_SITE,
        "metastore.warehouse.dir": f"file://{folder}/warehouse",
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:{folder}/metastore;create=true",
    }
    properties = "".join(f"<property><name>{key}</name><value>{text}</value></property>" for key, text in site.items())
    # Not in the distribution's own folder, which configures the log for Hive's log4j.
    (folder / "metastore-site.xml").write_text(f"<configuration>{properties}</configuration>")
    classes = ":".join(map(str, [folder, *of_hive, *jars, *of_spark]))
    java = ["java", "-cp", classes, f"-Dderby.stream.error.file={folder}/derby.log"]
    package = "org.apache.hadoop.hive.metastore"
    tool = [*java, f"{package}.tools.schematool.MetastoreSchemaTool", "-dbType", "derby", "-initSchema"]
    made = subprocess.run(tool, env={**os.environ, "METASTORE_HOME": str(home)}, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    port = free_port()
    with _process([*java, f"{package}.HiveMetaStore", "-p", str(port)], folder, lambda: _listens(port)):
        yield port


@contextmanager
def azurite(folder: Path, account: str, key: str) -> Iterator[int]:
    """Run an emulator of Azure's blob storage, in memory, with one account; yield its port.

    :param key: in base64
    """
    port = free_port()
    command = [_program("npx"), "--yes", "--package", f"azurite@{AZURITE}", "azurite-blob", "--inMemoryPersistence"]
    command += ["--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    # Its five seconds are over before a client that rests comes back, which then waits four seconds to try again.
    command += ["--blobKeepAliveTimeout", "600"]
    with _process(command, folder, lambda: _listens(port), {"AZURITE_ACCOUNTS": f"{account}:{key}"}):
        yield port


@contextmanager
def gcs_server(folder: Path) -> Iterator[int]:
    """Run an emulator of Google's storage, in memory; yield its port."""
    port = free_port()
    place = f"127.0.0.1:{port}"
    build = [_program("go"), "install", f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}"]
    subprocess.run(build, env={**os.environ, "GOBIN": str(folder)}, check=True, timeout=_BUILD_SECONDS)
    command = [str(folder / "fake-gcs-server"), "-backend", "memory"]
    command += ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", place]
    with _process([*command, "-log-level", "warn"], folder, lambda: _listens(port)):
        yield port
