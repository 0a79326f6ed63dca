"""What a refresh needs of the machine, checked before anything is submitted. Imports neither Spark nor Airflow."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from importlib import metadata
from pathlib import Path

from airflow_provider_rfr.exceptions import PreflightError

_JAVA_VERSIONS = (17, 21)
_AIRFLOWS = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
_FILE_VERSION = re.compile(r"""^__version__[^=]*=\s*["']([^"']+)["']""", re.M)
# The client's version, for it lags: not every pyspark has a client.
_PAIR = "pip install --force-reinstall --no-deps pyspark=={0} pyspark-client=={0}"


def check_machine() -> None:
    """Everything that a Spark driver on this machine needs.

    :raises PreflightError: with the command that repairs what is missing
    """
    _check_java()
    _check_pyspark()
    _check_localhost()


def _check_localhost() -> None:
    """PySpark's driver listens on ``localhost``, by that name, whatever Spark's own addresses are.

    :raises PreflightError: this machine does not know the name
    """
    try:
        socket.getaddrinfo("localhost", None)
    except socket.gaierror as error:
        raise PreflightError(
            f"the host name localhost can't be resolved ({error.strerror}), and PySpark listens on it: add the line"
            " '127.0.0.1 localhost' to /etc/hosts"
        ) from None


def _check_pyspark() -> None:
    """``pyspark`` and ``pyspark-client`` install the same files, so unequal versions break ``import pyspark``.

    Nor are equal versions always enough: the one installed last before leaves its files behind. A machine without
    pyspark passes, for its Spark may be elsewhere.

    :raises PreflightError: with the command that repairs it
    """
    full, client = _version("pyspark"), _version("pyspark-client")
    if full is not None and client is not None and full != client:
        raise PreflightError(
            f"pyspark {full} and pyspark-client {client} are both installed and overwrite each other's files, so"
            f" `import pyspark` may fail; install one version of both: {_PAIR.format(client)}"
        )
    expected, found = full or client, _version_of_files()
    if expected is not None and found is not None and found != expected:
        raise PreflightError(
            f"pyspark {expected} is installed but the files in its folder are of {found}, which another installation"
            f" left there; install it again: {_PAIR.format(expected)}"
        )


def _check_java() -> None:
    """Spark 4 starts on Java 17 and 21.

    :raises PreflightError: there is none, or another one
    """
    java = _java_binary()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"in JAVA_HOME, {home}" if home else "on the path"
        raise PreflightError(f"no Java was found {where}; install Java 17 or 21, or set JAVA_HOME to one")
    found = _java_version(java)
    if found not in _JAVA_VERSIONS:
        what = f"Java {found}" if found else "a Java that does not tell its version"
        raise PreflightError(f"{java} is {what}; Spark needs 17 or 21: install one of them, or set JAVA_HOME to it")


def child_environment() -> dict[str, str]:
    """This process's environment without Airflow's settings, connections and variables: no program needs their secrets,
    and any program's environment can be read while it runs."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_AIRFLOWS)}


def _java_binary() -> str | None:
    """The Java that Spark will start: of ``JAVA_HOME``, else on the path."""
    home = os.environ.get("JAVA_HOME")
    if home:
        binary = Path(home) / "bin" / "java"
        return str(binary) if binary.is_file() else None
    return shutil.which("java")


def _java_version(java: str) -> int | None:
    """Its major version; None if it does not tell, or not within half a minute."""
    try:
        told = subprocess.run(
            [java, "-version"], env=child_environment(), capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(match.group(1)) if match else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _version_of_files() -> str | None:
    """What the files say themselves, read without importing them: importing is what may fail."""
    spec = importlib.util.find_spec("pyspark")
    for folder in spec.submodule_search_locations or () if spec else ():
        file = Path(folder) / "version.py"
        match = _FILE_VERSION.search(file.read_text()) if file.is_file() else None
        if match:
            return match.group(1)
    return None
