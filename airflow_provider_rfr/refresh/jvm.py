"""Java options that shorten the driver's start, and the class archive that shortens it most.

Measured on two cores (docs/benchmarks.md): a session takes 5.9 s without and 3.1 s with both. Compiling with C1 only
is right here because the heavy work is in Python and Arrow. The archive belongs to one Java build and one class path,
so both are in its name; where it doesn't fit, Java warns and goes on without it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

SWITCH = "RFR_CLASS_ARCHIVE"
"""Environment variable: ``off`` neither writes nor uses the archive."""
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def driver_java_options() -> list[str]:
    """Options for a driver on this machine, for ``spark.driver.extraJavaOptions``. Never for an executor."""
    archive = archive_path()
    if archive is None or not archive.is_file():
        return list(FAST_START)
    return [*FAST_START, f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def archive_path() -> Path | None:
    """Where this Java's and this Spark's class archive lies or would lie; None without Java or Spark, or if off."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "false"):
        return None
    java, jars = _java(), _spark_jars()
    if java is None or jars is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    digest.update(str(java).encode())
    digest.update(str(java.stat().st_mtime_ns).encode())
    for jar in sorted(jars.glob("*.jar")):
        digest.update(f"{jar}:{jar.stat().st_size}".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "airflow-provider-rfr" / f"spark-{digest.hexdigest()}.jsa"


def _java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    path = Path(found).resolve() if found else None
    return path if path is not None and path.is_file() else None


def _spark_jars() -> Path | None:
    home = os.environ.get("SPARK_HOME")
    if home is None:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or not spec.submodule_search_locations:
            return None
        home = spec.submodule_search_locations[0]
    jars = Path(home) / "jars"
    return jars if jars.is_dir() else None
