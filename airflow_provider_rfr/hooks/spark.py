"""The one place that knows the Spark provider's hook, whose inside changes between minor versions.

Adapted to here: where the hook keeps its parts (``_files``, ``_py_files``, ``_jars``, ``_packages``,
``_application_args``, ``_conf``, ``_env``, ``_connection``, ``_submit_sp``), that it logs the driver's lines in
``_process_spark_submit_log``, that it resolves the Spark connection in its constructor, and which attributes keep
its ``submit`` from waiting for a driver in a cluster (``_yarn_track_via_rm_api``, ``_track_driver_via_k8s_api``).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped,unused-ignore]
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.drivers import ClusterManager, DriverAddress, resource_manager
from airflow_provider_rfr.preflight import child_environment

STOP_GRACE_SECONDS = 3.5
"""Airflow ends a task hard five seconds after it asked it to stop."""
_ROUND = re.compile(r"\S+: round \d+: ")
_RESULT_KEYS = frozenset({"generation", "error", "deploy_id"})
_PAGES = re.compile(r"(?:^Spark UI|\btracking URL): (\S+)")
_SUBMISSION = re.compile(r"\bsubmission ID ([a-z0-9.-]+):([a-z0-9.-]+)")
_WAITS = {
    ClusterManager.YARN: "spark.yarn.submit.waitAppCompletion",
    ClusterManager.KUBERNETES: "spark.kubernetes.submission.waitAppCompletion",
}


class RefreshSparkHook(SparkSubmitHook):
    """A hook that submits an application of this package, and keeps the JSON object of figures that it prints last.

    :ivar result_line: None before the driver has printed it; neither it nor what follows it is logged
    :ivar on_pages: called with the address of Spark's UI, as soon as the log has it
    """

    result_line: dict[str, Any] | None
    on_pages: Callable[[str], None] | None
    _defaults: dict[str, str]
    _popen_environment: dict[str, str]

    @classmethod
    def from_parent(cls, hook: SparkSubmitHook) -> RefreshSparkHook:
        """Copy the hook that the parent operator built, whatever arguments that has in this version."""
        copy = cls.__new__(cls)
        copy.__dict__.update(hook.__dict__)
        copy.result_line, copy.on_pages = None, None
        copy._defaults, copy._popen_environment = {}, {}
        return copy

    @property
    def is_local(self) -> bool:
        """Tell whether Spark runs in one process on this machine."""
        return str(self._connection["master"]).startswith("local")

    @property
    def in_cluster(self) -> bool:
        """Tell whether the driver runs elsewhere (deploy mode ``cluster``)."""
        return str(self._connection["deploy_mode"]) == "cluster"

    @property
    def can_run_python(self) -> bool:
        """Tell whether the master takes a Python driver in this deploy mode; Spark standalone does not in a cluster."""
        return not (self.in_cluster and str(self._connection["master"]).startswith("spark:"))

    @property
    def cluster_manager(self) -> ClusterManager | None:
        """Return the manager of a driver that runs elsewhere.

        Return None for a driver here, or a manager that can't be asked.
        """
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
        """Return the address by which a submitted driver is found again from another machine."""
        kerberos = bool(self._connection.get("keytab") and self._connection.get("principal"))
        manager = self.cluster_manager
        assert manager is not None
        return DriverAddress(manager.value, self._conn_id, driver_id, kerberos and manager is ClusterManager.YARN)

    def after_submit(self) -> None:
        """Run ``post_submit_commands`` now: in Kubernetes the parent keeps them for the end of its waiting."""
        self._run_post_submit_commands()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of spark-submit: negative for the signal that ended it, None while it runs or before."""
        return None if self._submit_sp is None else self._submit_sp.poll()

    @property
    def last_lines(self) -> list[str]:
        """Return the end of the output of spark-submit and the driver."""
        return list(self._last_submit_log_lines)

    def ship(self, config: Path, package: Path | None) -> None:
        """Hand the configuration to the driver: by its path, or, where the driver runs elsewhere, with ``--files``."""
        arguments = [str(argument) for argument in self._application_args or []]
        place = str(config)
        if self.in_cluster:
            self._files, place = _joined(self._files, config), config.name
        self._application_args = ["--config", place, *arguments]
        if package is not None and not self.is_local:
            self._py_files = _joined(self._py_files, package)

    def default_conf(self, key: str, value: str) -> None:
        """Set a Spark setting where the user has set none."""
        if key not in self._conf:
            self._conf = {**self._conf, key: value}

    def has_conf(self, *keys: str) -> bool:
        """Tell whether the user has set one of these, or may have, in a properties file."""
        return any(key in self._conf for key in keys) or bool(self._properties_file)

    def default_packages(self, packages: str, extensions: str) -> None:
        """Have Iceberg's runtime fetched, unless the user brings jars or packages, and its extensions known."""
        if not (self._jars or self._packages or self.has_conf("spark.jars", "spark.jars.packages")):
            self.default_conf("spark.jars.packages", packages)
        self.default_conf("spark.sql.extensions", extensions)

    def default_environment(self, environment: Mapping[str, str]) -> None:
        """Set the default environment of spark-submit on this machine; ``env_vars`` of the user win."""
        self._defaults.update(environment)

    @contextmanager
    def driver_asked_to_stop(self, seconds: float) -> Iterator[None]:
        """Ask a driver on this machine to stop, and end it after the context if it still runs.

        :param seconds: how long to wait for it before the context is entered
        """
        drivers = self.driver_processes()
        for driver in drivers:
            self.log.info("Asking the Spark driver (process %s) to stop", driver.pid)
            driver.terminate()
        if drivers and self._submit_sp is not None:
            with suppress(subprocess.TimeoutExpired):
                self._submit_sp.wait(seconds)
        yield
        for driver in drivers:
            # psutil compares the start time as well, so another process that got the same number is not killed.
            if driver.is_running():
                driver.kill()

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit, with an environment that has none of Airflow's settings, connections and variables in it."""
        self._popen_environment = child_environment()
        driver_id: str | None = super().submit(application, env=self._popen_environment, **kwargs)
        return driver_id

    def driver_processes(self) -> list[psutil.Process]:
        """Return the Python driver below spark-submit, on this machine: one process, or none."""
        if self._submit_sp is None or not self._application_args:
            return []
        # Of the processes below spark-submit, only the driver has the path of its configuration as an argument.
        config = str(self._application_args[1])
        drivers = []
        with suppress(psutil.Error):
            for process in psutil.Process(self._submit_sp.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if config in process.cmdline():
                        drivers.append(process)
        return drivers

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        self._popen_environment.update({**self._defaults, **(self._env or {})})
        # With it set, the parent would replace our environment by the whole one of this process.
        self._env = None
        return list(command)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        # Set again after the start: on_kill of the parent runs YARN's command in it.
        self._env = self._popen_environment
        super()._process_spark_submit_log(self._without_figures(itr))

    def _without_figures(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            self._note_places(line)
            figures = parse_result_line(line)
            if figures is not None:
                self.result_line = figures
            elif self.result_line is not None:
                # The driver is done; Spark's shutdown prints stack traces of threads that it interrupts.
                self.log.debug("%s", line.rstrip())
            elif _ROUND.match(line):
                # The progress monitor logs the rounds, in every deploy mode.
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
    """Return an address that a browser may be sent to; None for anything else.

    Any code on the driver can write to its log.
    """
    parts = urlsplit(text or "")
    usable = parts.scheme in ("http", "https") and parts.hostname and not parts.username
    return text if usable else None


def parse_result_line(line: str) -> dict[str, Any] | None:
    """Parse the JSON object of figures that a driver prints last; return None for any other line."""
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and _RESULT_KEYS & value.keys() else None


def _joined(present: str | None, more: Path) -> str:
    return f"{present},{more}" if present else str(more)
