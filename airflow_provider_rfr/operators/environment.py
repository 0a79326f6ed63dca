"""What spark-submit needs of its environment on this machine: the right Python, the right Spark, importable sources."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import PreflightError
from airflow_provider_rfr.operators.shipment import package_root

if TYPE_CHECKING:
    from airflow_provider_rfr.hooks.spark import RefreshSparkHook

_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def prepare(hook: RefreshSparkHook, source: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Give spark-submit what it needs where the user has not said otherwise.

    The driver's Java options make its start shorter; they never reach an executor on another machine.

    :raises PreflightError: there is no spark-submit
    """
    hook.default_environment(spark_environment(hook.spark_binary or "spark-submit", environ))
    if hook.in_cluster:
        return
    hook.default_environment(python_environment(source, environ, local=hook.is_local))
    hook.default_conf("spark.log.level", "WARN")
    if not hook.has_conf(*_JAVA_OPTIONS) and not _defaults_name(environ, *_JAVA_OPTIONS):
        from airflow_provider_rfr.refresh.jvm import driver_java_options

        hook.default_conf("spark.driver.extraJavaOptions", " ".join(driver_java_options()))


def spark_environment(binary: str, environ: Mapping[str, str]) -> dict[str, str]:
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


def python_environment(source: Mapping[str, Any], environ: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """The driver's Python, which is this one, and where it finds this package and the source's class.

    :param local: executors are in the driver's process, so they use its Python too
    """
    environment: dict[str, str] = {}
    if local and "SPARK_LOCAL_IP" not in environ:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    if "PYSPARK_DRIVER_PYTHON" not in environ and "PYSPARK_PYTHON" not in environ:
        environment["PYSPARK_PYTHON" if local else "PYSPARK_DRIVER_PYTHON"] = sys.executable
    roots = [root for root in (package_root(), _class_root(source)) if root is not None]
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
