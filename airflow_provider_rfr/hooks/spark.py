"""The one place that knows the Spark provider's hook, whose inside changes between minor versions.

Adapted to here: where the hook keeps its parts (``_files``, ``_py_files``, ``_jars``, ``_packages``,
``_application_args``, ``_conf``, ``_env``, ``_connection``, ``_submit_sp``), that it logs the driver's lines in
``_process_spark_submit_log``, that it resolves the Spark connection in its constructor, and by which attributes its
``submit`` is told not to wait for a driver in a cluster (``_yarn_track_via_rm_api``, ``_track_driver_via_k8s_api``).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped,unused-ignore]
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.drivers import ClusterManager, DriverAddress
from airflow_provider_rfr.hooks.yarn import resource_manager
from airflow_provider_rfr.preflight import child_environment

STOP_GRACE_SECONDS = 3.5
"""Airflow ends a task hard five seconds after it asked it to stop."""
_ROUND = re.compile(r"\S+: round \d+: ")
_LAST_WORD_KEYS = frozenset({"generation", "error", "deploy_id"})
_PAGES = re.compile(r"(?:^Spark UI|\btracking URL): (\S+)")
_SUBMISSION = re.compile(r"\bsubmission ID ([a-z0-9.-]+):([a-z0-9.-]+)")
_WAITS = {
    ClusterManager.YARN: "spark.yarn.submit.waitAppCompletion",
    ClusterManager.KUBERNETES: "spark.kubernetes.submission.waitAppCompletion",
}


class RefreshSparkHook(SparkSubmitHook):
    """Submits the application of a refresh and keeps its last word, the JSON line of figures.

    :ivar last_word: the last line of figures that came, None before it came; it and what follows it are not logged
    :ivar on_pages: told where Spark's own pages are, as soon as a line says so
    """

    last_word: dict[str, Any] | None
    on_pages: Callable[[str], None] | None
    _defaults: dict[str, str]
    _popen_environment: dict[str, str]

    @classmethod
    def like(cls, hook: SparkSubmitHook) -> RefreshSparkHook:
        """Take over a hook as the parent operator built it, whatever arguments it has in this version."""
        made = cls.__new__(cls)
        made.__dict__.update(hook.__dict__)
        made.last_word, made.on_pages = None, None
        made._defaults, made._popen_environment = {}, {}
        return made

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in one process on this machine."""
        return str(self._connection["master"]).startswith("local")

    @property
    def in_cluster(self) -> bool:
        """Whether the driver runs elsewhere (deploy mode ``cluster``)."""
        return str(self._connection["deploy_mode"]) == "cluster"

    @property
    def can_run_python(self) -> bool:
        """Whether the master takes a Python driver in this deploy mode; Spark standalone does not in its cluster."""
        return not (self.in_cluster and str(self._connection["master"]).startswith("spark:"))

    @property
    def cluster_manager(self) -> ClusterManager | None:
        """Who runs the driver, if it runs elsewhere and can be asked about; None otherwise."""
        master = str(self._connection["master"])
        if not self.in_cluster:
            return None
        return ClusterManager.KUBERNETES if "k8s" in master else ClusterManager.YARN if "yarn" in master else None

    def leave_driver(self) -> None:
        """Let :meth:`submit` return once the cluster manager has the driver.

        :raises ConfigurationError: a setting of the user's says otherwise, or the driver could not be found again
        """
        manager = self.cluster_manager
        if manager is None:
            return
        if str(self._conf.get(_WAITS[manager], "")).strip().lower() == "true":
            raise ConfigurationError(
                f"conf.{_WAITS[manager]}", "is true, so spark-submit would wait", "remove it, or set deferrable=False"
            )
        if manager is ClusterManager.YARN:
            resource_manager(self._conn_id)
        elif not self._connection.get("namespace"):
            raise ConfigurationError(
                "conf.spark.kubernetes.namespace", "is not set", "set it, or the connection's extra namespace"
            )
        self._yarn_track_via_rm_api = manager is ClusterManager.YARN
        self._track_driver_via_k8s_api = manager is ClusterManager.KUBERNETES

    def address_of(self, driver_id: str) -> DriverAddress:
        """How a submitted driver is found again from another machine."""
        kerberos = bool(self._connection.get("keytab") and self._connection.get("principal"))
        manager = self.cluster_manager
        assert manager is not None
        return DriverAddress(manager.value, self._conn_id, driver_id, kerberos and manager is ClusterManager.YARN)

    def after_submit(self) -> None:
        """Run ``post_submit_commands`` now: in Kubernetes the parent keeps them for the end of its waiting."""
        self._run_post_submit_commands()

    @property
    def exit_code(self) -> int | None:
        """Of spark-submit; negative for the signal that ended it, None while it runs or before."""
        process = self._process
        return None if process is None else process.poll()

    @property
    def last_lines(self) -> list[str]:
        """The end of what spark-submit and the driver printed."""
        return list(self._last_submit_log_lines)

    def carry(self, config: Path, package: Path | None) -> None:
        """Hand the configuration to the driver: by its path, or, where the driver runs elsewhere, with ``--files``."""
        arguments = [str(argument) for argument in self._application_args or []]
        if self.in_cluster:
            self._files = _joined(self._files, config)
            self._application_args = ["--config", config.name, *arguments]
        else:
            self._application_args = ["--config", str(config), *arguments]
        if package is not None and not self.is_local:
            self._py_files = _joined(self._py_files, package)

    def default_conf(self, key: str, value: str) -> None:
        """Set a Spark setting where the user has set none."""
        if key not in self._conf:
            self._conf = {**self._conf, key: value}

    def has_conf(self, *keys: str) -> bool:
        """Whether the user has set one of these, as far as the operator's arguments tell."""
        return any(key in self._conf for key in keys) or bool(self._properties_file)

    def default_packages(self, packages: str, extensions: str) -> None:
        """Have Iceberg's runtime fetched, unless the user brings jars or packages, and its extensions known."""
        if not (self._jars or self._packages or self.has_conf("spark.jars", "spark.jars.packages")):
            self.default_conf("spark.jars.packages", packages)
        self.default_conf("spark.sql.extensions", extensions)

    def default_environment(self, environment: Mapping[str, str]) -> None:
        """Environment of spark-submit on this machine; ``env_vars`` of the user win."""
        self._defaults.update(environment)

    @contextmanager
    def driver_asked_to_stop(self, seconds: float) -> Iterator[None]:
        """Ask a driver on this machine to stop, give it so much time, and end it afterwards if it still runs."""
        drivers = self.driver_processes()
        for driver in drivers:
            self.log.info("Asking the Spark driver (process %s) to stop", driver.pid)
            driver.terminate()
        if drivers:
            self.wait(seconds)
        yield
        for driver in drivers:
            if driver.is_running():
                driver.kill()

    def wait(self, seconds: float) -> bool:
        """Whether spark-submit ended within so many seconds."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit, with an environment that has none of Airflow's settings, connections and variables in it."""
        self._popen_environment = child_environment()
        driver_id: str | None = super().submit(application, env=self._popen_environment, **kwargs)
        return driver_id

    def driver_processes(self) -> list[psutil.Process]:
        """The Python driver below spark-submit, on this machine: one process, or none."""
        if self._process is None or not self._application_args:
            return []
        marker = str(self._application_args[1])
        found = []
        for process in _descendants(self._process.pid):
            try:
                if marker in process.cmdline():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    @property
    def _process(self) -> subprocess.Popen[str] | None:
        return self._submit_sp

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        self._popen_environment.update({**self._defaults, **(self._env or {})})
        self._env = None  # else the parent would put the whole environment of this process in the place of ours
        return list(command)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        self._env = self._popen_environment
        super()._process_spark_submit_log(self._without_figures(itr))

    def _without_figures(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            self._note_places(line)
            figures = last_word(line)
            if figures is not None:
                self.last_word = figures
            elif self.last_word is not None:
                # The driver is done: this is Spark's shutdown, with traces of threads that it stopped under.
                self.log.debug("%s", line.rstrip())
            elif _ROUND.match(line):
                # The follower tells the rounds, in every deploy mode; twice would be noise.
                self.log.debug("%s", line.rstrip())
            else:
                yield line

    def _note_places(self, line: str) -> None:
        pages = _PAGES.search(line)
        if pages is not None and self.on_pages is not None and (url := _page_url(pages.group(1))) is not None:
            self.on_pages(url)
        # The parent looks for pods of the namespace "spark" only.
        submitted = _SUBMISSION.search(line) if self.cluster_manager is ClusterManager.KUBERNETES else None
        if submitted is not None and submitted.group(1) == self._connection["namespace"]:
            self._kubernetes_driver_pod = submitted.group(2)


def _page_url(text: str | None) -> str | None:
    """An address that a browser may be sent to, None for anything else; logs are not to be trusted."""
    parts = urlsplit(text or "")
    usable = parts.scheme in ("http", "https") and parts.hostname and not parts.username
    return text if usable else None


def last_word(line: str) -> dict[str, Any] | None:
    """The JSON object of figures that a driver ends with, None for any other line."""
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and _LAST_WORD_KEYS & value.keys() else None


def _joined(present: str | None, more: Path) -> str:
    return f"{present},{more}" if present else str(more)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []
