"""Submission of this package's Spark applications: their files and environment, and the operators' base class.

The configuration holds secrets. It lies in a folder of mode 0700 that is removed when the attempt ends. A killed
attempt can't remove it, so the next one on the machine does: the folder's name has host, process and start time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException

import airflow_provider_rfr
from airflow_provider_rfr.connections.airflow.lookup import connection_named
from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError
from airflow_provider_rfr.hooks.spark import STOP_GRACE_SECONDS, RefreshSparkHook, refuse_spark_connect
from airflow_provider_rfr.operators._outcome import failure_of_driver
from airflow_provider_rfr.refresh.process import MEMORY_VARIABLES, driver_java_options, is_alive, process_started

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.hooks.builtins import BuiltinsHook


_PACKAGE = Path(airflow_provider_rfr.__file__).parent
_DOMAIN = (
    *("__init__.py", "documents.py", "exceptions.py", "numbers.py", "preflight.py", "text.py", "timeouts.py"),
    *("http", "streams", "lake", "refresh"),
)
_MIGRATION_PARTS = ("store", "history.py", "sinks", "builtins")
"""Further parts of this package that the executors of a migration need."""
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")


class SparkApplicationOperator(SparkSubmitOperator):
    """Base of the operators that submit an application of this package; ``conn_id`` is templated as well."""

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "conn_id")

    _application_name: ClassVar[str]
    """Name of a module in ``spark_apps``, which is run if the argument ``application`` is left out."""
    _load: Callable[[RefreshSparkHook], None] | None = None

    @property
    def conn_id(self) -> Any:
        """Return the id of the Spark connection. Templating needs an attribute of this name, which the parent lacks."""
        return self._conn_id

    @conn_id.setter
    def conn_id(self, rendered: Any) -> None:
        self._conn_id = rendered

    def _run_application(self, context: Context, load: Callable[[RefreshSparkHook], None]) -> dict[str, Any] | None:
        """Submit the application and wait for it; return the driver's result line, None if it was not printed here.

        :param load: gives the hook this attempt's files and settings
        :raises RfrError: the driver's error
        :raises AirflowException: an error of the submit itself, as the parent raises it
        """
        self._hook, self._load = None, load
        try:
            super().execute(context)
        except AirflowException:
            hook = self._submitted
            if hook is not None:
                failure = failure_of_driver(hook.result_line, hook.exit_code, hook.last_lines)
                if failure is not None:
                    raise failure from None
            raise
        return None if self._submitted is None else self._submitted.result_line

    @property
    def _submitted(self) -> RefreshSparkHook | None:
        """Return the hook of the current attempt; None until the parent has asked for it."""
        return self._hook if isinstance(self._hook, RefreshSparkHook) else None

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return the state of an earlier try's driver; one that YARN has forgotten counts as ended.

        A resource manager that restarts without recovery ends all applications. If one went on, its next commit would
        be refused once the new driver has taken over.

        :raises RuntimeError: the cluster manager did not tell
        """
        try:
            # Without the task state, in which the parent keeps that a pod has succeeded, and takes later pods for it.
            return str(super().get_job_status(external_id, cast("Context", {})))
        except RuntimeError as error:
            # Only the resource manager's own 404 counts: a proxy with another one knows nothing of the application.
            if f"HTTP 404 for application {external_id}" in str(error) and "NotFoundException" in str(error):
                return "NOT FOUND"
            raise

    def on_kill(self) -> None:
        """Ask the driver to stop, which keeps the work that is done, and end it if it takes too long."""
        if self._submitted is not None:
            with self._submitted.driver_asked_to_stop(STOP_GRACE_SECONDS):
                super().on_kill()

    def _get_hook(self) -> RefreshSparkHook:
        # The parent asks for the hook once its own settings are rendered.
        remedy = "make one of type spark whose host is the master, e.g. local[*] or spark://host:7077"
        refuse_spark_connect(connection_named(self._conn_id, "conn_id", remedy), self.conf)
        self.application = self.application or str(application_path(self._application_name))
        hook = RefreshSparkHook.from_parent(super()._get_hook())
        if self._load is not None:
            self._load(hook)
        return hook


