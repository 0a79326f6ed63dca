"""The hook that submits to Spark, and clients for drivers that run in a cluster (YARN or Kubernetes).

This is the only module that depends on internals of the Spark provider's hook, which change between minor versions. It
assumes these attributes: ``_files``, ``_py_files``, ``_jars``, ``_packages``, ``_application_args``, ``_conf``,
``_env``, ``_connection`` and ``_submit_sp``; that the hook logs the driver's lines in ``_process_spark_submit_log``;
that its constructor resolves the Spark connection; and that ``_yarn_track_via_rm_api`` and
``_track_driver_via_k8s_api`` keep its ``submit`` from waiting for a driver in a cluster.

YARN is queried by the resource manager's REST API. The client for Kubernetes is that of Airflow's Kubernetes provider,
without which the Spark provider's hook does not submit there. It reads the section ``[kubernetes_executor]`` and the
usual files. Its import takes seconds, so it is imported where it is used.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

import psutil  # type: ignore[import-untyped,unused-ignore]
import requests
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_rfr.connections.airflow.lookup import connection_named, extras_of
from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError, RfrError
from airflow_provider_rfr.http.redaction import is_secret, without_credentials
from airflow_provider_rfr.lake.spark import RESULT_START
from airflow_provider_rfr.preflight import child_environment, installed_version

if TYPE_CHECKING:
    from airflow.sdk import Connection

_TIMEOUT = (5.0, 30.0)
"""Seconds to connect to a cluster manager, and to wait for its answer."""
_ADDRESS_EXTRA = "yarn_resourcemanager_webapp_address"
"""The extra field in which the Spark provider, too, expects the resource manager's address."""
_YARN_ACTIVE = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})
_EXIT_STATUS = re.compile(r"User application exited with status (\d+)")
_CONTAINER = "spark-kubernetes-driver"
"""Spark's name for the driver's container; others in the pod are sidecars, which may outlive it."""
_LOG_LINES = 200


class ClusterManager(str, Enum):
    """A cluster manager that runs the driver and can be asked about it."""

    YARN = "yarn"
    KUBERNETES = "kubernetes"


class DriverState(str, Enum):
    """The state of a driver. Only the ledger says whether it published."""

    ACTIVE = "active"
    UNKNOWN = "unknown"
    """The manager can't tell for the moment."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"
    """The manager knows no such driver, or no longer."""


_POD_PHASES = {
    "Pending": DriverState.ACTIVE,
    "Running": DriverState.ACTIVE,
    "Succeeded": DriverState.SUCCEEDED,
    "Failed": DriverState.FAILED,
    "Unknown": DriverState.UNKNOWN,
}


class ClusterManagerError(RfrError):
    """The cluster manager could not be asked; the message names the kind of failure and no address."""


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """The address of a driver, valid on any machine; holds no secret.

    :ivar conn_id: the Spark connection, which says where the manager is
    :ivar driver_id: YARN's application id, or ``namespace:pod``
    :ivar kerberos: whether the manager's API asks for Kerberos
    """

    manager: str
    conn_id: str
    driver_id: str
    kerberos: bool = False


@dataclass(frozen=True, slots=True)
class DriverReport:
    """The manager's report of a driver.

    :ivar status: the state as the manager calls it
    :ivar exit_code: exit code of the driver's Python, where it is known
    :ivar url: address of Spark's UI, where it can be reached
    :ivar why: the manager's reason for a failure; unmasked, so only for a worker's log
    """

    state: DriverState
    status: str
    exit_code: int | None = None
    url: str | None = None
    why: str = ""


class ClusterDriver(Protocol):
    """A driver in a cluster. Every method calls the cluster manager, and blocks.

    :raises ClusterManagerError: the manager can't be reached, or refuses the request
    """

    def look(self) -> DriverReport:
        """Return the driver's current state."""

    def stop(self) -> None:
        """End the driver; pages that it has flushed stay for the next attempt."""

    def last_lines(self) -> Sequence[str]:
        """Return the end of the driver's log; an empty list where it can't be read."""

    def tidy(self) -> None:
        """Remove the resources that a driver leaves behind after its success."""


def open_driver(address: DriverAddress) -> ClusterDriver:
    """Return the driver at an address. It reads the Spark connection, so it blocks.

    :raises ConfigurationError: the connection does not say where the manager is
    :raises PreflightError: the manager's client is not installed here
    """
    return _YarnDriver(address) if address.manager == ClusterManager.YARN else _KubernetesDriver(address)


