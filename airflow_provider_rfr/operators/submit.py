"""What an attempt ships with spark-submit: configuration, package, environment.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import airflow_provider_rfr
from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError
from airflow_provider_rfr.refresh.process import is_alive, process_started

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.builtins import Plan
    from airflow_provider_rfr.hooks.builtins import BuiltinsHook
    from airflow_provider_rfr.hooks.spark import RefreshSparkHook


_PACKAGE = Path(airflow_provider_rfr.__file__).parent
_DOMAIN = (
    *("__init__.py", "documents.py", "exceptions.py", "lazy.py", "secret_names.py"),
    *("http", "streams", "lake", "refresh"),
)
_MIGRATION_PARTS = ("store", "builtins")
"""What a migration's executors need besides."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can read, removed in any case."""
    base = _base_folder()
    _sweep(base)
    own = f"{socket.gethostname()}~{os.getpid()}~{process_started(os.getpid()) or 0}~"
    folder = Path(tempfile.mkdtemp(prefix=own, dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_config(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write the document, readable for its owner alone from its first byte on.

    The name differs from attempt to attempt: with ``--files`` it becomes a name in the driver's working folder.
    """
    path = folder / f"rfr-{folder.name[-8:]}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, default=str)
    return path


def zip_package(folder: Path, more: tuple[str, ...] = ()) -> Path:
    """The parts of this package that executors need, for ``--py-files``; none of them knows Airflow."""
    target = folder / "airflow_provider_rfr.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*_DOMAIN, *more):
            part = _PACKAGE / name
            for file in [part] if part.is_file() else sorted(part.rglob("*.py")):
                archive.write(file, Path(_PACKAGE.name) / file.relative_to(_PACKAGE))
    return target


def _sweep(base: Path) -> list[str]:
    """Remove the folders of this host's dead attempts; returns their names."""
    removed = []
    for folder in base.iterdir():
        host, _, rest = folder.name.rpartition("~")[0].partition("~")
        pid, _, started = rest.partition("~")
        if host != socket.gethostname() or not (pid.isdigit() and started.isdigit()):
            continue
        if not is_alive(int(pid), int(started)):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed


def application_path(name: str = "full_refresh") -> Path:
    """A Spark application: beside the package in a clone, inside it where it was installed."""
    for parent in (_PACKAGE, _PACKAGE.parent):
        path = parent / "spark_apps" / f"{name}.py"
        if path.is_file():
            return path
    raise PreflightError(f"spark_apps/{name}.py is missing beside {_PACKAGE}; install the package again")


def _package_root() -> Path | None:
    """The folder that makes the package importable where it is not installed; None where it is."""
    root = _PACKAGE.parent
    return None if root.name in ("site-packages", "dist-packages") else root


def _base_folder() -> Path:
    """One folder per user; a name that somebody else could have taken is not trusted."""
    base = Path(tempfile.gettempdir()) / f"airflow-provider-rfr-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PreflightError(f"{base} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    if stat.S_IMODE(found.st_mode) != 0o700:
        base.chmod(0o700)
    return base


_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def _prepare(hook: RefreshSparkHook, source: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Give spark-submit what it needs where the user has not said otherwise.

    The driver's Java options make its start shorter; they never reach an executor on another machine.

    :raises PreflightError: there is no spark-submit
    """
    hook.default_environment(_spark_environment(hook.spark_binary or "spark-submit", environ))
    if hook.in_cluster:
        return
    hook.default_environment(_python_environment(source, environ, local=hook.is_local))
    hook.default_conf("spark.log.level", "WARN")
    if not hook.has_conf(*_JAVA_OPTIONS) and not _defaults_name(environ, *_JAVA_OPTIONS):
        from airflow_provider_rfr.refresh.jvm import driver_java_options

        hook.default_conf("spark.driver.extraJavaOptions", " ".join(driver_java_options()))


def _spark_environment(binary: str, environ: Mapping[str, str]) -> dict[str, str]:
    """``PATH`` and ``SPARK_HOME``, for a Spark that pip installed.

    Its ``spark-submit`` looks for its home with whatever ``python3`` comes first on the path, which may be another
    environment's; and a worker that was started by its full path has none of its environment on the path.

    :raises PreflightError: there is no spark-submit
    """
    home = environ.get("SPARK_HOME")
    scripts = Path(home) / "bin" if home else Path(sys.executable).parent
    found = shutil.which(binary, path=environ.get("PATH"))
    ours = scripts / binary
    if found is not None and ours != Path(found):
        return {}
    if not ours.is_file():
        raise PreflightError(
            f"no {binary} was found; pip install 'airflow-provider-rfr[pyspark]',"
            " or put the bin folder of a Spark on the path"
        )
    environment = {"PATH": f"{scripts}{os.pathsep}{environ.get('PATH', os.defpath)}"}
    installed = None if home else _installed_spark()
    if installed is not None:
        environment["SPARK_HOME"] = str(installed)
    return environment


def _python_environment(source: Mapping[str, Any], environ: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """The driver's Python, which is this one, and where it finds this package and the source's class.

    :param local: executors are in the driver's process, so they use its Python too
    """
    environment: dict[str, str] = {}
    if local and "SPARK_LOCAL_IP" not in environ:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    if "PYSPARK_DRIVER_PYTHON" not in environ and "PYSPARK_PYTHON" not in environ:
        environment["PYSPARK_PYTHON" if local else "PYSPARK_DRIVER_PYTHON"] = sys.executable
    roots = [root for root in (_package_root(), _class_root(source)) if root is not None]
    if roots:
        present = [environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else []
        environment["PYTHONPATH"] = os.pathsep.join([*dict.fromkeys(map(str, roots)), *present])
    return environment


def _class_root(source: Mapping[str, Any]) -> Path | None:
    """Where a source's class is, if not in an installed package: the DAG folder is on this process's path only."""
    module = str(source.get("class") or "").partition(":")[0].partition(".")[0]
    if not module:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    where = Path(places[0]) if places else Path(spec.origin) if spec and spec.origin else None
    root = where.parent if where is not None else None
    return None if root is None or root.name in _INSTALLED else root


def _installed_spark() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec else []
    home = Path(places[0]) if places else None
    return home if home is not None and (home / "jars").is_dir() else None


def _defaults_name(environ: Mapping[str, str], *keys: str) -> bool:
    """Whether spark-defaults.conf sets one of these; a setting of ours would take its place."""
    home = environ.get("SPARK_HOME")
    folder = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    file = Path(folder) / "spark-defaults.conf" if folder else None
    if file is None or not file.is_file():
        return False
    return any(line.strip().startswith(keys) for line in file.read_text(encoding="utf-8").splitlines())


def run_key(context: Context) -> str:
    """Names one run of one task: the same over its retries, another one after a clear."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{clear_number(context)}"


def clear_number(context: Context) -> int:
    """Tries of this task before its last clear; a run's ``clear_number`` counts the clears of other tasks, too."""
    ti = context["ti"]
    return max(0, int(getattr(ti, "max_tries", 0) or 0) - int(getattr(context.get("task"), "retries", 0) or 0))


def supervisor() -> dict[str, Any]:
    """This process, which the driver must not outlive."""
    return {"pid": os.getpid(), "started": process_started(os.getpid()) or 0, "host": socket.gethostname()}


def load_hook(folder: Path, document: Mapping[str, Any], hook: RefreshSparkHook) -> None:
    """Give the hook the attempt's files and settings.

    :param folder: private, and kept until spark-submit has ended
    :raises ConfigurationError: Spark would refuse the driver
    """
    _check_mode(hook)
    run = dict(document["run"])
    if not hook.in_cluster:
        run["supervisor"] = supervisor()
    path = _write_config(folder, {**document, "run": run})
    hook.carry(path, None if hook.is_local else zip_package(folder))
    _prepare(hook, document["source"])


def load_migration(folder: Path, builtins: BuiltinsHook, plan: Plan, actor: str, hook: RefreshSparkHook) -> None:
    """Give the hook the files and settings of a deploy: what is declared travels with it, as a value.

    :param folder: private, and kept until spark-submit has ended
    :raises ConfigurationError: Spark would refuse the driver, or has no settings for such a catalog
    """
    from airflow_provider_rfr.builtins.state import encode
    from airflow_provider_rfr.lake.catalog import LakeSettings, spark_sql_settings

    _check_mode(hook)
    lake = builtins.lake
    settings = spark_sql_settings(LakeSettings(lake.name, lake.properties))
    hook.default_packages(settings["spark.jars.packages"], settings["spark.sql.extensions"])
    document = {
        "lake": {"name": lake.name, "properties": lake.properties},
        "store": builtins.store_url,
        "spec": encode(builtins.spec),
        "plan": plan.to_json(),
        "actor": actor,
        "run": {} if hook.in_cluster else {"supervisor": supervisor()},
    }
    path = _write_config(folder, document)
    hook.carry(path, None if hook.is_local else zip_package(folder, _MIGRATION_PARTS))
    _prepare(hook, {})


def _check_mode(hook: RefreshSparkHook) -> None:
    if not hook.can_run_python:
        raise ConfigurationError(
            "deploy_mode",
            "a standalone cluster runs no Python driver",
            "use client, which leaves it to this worker",
        )
