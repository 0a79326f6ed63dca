"""A real YARN on loopback: Hadoop's resource manager and a node manager, as processes, and what runs in containers.

They come from Maven, by spark-submit's ``--packages``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.integration.standalone import SPARK_HOME, free_ports
from tests.soon import PATIENCE, wait_until

_PACKAGES: Final = (
    *("hadoop-common", "hadoop-yarn-server-resourcemanager", "hadoop-yarn-server-nodemanager"),
    # The resource manager needs it without saying so.
    "hadoop-yarn-server-timelineservice",
)
_JARS_PROGRAM: Final = """
from pyspark.java_gateway import launch_gateway

print("jars:", launch_gateway().jvm.System.getProperty("spark.jars"))
"""
_ADDRESSES: Final = (
    *("resourcemanager.address", "resourcemanager.scheduler.address", "resourcemanager.resource-tracker.address"),
    *("resourcemanager.admin.address", "resourcemanager.webapp.address"),
    *("nodemanager.address", "nodemanager.localizer.address", "nodemanager.webapp.address"),
)
_SETTINGS: Final = {
    "yarn.nodemanager.hostname": "127.0.0.1",
    # The one that needs no file of queues.
    "yarn.resourcemanager.scheduler.class": (
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
    ),
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    "yarn.nodemanager.resource.memory-mb": "8192",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.scheduler.minimum-allocation-mb": "256",
}
_LOGGING: Final = """
log4j.rootLogger=WARN,output
log4j.appender.output=org.apache.log4j.ConsoleAppender
log4j.appender.output.layout=org.apache.log4j.PatternLayout
log4j.appender.output.layout.ConversionPattern=%p %c{1}: %m%n
"""
_DAEMONS: Final = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
_APPLICATION_MASTER: Final = "org.apache.spark.deploy.yarn.ApplicationMaster"


class RealYarn:
    """A resource manager and a node manager that run.

    :ivar conf: Hadoop's configuration, for ``HADOOP_CONF_DIR``
    :ivar logs: folder with the output of all containers
    :ivar url: of the resource manager's pages and its REST API
    """

    def __init__(self, folder: Path) -> None:
        self.conf, self.logs = folder / "conf", folder / "logs"
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(_ADDRESSES))]
        settings = {f"yarn.{name}": address for name, address in zip(_ADDRESSES, addresses, strict=True)}
        self.url = f"http://{settings['yarn.resourcemanager.webapp.address']}"
        places = {"yarn.nodemanager.local-dirs": f"{folder}/local", "yarn.nodemanager.log-dirs": str(self.logs)}
        self.conf.mkdir()
        (self.conf / "log4j.properties").write_text(_LOGGING)
        _write_settings(self.conf / "core-site.xml", {"fs.defaultFS": "file:///"})
        _write_settings(self.conf / "yarn-site.xml", {**_SETTINGS, **settings, **places})
        self._folder = folder
        self._daemons: list[psutil.Process] = []

    def start(self, jars: list[str]) -> None:
        classes = os.pathsep.join([str(self.conf), *jars])
        java = [f"{os.environ['JAVA_HOME']}/bin/java", "--add-opens", "java.base/java.lang=ALL-UNNAMED", "-Xmx256m"]
        for daemon in _DAEMONS:
            with (self._folder / f"{daemon}.log").open("wb") as output:
                started = subprocess.Popen(
                    [*java, "-cp", classes, f"org.apache.hadoop.yarn.server.{daemon}"],
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._daemons.append(psutil.Process(started.pid))
        wait_until(self._is_ready, every=0.2, describe=self._output)

    def end(self) -> None:
        # Containers have process groups of their own.
        doomed = [*self._containers(), *self._daemons]
        for process in doomed:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(doomed, timeout=10)

    def ask(self, path: str) -> Any:
        """An answer of the REST API of the resource manager."""
        with urllib.request.urlopen(f"{self.url}/ws/v1/cluster/{path}", timeout=30) as answer:
            return json.load(answer)

    def application_master(self) -> psutil.Process | None:
        """The JVM of an application master that runs."""
        return self._running(lambda command: "java" in command[0] and _APPLICATION_MASTER in command)

    def python_driver(self) -> psutil.Process | None:
        """The Python below it, in which the refresh runs."""
        return self._running(lambda command: "python" in Path(command[0]).name and "--config" in command)

    def _running(self, is_wanted: Callable[[list[str]], bool]) -> psutil.Process | None:
        for process in self._containers():
            with suppress(psutil.Error):
                if (command := process.cmdline()) and is_wanted(command):
                    return process
        return None

    def _containers(self) -> list[psutil.Process]:
        processes: list[psutil.Process] = []
        for daemon in self._daemons:
            with suppress(psutil.Error):
                processes += daemon.children(recursive=True)
        return processes

    def _is_ready(self) -> bool:
        assert all(daemon.is_running() and daemon.status() != psutil.STATUS_ZOMBIE for daemon in self._daemons)
        try:
            return bool(self.ask("metrics")["clusterMetrics"]["activeNodes"])
        except OSError:
            return False

    def _output(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in self._folder.glob("*.log"))


@contextmanager
def real_yarn(folder: Path) -> Iterator[RealYarn]:
    """Run a YARN whose files are below the folder; nothing that it started outlives the context."""
    yarn = RealYarn(folder)
    try:
        yarn.start(_jars(folder))
        yield yarn
    finally:
        yarn.end()


def _jars(folder: Path) -> list[str]:
    """The jars of the daemons, in the version of Spark's own client."""
    [client] = (SPARK_HOME / "jars").glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    program = folder / "jars.py"
    program.write_text(_JARS_PROGRAM)
    packages = ["--packages", ",".join(f"org.apache.hadoop:{name}:{hadoop}" for name in _PACKAGES)]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]", *packages, str(program)],
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if "unresolved dependency" in done.stderr + done.stdout and not os.environ.get("CI"):
        pytest.skip("Hadoop's daemons can't be had from Maven here")
    said = next((line for line in done.stdout.splitlines() if line.startswith("jars: ")), None)
    assert said is not None, done.stderr[-4000:]
    return [address.removeprefix("file://") for address in said.removeprefix("jars: ").split(",")]


def _write_settings(file: Path, settings: Mapping[str, str]) -> None:
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    file.write_text(f"<configuration>{''.join(properties)}</configuration>")