def resource_manager(conn_id: str) -> str:
    """Return the base URL of the resource manager, from the Spark connection.

    :raises ConfigurationError: the connection does not name it
    """
    connection = connection_named(conn_id, "conn_id", "make one of type spark whose host is yarn")
    address = str(extras_of(connection).get(_ADDRESS_EXTRA) or "").strip()
    if not address:
        raise ConfigurationError(
            f"connection {conn_id}: extra {_ADDRESS_EXTRA}",
            "is not set, so the driver's state could not be read",
            "write the resource manager's address, e.g. http://rm.example.com:8088, or set deferrable=False",
        )
    return (address if "://" in address else f"http://{address}").rstrip("/")


class _YarnDriver:
    """A driver on YARN, by the resource manager's ``/ws/v1/cluster/apps/{id}``."""

    def __init__(self, address: DriverAddress) -> None:
        self._url = f"{resource_manager(address.conn_id)}/ws/v1/cluster/apps/{quote(address.driver_id, safe='')}"
        self._auth: Any = None
        if address.kerberos:
            try:
                from requests_kerberos import HTTPKerberosAuth  # type: ignore[import-not-found, unused-ignore]
            except ImportError:
                raise PreflightError(
                    "the Spark connection has keytab and principal, so YARN's REST API is asked with Kerberos:"
                    " pip install requests-kerberos, on the triggerer too"
                ) from None
            self._auth = HTTPKerberosAuth()

    def look(self) -> DriverReport:
        answer = self._ask("GET", self._url)
        if answer.status_code == 404:
            return DriverReport(DriverState.GONE, "NOT FOUND")
        try:
            return _yarn_report(answer.json()["app"])
        except (ValueError, KeyError, TypeError):
            raise ClusterManagerError("the resource manager's answer can't be read") from None

    def stop(self) -> None:
        self._ask("PUT", f"{self._url}/state", json={"state": "KILLED"})

    def last_lines(self) -> Sequence[str]:
        """Return no lines: YARN keeps the log on its nodes, each with a login of its own."""
        return ()

    def tidy(self) -> None:
        """Do nothing: YARN itself removes the files that it staged."""

    def _ask(self, method: str, url: str, **options: Any) -> requests.Response:
        try:
            answer = requests.request(
                method, url, auth=self._auth, timeout=_TIMEOUT, headers={"Accept": "application/json"}, **options
            )
        except requests.RequestException as error:
            # Without the cause, because the text of its error quotes the address.
            raise ClusterManagerError(f"the resource manager can't be reached ({type(error).__name__})") from None
        # Of an application that is gone. A proxy's own 404 does not tell that.
        is_gone = answer.status_code == 404 and "NotFoundException" in answer.text
        if answer.status_code >= 400 and not is_gone:
            raise ClusterManagerError(f"the resource manager answers {method} with HTTP {answer.status_code}")
        return answer


def _yarn_report(app: Mapping[str, Any]) -> DriverReport:
    """Return the report in the JSON object of a YARN application."""
    state, final = str(app["state"]).upper(), str(app.get("finalStatus", "UNDEFINED")).upper()
    why = str(app.get("diagnostics") or "")
    exited = _EXIT_STATUS.search(why)
    url = str(app.get("trackingUrl") or "")
    pages = url if url.startswith(("http://", "https://")) else None
    if state in _YARN_ACTIVE:
        return DriverReport(DriverState.ACTIVE, state, url=pages, why=why)
    if state == "FINISHED" and final == "SUCCEEDED":
        return DriverReport(DriverState.SUCCEEDED, final, 0, pages, why)
    status = final if state == "FINISHED" else state
    return DriverReport(DriverState.FAILED, status, int(exited.group(1)) if exited else None, pages, why)


