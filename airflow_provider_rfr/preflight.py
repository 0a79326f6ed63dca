"""What a refresh needs of the machine, checked before anything is submitted. Imports neither Spark nor Airflow."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from airflow_provider_rfr.exceptions import PreflightError

JAVA_VERSIONS = (17, 21)


def check_pyspark() -> None:
    """``pyspark`` and ``pyspark-client`` install the same files, so unequal versions break ``import pyspark``.

    :raises PreflightError: with the command that repairs it
    """
    full, client = _version("pyspark"), _version("pyspark-client")
    if full is None or client is None or full == client:
        return
    raise PreflightError(
        f"pyspark {full} and pyspark-client {client} are both installed and overwrite each other's files, so"
        f" `import pyspark` may fail; install one version of both: pip install --force-reinstall"
        f" pyspark=={client} pyspark-client=={client}"
    )


def check_java() -> None:
    """Spark 4 starts on Java 17 and 21.

    :raises PreflightError: there is none, or another one
    """
    java = java_binary()
    if java is None:
        raise PreflightError("no Java was found; install Java 17 or 21, or set JAVA_HOME")
    found = java_version(java)
    if found not in JAVA_VERSIONS:
        raise PreflightError(
            f"{java} is Java {found}; Spark needs 17 or 21: install one of them, or set JAVA_HOME to it"
        )


def java_binary() -> str | None:
    """The Java that Spark will start: of ``JAVA_HOME``, else on the path."""
    home = os.environ.get("JAVA_HOME")
    if home:
        binary = Path(home) / "bin" / "java"
        return str(binary) if binary.is_file() else None
    return shutil.which("java")


def java_version(java: str) -> int | None:
    """Its major version; None if it does not tell."""
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return int(match.group(1)) if match else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
