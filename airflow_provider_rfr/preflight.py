"""Checks of the machine before a refresh is submitted. Imports neither Spark nor Airflow."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError, SparkJobError

JAVA_REMEDY: Final = "run: apt-get install openjdk-17-jre-headless, or set JAVA_HOME to a Java 17 or 21"
_JAVA_VERSIONS = (17, 21)
_JAVA_SECONDS = 30
_AIRFLOW_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
_FILE_VERSION = re.compile(r"""^__version__[^=]*=\s*["']([^"']+)["']""", re.M)
_SPARK_JAR = re.compile(r"spark-core_(?P<scala>[\d.]+)-(?P<version>\d+\.\d+.*)\.jar")
# Newest Iceberg runtime in Maven Central (November 2026), by the minor versions of Spark and Scala.
_ICEBERG_RUNTIMES = {
    ("3.5", "2.12"): "1.12.0",
    ("3.5", "2.13"): "1.11.0",
    ("4.0", "2.13"): "1.11.0",
    ("4.1", "2.13"): "1.12.0",
}
# Takes the client's version, because not every release of pyspark has a client.
_PAIR = "pip install --force-reinstall --no-deps pyspark=={0} pyspark-client=={0}"


class SparkBuild(NamedTuple):
    """A Spark installation on this machine.

    :ivar version: e.g. ``4.1.3``
    :ivar scala: version of Scala, e.g. ``2.13``
    """

    version: str
    scala: str

    @property
    def minor(self) -> str:
        """Return the minor version, e.g. ``4.1``."""
        return ".".join(self.version.split(".")[:2])


def check_machine() -> None:
    """Check everything that a Spark driver on this machine needs.

    :raises PreflightError: something is missing; the message has the command that repairs it
    """
    check_java()
    check_pyspark()
    check_localhost()


def child_environment() -> dict[str, str]:
    """Return this process's environment without Airflow's settings, connections and variables.

    No child needs their secrets, and the environment of any process can be read while it runs.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith(_AIRFLOW_PREFIXES)}


def check_java() -> str:
    """Check that Java, by ``JAVA_HOME`` or else on the path, is 17 or 21, as Spark 4 needs; return version and path.

    :raises PreflightError: there is no Java, or another version
    :raises SparkJobError: ``java -version`` was killed or timed out, so the version is not known
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        if home:
            raise PreflightError(
                f"no Java was found in JAVA_HOME, {home}; run: unset JAVA_HOME, or set it to a Java 17 or 21"
            )
        raise PreflightError(f"no Java was found on the path; {JAVA_REMEDY}")
    try:
        process = subprocess.run(
            [java, "-version"],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=_JAVA_SECONDS,
            check=False,
        )
        if process.returncode < 0:
            raise SparkJobError(f"`{java} -version` was ended by signal {-process.returncode}; memory may be short")
        match = re.search(r'version "(?:1\.)?(\d+)', process.stderr + process.stdout)
    except subprocess.TimeoutExpired:
        raise SparkJobError(f"`{java} -version` did not answer within {_JAVA_SECONDS} seconds") from None
    except OSError:
        match = None
    version = int(match.group(1)) if match else None
    if version not in _JAVA_VERSIONS:
        label = f"Java {version}" if version else "a Java of unknown version"
        raise PreflightError(f"{java} is {label}, and Spark needs 17 or 21; {JAVA_REMEDY}")
    return f"Java {version}, {java}"


def check_pyspark() -> str | None:
    """Check that ``pyspark`` and ``pyspark-client`` have the same version; return it, or None if neither is installed.

    They install the same files, so different versions break ``import pyspark``. Equal versions are not always enough,
    because an earlier installation may have left its files behind. A machine without pyspark passes, because its Spark
    may be elsewhere.

    :raises PreflightError: the versions differ; the message has the command that repairs it
    """
    full, client = installed_version("pyspark"), installed_version("pyspark-client")
    if full is not None and client is not None and full != client:
        raise PreflightError(
            f"pyspark {full} and pyspark-client {client} are both installed and overwrite each other's files, so"
            f" `import pyspark` may fail; install one version of both: {_PAIR.format(client)}"
        )
    expected = full or client
    # The version is read from the file, because importing is what may fail.
    spec = importlib.util.find_spec("pyspark")
    files = [Path(folder) / "version.py" for folder in spec.submodule_search_locations or ()] if spec else []
    matches = [_FILE_VERSION.search(file.read_text()) for file in files if file.is_file()]
    actual = next((match.group(1) for match in matches if match), None)
    if expected is not None and actual is not None and actual != expected:
        raise PreflightError(
            f"pyspark {expected} is installed but the files in its folder are of {actual}, which another installation"
            f" left there; install it again: {_PAIR.format(expected)}"
        )
    return expected


def spark_home() -> Path | None:
    """Return the folder of Spark: ``SPARK_HOME``, the package ``pyspark``, or that of ``spark-submit`` on the path."""
    spec = importlib.util.find_spec("pyspark")
    submit = shutil.which("spark-submit")
    places = [
        *([os.environ["SPARK_HOME"]] if os.environ.get("SPARK_HOME") else []),
        *((spec.submodule_search_locations or ()) if spec else ()),
        *([Path(submit).resolve().parents[1]] if submit else []),
    ]
    return next((Path(place) for place in places if Path(place, "jars").is_dir()), None)


def installed_spark() -> SparkBuild | None:
    """Return the Spark of :func:`spark_home`, read from the name of its main jar; None if there is none."""
    home = spark_home()
    jars = home.glob("jars/spark-core_*.jar") if home else ()
    found = (_SPARK_JAR.fullmatch(jar.name) for jar in jars)
    return next((SparkBuild(match["version"], match["scala"]) for match in found if match), None)


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def iceberg_runtime() -> str:
    """Return the Maven coordinates of Iceberg's runtime for the Spark of this machine.

    :raises ConfigurationError: there is no Spark, or Iceberg has no runtime for it
    """
    install = "pip install 'airflow-provider-rfr[spark41]'"
    spark = installed_spark()
    if spark is None:
        raise ConfigurationError("spark", "no Spark was found on this machine", f"{install}, or set SPARK_HOME")
    version = _ICEBERG_RUNTIMES.get((spark.minor, spark.scala))
    if version is None:
        known = ", ".join(sorted({minor for minor, _ in _ICEBERG_RUNTIMES}))
        raise ConfigurationError(
            "spark",
            f"no Iceberg runtime is known for Spark {spark.minor} with Scala {spark.scala}; SQL on Spark needs one,"
            " refreshes do not",
            f"use Spark {known}, e.g. {install}, or give the runtime's jar yourself (jars)",
        )
    return f"org.apache.iceberg:iceberg-spark-runtime-{spark.minor}_{spark.scala}:{version}"


def check_localhost() -> None:
    """Check that ``localhost`` resolves: PySpark's driver listens on it, whatever addresses Spark is configured with.

    :raises PreflightError: this machine does not resolve the name
    """
    try:
        socket.getaddrinfo("localhost", None)
    except socket.gaierror as error:
        raise PreflightError(
            f"the host name localhost can't be resolved ({error.strerror}), and PySpark listens on it: add the line"
            " '127.0.0.1 localhost' to /etc/hosts"
        ) from None
