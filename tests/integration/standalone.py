"""A Spark standalone cluster of the installed PySpark on loopback: a master and some workers, ended with its context.

Executors run a Python of their own, which holds what the documentation says that executors need and nothing else: no
Airflow, and not this package.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement

from airflow_provider_rfr.refresh.cluster import EXECUTOR_PACKAGES
from tests.integration.conftest import APP, ROOT, Runner, kill_group
from tests.soon import wait_until

SPARK_HOME = Path(str(getattr(importlib.util.find_spec("pyspark"), "origin", ""))).parent
EXECUTORS_NEED = tuple(EXECUTOR_PACKAGES.values())
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMON_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx192m", "-Dspark.master.rest.enabled=false")


class Standalone:
    """A master and its workers. Whatever happens, nothing that they started outlives the context.

    :param folder: for the logs and the workers' folders
    :param cores: of each worker
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cores = cores
        self.workers: list[psutil.Process] = []
        self._count = workers
        self._master: psutil.Process | None = None
        self._port, self._ui_port = free_ports(2)

    def __enter__(self) -> Standalone:
        try:
            self._start_master()
            for _ in range(self._count):
                self.add_worker()
            self.wait_for_workers(self._count)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def url(self) -> str:
        """The master's address, for ``--master``."""
        return f"spark://127.0.0.1:{self._port}"

    def restart_master(self) -> None:
        """Kill the master and start another one, which does not know the applications of the first."""
        self._master.kill()
        self._master.wait()
        self._start_master()

    def _start_master(self) -> None:
        options = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._ui_port)]
        self._master = self._start("master.Master", options, "master")
        wait_until(lambda: self._state() is not None)

    def add_worker(self) -> None:
        """Start one more worker; :meth:`wait_for_workers` waits until the master knows it."""
        name = f"worker-{len(self.workers)}"
        size = ["--cores", str(self.cores), "--memory", "1g", "--work-dir", str(self.folder / name)]
        options = ["--host", "127.0.0.1", "--webui-port", "0", *size, self.url]
        self.workers.append(self._start("worker.Worker", options, name))

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many workers are alive in the master's eyes."""

        def ready() -> bool:
            workers = (self._state() or {}).get("workers", ())
            return sum(worker["state"] == "ALIVE" for worker in workers) == count

        wait_until(ready)

    def wait_until_idle(self) -> None:
        """Wait until no application holds cores."""
        wait_until(lambda: not (self._state() or {"activeapps": True})["activeapps"])

    def executors(self) -> list[psutil.Process]:
        """The JVMs of executors that run."""
        return [one for one in self._descendants() if EXECUTOR_CLASS in _command(one)]

    def python_workers(self) -> list[psutil.Process]:
        """The Python processes below executors that run."""
        return [one for one in self._descendants() if "pyspark.daemon" in _command(one)]

    def _start(self, name: str, options: Iterable[str], log: str) -> psutil.Process:
        java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
        jars = str(SPARK_HOME / "jars" / "*")
        with (self.folder / f"{log}.log").open("w") as output:
            process = subprocess.Popen(
                [str(java), *DAEMON_OPTIONS, "-cp", jars, f"org.apache.spark.deploy.{name}", *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_daemon_environment(),
                start_new_session=True,
            )
        return psutil.Process(process.pid)

    def _state(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui_port}/json/", timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return None

    def _descendants(self) -> list[psutil.Process]:
        processes: list[psutil.Process] = []
        for worker in self.workers:
            try:
                processes += worker.children(recursive=True)
            except psutil.Error:
                continue
        return processes

    def _end(self) -> None:
        daemons = [one for one in (self._master, *self.workers) if one is not None]
        doomed = [*self._descendants(), *daemons]
        for process in doomed:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(doomed, timeout=10)


class ClusterRunner(Runner):
    """Runs refreshes as a user does without Airflow: with spark-submit, the package by ``--py-files``."""

    def __init__(self, runner: Runner, cluster: Standalone, package: Path, python: Path) -> None:
        super().__init__(runner.lake, runner._folder)
        self._cluster = cluster
        self._package = package
        self._python = python
        self._started: list[subprocess.Popen[str]] = []

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.returncode is None:
                kill_group(process)

    def start(
        self,
        config: Path,
        *,
        app: Path = APP,
        environment: Mapping[str, str] | None = None,
        settings: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        settings = {**executor_settings(self._python), **(settings or {})}
        settings |= {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        package = ["--py-files", str(self._package)]
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", self._cluster.url]
        process = subprocess.Popen(
            [*submit, *package, *conf, str(app), "--config", str(config)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})},
        )
        self._started.append(process)
        return process


def executor_settings(python: Path) -> dict[str, str]:
    """Small executors with that Python, and a driver with this one."""
    return {
        "spark.executor.memory": "512m",
        "spark.pyspark.python": str(python),
        "spark.pyspark.driver.python": sys.executable,
        "spark.log.level": "WARN",
    }


def executor_python(folder: Path, *more: str) -> Path:
    """A Python with the packages that executors need, linked from where they are installed, and no others.

    :param more: packages besides
    """
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    for name in _with_requirements((*EXECUTORS_NEED, *more)):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return folder / "bin" / "python"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _daemon_environment() -> dict[str, str]:
    """Nothing of this process's own but where things are; executors get it too."""
    [core] = (SPARK_HOME / "jars").glob("spark-core_*.jar")
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    # Spark's own scripts would set it; without it a worker looks for Spark's source tree.
    scala = core.name.removeprefix("spark-core_").partition("-")[0]
    return {**environment, "SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": scala, "SPARK_LOCAL_IP": "127.0.0.1"}


def _with_requirements(names: Iterable[str]) -> set[str]:
    installed: set[str] = set()
    left = [Requirement(name) for name in names]
    while left:
        requirement = left.pop()
        if requirement.name in installed or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        installed.add(requirement.name)
        left += map(Requirement, importlib.metadata.requires(requirement.name) or ())
    return installed


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