class _KubernetesDriver:
    """A driver's pod on Kubernetes, addressed by ``namespace:pod``."""

    def __init__(self, address: DriverAddress) -> None:
        self._namespace, _, self._pod = address.driver_id.partition(":")
        try:
            from airflow.providers.cncf.kubernetes import kube_client  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise PreflightError(
                "Kubernetes can't be asked: pip install apache-airflow-providers-cncf-kubernetes, on the triggerer too"
            ) from None
        self._refusal: type[Exception] = kube_client.ApiException
        self._client = kube_client.get_kube_client()

    def look(self) -> DriverReport:
        pod = self._ask(self._client.read_namespaced_pod)
        if pod is None:
            return DriverReport(DriverState.GONE, "NOT FOUND")
        phase = str(pod.status.phase or "Pending")
        containers = pod.status.container_statuses or ()
        drivers = [container for container in containers if container.name == _CONTAINER or len(containers) == 1]
        ended = drivers[0].state.terminated if drivers and drivers[0].state is not None else None
        if ended is None:
            return DriverReport(_POD_PHASES.get(phase, DriverState.UNKNOWN), phase, why=str(pod.status.message or ""))
        # The container's end counts, not the pod's: a sidecar may keep the pod running for ever.
        state = DriverState.FAILED if ended.exit_code else DriverState.SUCCEEDED
        why = str(ended.message or ended.reason or pod.status.message or "")
        return DriverReport(state, phase, int(ended.exit_code), why=why)

    def stop(self) -> None:
        """Delete the pod; Kubernetes asks the driver to stop first."""
        self._ask(self._client.delete_namespaced_pod)

    def last_lines(self) -> Sequence[str]:
        # With preloading, the client returns str(bytes), i.e. "b'...'".
        answer = self._ask(
            self._client.read_namespaced_pod_log, container=_CONTAINER, tail_lines=_LOG_LINES, _preload_content=False
        )
        return [] if answer is None else bytes(answer.data).decode(errors="replace").splitlines()

    # Spark leaves the pod of a driver that ended, with its log, until somebody deletes it.
    tidy = stop

    def _ask(self, call: Callable[..., Any], **options: Any) -> Any:
        """Return the answer; None for a pod that does not exist."""
        try:
            return call(self._pod, self._namespace, _request_timeout=_TIMEOUT, **options)
        except self._refusal as error:
            status = getattr(error, "status", None)
            if status == 404 and _is_not_found(getattr(error, "body", None)):
                return None
            raise ClusterManagerError(f"Kubernetes answers with HTTP {status}") from None
        except Exception as error:  # noqa: BLE001 - urllib3's; their texts quote addresses
            raise ClusterManagerError(f"Kubernetes can't be reached ({type(error).__name__})") from None


def _is_not_found(body: Any) -> bool:
    """Tell whether it is Kubernetes that does not know the object. A proxy's own 404 does not tell that it is gone."""
    try:
        status = json.loads(body)
    except (TypeError, ValueError):
        return False
    return isinstance(status, dict) and (status.get("kind"), status.get("reason")) == ("Status", "NotFound")


_CONNECT = "sc://"
_CONNECT_TYPES = frozenset({"sc", "spark_connect"})
"""Types of connections to Spark Connect: the scheme of an ``sc://`` URI, and the Spark provider's own type."""
_REMOTE = "spark.remote"


def refuse_spark_connect(connection: Connection, conf: Mapping[str, Any] | None = None) -> None:
    """Refuse a Spark connection, or settings, that lead to a server of Spark Connect.

    :param conf: Spark settings of the task
    :raises ConfigurationError: a refresh can't run there
    """
    problem = "leads to Spark Connect, which has neither spark-submit nor the RDD jobs that a refresh consists of"
    remedy = (
        "use a connection of type spark whose host is a master, e.g. local[*], spark://host:7077, yarn or k8s://..."
    )
    host = (connection.host or "").strip().lower()
    if host.startswith(_CONNECT) or (connection.conn_type or "").replace("-", "_") in _CONNECT_TYPES:
        raise ConfigurationError(f"connection {connection.conn_id}", problem, remedy)
    if conf and conf.get(_REMOTE):
        raise ConfigurationError(f"conf.{_REMOTE}", problem, "remove it")


_LINEAGE_TRANSPORT = "spark.openlineage.transport."


def _refuse_lineage_secrets(conf: Mapping[str, Any]) -> None:
    """Refuse secrets that the parent operator copies from OpenLineage's transport into Spark's settings.

    :raises ConfigurationError: they would be on the command line of spark-submit
    """
    for key, value in conf.items():
        name, text = str(key), str(value)
        is_shown = not is_secret(name) and ".headers." not in name and without_credentials(text) == text
        if name.startswith(_LINEAGE_TRANSPORT) and not is_shown:
            raise ConfigurationError(
                f"conf.{name}",
                "may be secret, and each user of the machine can read the command line of spark-submit",
                "set openlineage_inject_transport_info=False, and write OpenLineage's transport into a properties_file"
                " or spark-defaults.conf that no other user can read",
            )


STOP_GRACE_SECONDS = 3.5
"""Less than the five seconds after which Airflow kills a task that it asked to stop."""
# A line of `refresh.state.Progress`.
_ROUND = re.compile(r"\S+: generation \d+, round \d+: ")
_PAGES = re.compile(r"(?:^Spark UI|\btracking URL): (\S+)")
_SUBMISSION = re.compile(r"\bsubmission ID ([a-z0-9.-]+):([a-z0-9.-]+)")
_WAITS = {
    ClusterManager.YARN: "spark.yarn.submit.waitAppCompletion",
    ClusterManager.KUBERNETES: "spark.kubernetes.submission.waitAppCompletion",
}


