"""The driver's process: events that end it, Java options that shorten its start, and settings that save memory.

When a worker is killed for its memory, its Spark driver lives on as an orphan, next to the driver of the retry. The
ledger's epoch protects the table; the watchdog here saves the API and the machine double work. This module imports no
library, because the operator imports it, too.

Java options shorten the start, and a class archive shortens it most: on two cores a session takes 5.9 s without and
3.1 s with both (docs/decisions/driver_java.md). Compiling with C1 only is right here because the heavy work is in
Python and Arrow. A heap that starts small and grows takes 50 MB less than Java's default. The archive belongs to one
Java build and one class path, so its name has a digest of both. If it doesn't fit, Java warns and starts without it.

``python -m airflow_provider_rfr.refresh.process`` writes it with one small Spark job (ten seconds, 150 MB, once a
machine). The first published refresh of a machine without one starts that in the background.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from airflow_provider_rfr.preflight import spark_home

_POLL_SECONDS = 1.0


def process_started(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if it does not exist, or has ended.

    The start and the pid together identify a process: a pid alone is used again.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets, which may itself hold spaces and brackets. A zombie (Z) has
    # ended; only its pid is still taken.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Tell whether the process with this pid and start is alive; without /proc, whether any with this pid is.

    :param started: as of :func:`process_started`
    """
    if Path("/proc/self/stat").exists():
        return process_started(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # It exists, and belongs to another user.
    except PermissionError:
        pass
    return True


def watch_supervisor(pid: int, started: int, host: str, stop: Callable[[str], None]) -> None:
    """Call ``stop`` with a reason once the supervisor has ended. On another host, which can't see it, do nothing.

    :param pid: of the supervisor, the process for which this one works
    :param started: as of :func:`process_started`
    :param host: of the supervisor
    """
    if host != socket.gethostname():
        return

    def poll() -> None:
        waiting = threading.Event()
        while is_alive(pid, started):
            waiting.wait(_POLL_SECONDS)
        stop(f"the process {pid}, for which this refresh ran, has ended")

    threading.Thread(target=poll, name="rfr-watchdog", daemon=True).start()


def stop_on_signals(stop: Callable[[str], None]) -> None:
    """Call ``stop`` with a reason on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: stop(f"received {signal.Signals(received).name}"))


def is_guest() -> bool:
    """Tell whether Spark already runs in this process, which then belongs to another program, such as a notebook."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return context is not None and context._active_spark_context is not None


_SWITCH = "RFR_CLASS_ARCHIVE"
"""Environment variable; with ``off``, the archive is neither written nor used."""
_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m")

MEMORY_VARIABLES = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Environment of processes that read on many threads: by default each thread keeps freed memory of its own."""
_M_ARENA_MAX = -8  # of glibc's malloc.h


def save_memory() -> None:
    """Apply :data:`MEMORY_VARIABLES` to this process and those that it will start; the user's values win.

    Call it before PyArrow is imported.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        # glibc reads the variable when a process starts: too late for this one. Other C libraries have no arenas.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, int(MEMORY_VARIABLES["MALLOC_ARENA_MAX"]))
    for name, value in MEMORY_VARIABLES.items():
        os.environ.setdefault(name, value)


def driver_java_options() -> list[str]:
    """Return the options for a driver on this machine, for ``spark.driver.extraJavaOptions``. Never for an executor."""
    archive = _archive_path()
    # Not is_file(), which raises an error where the folder can't be read.
    if archive is None or not os.access(archive, os.R_OK):
        return list(_FAST_START)
    return [*_FAST_START, f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def _archive_path() -> Path | None:
    """Return the path of the class archive for this Java and this Spark, existing or not.

    Return None without Java, Spark or a home, or if the archive is turned off.
    """
    if os.environ.get(_SWITCH, "").lower() in ("off", "0", "false"):
        return None
    java_home, home = os.environ.get("JAVA_HOME"), spark_home()
    java = Path(java_home) / "bin" / "java" if java_home else Path(shutil.which("java") or "/")
    java = java.resolve()
    if not java.is_file() or home is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    digest.update(str(java).encode())
    digest.update(str(java.stat().st_mtime_ns).encode())
    for jar in sorted(home.glob("jars/*.jar")):
        digest.update(f"{jar}:{jar.stat().st_size}".encode())
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return cache / "airflow-provider-rfr" / f"spark-{digest.hexdigest()}.jsa"


def _write_archive() -> Path | None:
    """Write the archive where it is missing.

    Return its path, or None if Java or Spark is missing or another process writes.
    """
    archive = _archive_path()
    if archive is None or archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_suffix(".draft")
    # The lock ends with its process, however that ends.
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        from pyspark import SparkConf, SparkContext

        # The machine's own name may not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = SparkConf().setMaster("local[2]").setAppName("rfr class archive").set("spark.ui.enabled", "false")
        conf.set("spark.driver.extraJavaOptions", " ".join([*_FAST_START, f"-XX:ArchiveClassesAtExit={draft}"]))
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        context = SparkContext(conf=conf)
        context.parallelize(range(4), 2).map(lambda number: (number % 2, number)).groupByKey().collect()
        process = getattr(context._gateway, "proc", None)
        context.stop()
        # Java writes the archive when it exits, and it exits when its input is closed.
        if process is not None:
            process.stdin.close()
            process.wait(timeout=120)
        if not draft.is_file():
            return None
        # Under its final name only when it is whole: drivers that start meanwhile use whatever has that name.
        draft.replace(archive)
    return archive


def write_in_background() -> subprocess.Popen[bytes] | None:
    """Start a process that writes the archive if it is missing; return None if there is nothing to do, or no memory."""
    archive = _archive_path()
    if archive is None or os.access(archive, os.R_OK):
        return None
    # With these variables PySpark would connect to the Java of this driver instead of starting its own.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_GATEWAY")}
    # The load is published: nothing may fail any more.
    with suppress(OSError):
        return subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", __name__],
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Signals to the driver's process group, such as that of Ctrl-C, do not end it half way.
            start_new_session=True,
        )
    return None


if __name__ == "__main__":
    path = _write_archive()
    print(f"class archive: {path}" if path else "no class archive: Java or Spark was not found")
    sys.exit(0)
