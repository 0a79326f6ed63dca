"""The one module that touches the Spark provider's hook."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook


class RefreshSubmitHook(SparkSubmitHook):
    """``spark-submit`` whose output somebody listens to.

    :ivar on_line: called with each line that the driver prints, before it is logged
    """

    on_line: Callable[[str], None]

    @classmethod
    def listening(cls, hook: SparkSubmitHook, on_line: Callable[[str], None]) -> RefreshSubmitHook:
        """The same hook, listening; nothing was submitted by it yet."""
        hook.__class__ = cls
        listening: RefreshSubmitHook = hook  # type: ignore[assignment]
        listening.on_line = on_line
        return listening

    @property
    def master(self) -> str:
        """The cluster manager's address, e.g. ``local[2]``."""
        return str(self._connection.get("master") or "")

    @property
    def deploy_mode(self) -> str:
        """``client`` or ``cluster``."""
        return str(self._connection.get("deploy_mode") or "client")

    def use_local_python(self) -> None:
        """Let a local driver run this very Python, and find this environment's Spark."""
        environment = dict(self._env or {})
        environment.setdefault("PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON", sys.executable))
        environment.setdefault("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))
        if shutil.which("spark-submit") is None:
            environment.setdefault("PATH", f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        home = pip_spark_home()
        if "SPARK_HOME" not in os.environ and home is not None:
            environment.setdefault("SPARK_HOME", home)
        self._env = environment

    def ask_driver_to_stop(self, seconds: float = 8.0) -> None:
        """SIGTERM to the Python driver, which commits what it has read; then wait until it is gone, or the time is."""
        process = getattr(self, "_submit_sp", None)
        if process is None or process.poll() is not None:
            return
        for pid in children_of(int(process.pid)):
            os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._listened(itr))

    def _listened(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            self.on_line(str(line).rstrip("\n"))
            yield line


def children_of(pid: int) -> list[int]:
    """Processes that ``pid`` started; none where the machine can't tell."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(number) for number in text.split()]


def pip_spark_home() -> str | None:
    """The Spark that pip installed, without importing it; None where there is none."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations)))
    return str(home) if (home / "bin" / "spark-submit").is_file() else None