@contextmanager
def private_folder() -> Iterator[Path]:
    """Create a folder that only this user can read, and remove it in any case.

    Folders of this host's dead attempts are removed, too.
    """
    base, host = _base_folder(), socket.gethostname()
    for leftover in base.iterdir():
        owner, _, rest = leftover.name.rpartition("~")[0].partition("~")
        pid, _, started = rest.partition("~")
        if owner == host and pid.isdigit() and started.isdigit() and not is_alive(int(pid), int(started)):
            shutil.rmtree(leftover, ignore_errors=True)
    own = f"{host}~{os.getpid()}~{process_started(os.getpid()) or 0}~"
    folder = Path(tempfile.mkdtemp(prefix=own, dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _base_folder() -> Path:
    """Return this user's folder for attempts; create it if needed.

    Its name is predictable, so a folder that another user has made first is refused.

    :raises PreflightError: the folder belongs to another user
    """
    base = Path(tempfile.gettempdir()) / f"airflow-provider-rfr-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PreflightError(f"{base} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    if stat.S_IMODE(status.st_mode) != 0o700:
        base.chmod(0o700)
    return base


def zip_package(folder: Path, more: tuple[str, ...] = ()) -> Path:
    """Zip the parts of this package that executors need, for ``--py-files``; none of them imports Airflow."""
    target = folder / "airflow_provider_rfr.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*_DOMAIN, *more):
            part = _PACKAGE / name
            for file in [part] if part.is_file() else sorted(part.rglob("*.py")):
                archive.write(file, Path(_PACKAGE.name) / file.relative_to(_PACKAGE))
    return target


def application_path(name: str) -> Path:
    """Return the path of a Spark application: next to the package in a clone, inside it where it was installed."""
    for parent in (_PACKAGE, _PACKAGE.parent):
        path = parent / "spark_apps" / f"{name}.py"
        if path.is_file():
            return path
    raise PreflightError(f"spark_apps/{name}.py is missing next to {_PACKAGE}; install the package again")


def load_application(
    hook: RefreshSparkHook, folder: Path, document: Mapping[str, Any], more: tuple[str, ...] = ()
) -> None:
    """Give the hook an application's files and settings.

    :param folder: a private folder that is kept until spark-submit has ended
    :param document: the application's configuration, with secrets; a refresh has its ``source`` in it
    :param more: parts of this package that the executors need besides those of a refresh
    :raises ConfigurationError: Spark would refuse the driver
    :raises PreflightError: there is no spark-submit
    """
    if not hook.can_run_python:
        remedy = "use client, where the driver runs on this worker"
        raise ConfigurationError("deploy_mode", "a standalone cluster runs no Python driver", remedy)
    run = dict(document.get("run") or {})
    if not hook.in_cluster:
        run["supervisor"] = this_process()
    path = write_config(folder, {**document, "run": run})
    hook.ship(path, None if hook.is_local else zip_package(folder, more))
    hook.default_environment(spark_environment(hook.spark_binary or "spark-submit", os.environ))
    if hook.in_cluster:
        return
    hook.default_environment(python_environment(document.get("source") or {}, os.environ, local=hook.is_local))
    hook.default_conf("spark.log.level", "WARN")
    # Options that make the driver's start shorter. They never reach an executor on another machine.
    if not hook.has_conf(*_JAVA_OPTIONS) and not _is_in_spark_defaults(*_JAVA_OPTIONS):
        hook.default_conf("spark.driver.extraJavaOptions", " ".join(driver_java_options()))


def load_migration(folder: Path, builtins: BuiltinsHook, work: Mapping[str, Any], hook: RefreshSparkHook) -> None:
    """Give the hook the files and settings of a deploy, or of a refresh of materialized views.

    :param folder: a private folder that is kept until spark-submit has ended
    :param work: fields of its document besides the lake and the store
    :raises ConfigurationError: Spark would refuse the driver, or has no settings for such a catalog
    """
    from airflow_provider_rfr.lake.catalog import spark_sql_settings

    lake = builtins.lake
    settings = spark_sql_settings(lake, with_packages=not hook.brings_jars)
    hook.default_conf("spark.sql.extensions", settings["spark.sql.extensions"])
    if "spark.jars.packages" in settings:
        hook.default_conf("spark.jars.packages", settings["spark.jars.packages"])
    place = {"lake": {"name": lake.name, "properties": lake.properties}, "store": builtins.store_url}
    load_application(hook, folder, {**work, **place}, _MIGRATION_PARTS)


def this_process() -> dict[str, Any]:
    """Return this process as the ``run.supervisor`` of a document: the driver must not outlive it."""
    pid = os.getpid()
    return {"pid": pid, "started": process_started(pid) or 0, "host": socket.gethostname()}


def write_config(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write the document to a file that has mode 0600 from its first byte on; return the file's path."""
    # --files puts it under this name into the driver's working folder, so the name must differ between attempts.
    path = folder / f"rfr-{folder.name[-8:]}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, default=str)
    return path


def spark_environment(binary: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``PATH`` and ``SPARK_HOME`` for a Spark that pip installed; none if the path has another spark-submit.

    The ``spark-submit`` of pip finds its home by the first ``python3`` on the path, which may be another environment's.
    A worker that was started by its full path may not have its own environment on the path.

    :raises PreflightError: there is no spark-submit
    """
    home = environ.get("SPARK_HOME")
    if home and not Path(home, "bin").is_dir():
        raise PreflightError(f"no Spark was found in SPARK_HOME, {home}; correct it, or run: unset SPARK_HOME")
    scripts = Path(home) / "bin" if home else Path(sys.executable).parent
    on_path = shutil.which(binary, path=environ.get("PATH"))
    ours = scripts / binary
    if on_path is not None and ours != Path(on_path):
        return {}
    if not ours.is_file():
        raise PreflightError(
            f"no {binary} was found; pip install 'airflow-provider-rfr[spark41]',"
            " or put the bin folder of a Spark on the path"
        )
    environment = {"PATH": f"{scripts}{os.pathsep}{environ.get('PATH', os.defpath)}"}
    installed = None if home else _module_folder("pyspark")
    if installed is not None and (installed / "jars").is_dir():
        environment["SPARK_HOME"] = str(installed)
    return environment


def python_environment(source: Mapping[str, Any], environ: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """Return the variables for the driver's Python, which is this one, for its memory, and for its import path.

    The driver has to find this package and the source's class.

    :param local: executors are in the driver's process, so they use its Python too
    """
    environment = {name: value for name, value in MEMORY_VARIABLES.items() if name not in environ}
    if local and "SPARK_LOCAL_IP" not in environ:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    if "PYSPARK_DRIVER_PYTHON" not in environ and "PYSPARK_PYTHON" not in environ:
        environment["PYSPARK_PYTHON" if local else "PYSPARK_DRIVER_PYTHON"] = sys.executable
    # A class of the DAG folder is importable in this process, but not in the driver's.
    module = str(source.get("class") or "").partition(":")[0].partition(".")[0]
    place = _module_folder(module) if module else None
    roots = [_PACKAGE.parent, *([place.parent] if place is not None else [])]
    missing = dict.fromkeys(str(root) for root in roots if root.name not in _INSTALLED)
    if missing:
        present = [environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else []
        environment["PYTHONPATH"] = os.pathsep.join([*missing, *present])
    return environment


def _module_folder(module: str) -> Path | None:
    """Return the folder of a package, or the file of a module, without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return Path(place) if place else None


def _is_in_spark_defaults(*keys: str) -> bool:
    """Tell whether spark-defaults.conf sets one of these; a setting of ours would override it."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    file = Path(folder) / "spark-defaults.conf" if folder else None
    if file is None or not file.is_file():
        return False
    return any(line.strip().startswith(keys) for line in file.read_text(encoding="utf-8").splitlines())