class RefreshSparkHook(SparkSubmitHook):
    """A hook that submits an application of this package, and keeps the JSON object of figures that it prints last.

    :ivar result_line: the JSON object; None before the driver has printed it. Neither it nor later lines are logged
    :ivar on_pages: called with the address of Spark's UI, as soon as the log has it
    """

    result_line: dict[str, Any] | None
    on_pages: Callable[[str], None] | None
    _defaults: dict[str, str]
    _lines: deque[str]
    _popen_environment: dict[str, str]

    @classmethod
    def from_parent(cls, hook: SparkSubmitHook) -> RefreshSparkHook:
        """Copy the hook that the parent operator built, without the constructor, whose arguments differ by version.

        :raises ConfigurationError: a secret of OpenLineage's transport is among the Spark settings
        """
        _refuse_lineage_secrets(hook._conf)
        copy = cls.__new__(cls)
        copy.__dict__.update(hook.__dict__)
        copy.result_line, copy.on_pages = None, None
        copy._defaults, copy._popen_environment = {}, {}
        copy._lines = deque(maxlen=_LOG_LINES)
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
        if not hasattr(self, "_yarn_track_via_rm_api"):
            raise ConfigurationError(
                "deferrable",
                f"the Spark provider {installed_version('apache-airflow-providers-apache-spark')} waits for a driver in"
                " a cluster",
                "set deferrable=False, or install its version 6.3 or later, with Spark 4.0 to 4.2",
            )
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
        """Run ``post_submit_commands`` now: on Kubernetes, the parent runs them only after it waited for the driver."""
        self._run_post_submit_commands()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of spark-submit: negative for the signal that ended it, None while it runs or before."""
        return None if self._submit_sp is None else self._submit_sp.poll()

    @property
    def last_lines(self) -> list[str]:
        """Return the end of the output of spark-submit and the driver."""
        return list(self._lines)

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
        """Tell whether the user has set one of these settings, or may have done so in a properties file."""
        return any(key in self._conf for key in keys) or bool(self._properties_file)

    @property
    def brings_jars(self) -> bool:
        """Tell whether the user gives jars or packages, which then have to hold Iceberg's runtime."""
        return bool(self._jars or self._packages or self.has_conf("spark.jars", "spark.jars.packages"))

    def default_environment(self, environment: Mapping[str, str]) -> None:
        """Set the default environment of spark-submit on this machine; ``env_vars`` of the user win."""
        self._defaults.update(environment)

    @contextmanager
    def driver_asked_to_stop(self, seconds: float) -> Iterator[None]:
        """Ask a driver on this machine to stop, and kill it after the context if it still runs.

        :param seconds: seconds to wait for its end before the context is entered
        """
        drivers = self.driver_processes()
        for driver in drivers:
            self.log.info("Asking the Spark driver (process %s) to stop", driver.pid)
            driver.terminate()
        # For the driver first: Airflow signals the whole process group, and Java ends before the driver has committed.
        end = time.monotonic() + seconds
        psutil.wait_procs(drivers, timeout=seconds)
        if drivers and self._submit_sp is not None:
            with suppress(subprocess.TimeoutExpired):
                self._submit_sp.wait(max(0.0, end - time.monotonic()))
        yield
        for driver in drivers:
            # psutil compares the start time as well, so another process that got the same number is not killed.
            if driver.is_running():
                driver.kill()

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit the application with an environment that has no settings, connections or variables of Airflow."""
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
        # If _env were set, the parent would replace our environment by the whole one of this process.
        self._env = None
        return list(command)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        # Set again after the start: on_kill of the parent runs YARN's command in it.
        self._env = self._popen_environment
        super()._process_spark_submit_log(self._without_figures(itr))

    def _without_figures(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            pages = _PAGES.search(line)
            if pages is not None and self.on_pages is not None and (url := _page_url(pages.group(1))) is not None:
                self.on_pages(url)
            # The parent looks for pods of the namespace "spark" only.
            submitted = _SUBMISSION.search(line) if self.cluster_manager is ClusterManager.KUBERNETES else None
            if submitted is not None and submitted.group(1) == self._connection["namespace"]:
                self._kubernetes_driver_pod = submitted.group(2)
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
                self._lines.append(line.strip())
                yield line


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
    if not text.startswith(RESULT_START):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        # A driver that was killed may have written a part of the line.
        return None
    parts = [value.get("streams", []), value.get("errors", []), [value.get("error", {})]]
    is_valid = all(isinstance(items, list) and all(isinstance(item, dict) for item in items) for items in parts)
    return value if is_valid else None


def _joined(present: str | None, more: Path) -> str:
    return f"{present},{more}" if present else str(more)
