"""The one place that knows the Spark provider's hook, whose inside changes between minor versions.

Adapted to here: where the hook keeps its parts (``_files``, ``_py_files``, ``_application_args``, ``_conf``,
``_env``, ``_connection``, ``_submit_sp``), that it logs the driver's lines in ``_process_spark_submit_log``, and that
it resolves the Spark connection in its constructor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

_ROUND = re.compile(r"\S+: round \d+: ")
_AIRFLOWS = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
_LAST_WORD_KEYS = frozenset({"generation", "error"})


class RefreshSparkHook(SparkSubmitHook):
    """Submits the application of a refresh and keeps its last word, the JSON line of figures.

    :ivar last_word: the last line of figures that came, None before it came; lines of it are not logged
    """

    last_word: dict[str, Any] | None
    _defaults: dict[str, str]
    _popen_environment: dict[str, str]

    @classmethod
    def like(cls, hook: SparkSubmitHook) -> RefreshSparkHook:
        """Take over a hook as the parent operator built it, whatever arguments it has in this version."""
        made = cls.__new__(cls)
        made.__dict__.update(hook.__dict__)
        made.last_word = None
        made._defaults, made._popen_environment = {}, {}
        return made

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in one process on this machine."""
        return str(self._connection["master"]).startswith("local")

    @property
    def in_cluster(self) -> bool:
        """Whether the driver runs elsewhere (deploy mode ``cluster``)."""
        return str(self._connection["deploy_mode"]) == "cluster"

    @property
    def can_run_python(self) -> bool:
        """Whether the master takes a Python driver in this deploy mode; Spark standalone does not in its cluster."""
        return not (self.in_cluster and str(self._connection["master"]).startswith("spark:"))

    @property
    def exit_code(self) -> int | None:
        """Of spark-submit; negative for the signal that ended it, None while it runs or before."""
        process = self._process
        return None if process is None else process.poll()

    @property
    def last_lines(self) -> list[str]:
        """The end of what spark-submit and the driver printed."""
        return list(self._last_submit_log_lines)

    def carry(self, config: Path, package: Path | None) -> None:
        """Hand the configuration to the driver: by its path, or, where the driver runs elsewhere, with ``--files``."""
        arguments = [str(argument) for argument in self._application_args or []]
        if self.in_cluster:
            self._files = _joined(self._files, config)
            self._application_args = ["--config", config.name, *arguments]
        else:
            self._application_args = ["--config", str(config), *arguments]
        if package is not None and not self.is_local:
            self._py_files = _joined(self._py_files, package)

    def default_conf(self, key: str, value: str) -> None:
        """Set a Spark setting where the user has set none."""
        if key not in self._conf:
            self._conf = {**self._conf, key: value}

    def has_conf(self, *keys: str) -> bool:
        """Whether the user has set one of these, as far as the operator's arguments tell."""
        return any(key in self._conf for key in keys) or bool(self._properties_file)

    def default_environment(self, environment: Mapping[str, str]) -> None:
        """Environment of spark-submit on this machine; ``env_vars`` of the user win."""
        self._defaults.update(environment)

    def wait(self, seconds: float) -> bool:
        """Whether spark-submit ended within so many seconds."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit, with an environment that has none of Airflow's settings, connections and variables in it."""
        self._popen_environment = {key: value for key, value in os.environ.items() if not key.startswith(_AIRFLOWS)}
        driver_id: str | None = super().submit(application, env=self._popen_environment, **kwargs)
        return driver_id

    def driver_processes(self) -> list[psutil.Process]:
        """The Python driver below spark-submit, on this machine: one process, or none."""
        if self._process is None or not self._application_args:
            return []
        marker = str(self._application_args[1])
        found = []
        for process in _descendants(self._process.pid):
            try:
                if marker in process.cmdline():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    @property
    def _process(self) -> subprocess.Popen[str] | None:
        return self._submit_sp

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        self._popen_environment.update({**self._defaults, **(self._env or {})})
        self._env = None  # else the parent would put the whole environment of this process in the place of ours
        return list(command)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        self._env = self._popen_environment
        super()._process_spark_submit_log(self._without_figures(itr))

    def _without_figures(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            figures = last_word(line)
            if figures is not None:
                self.last_word = figures
            elif _ROUND.match(line):
                # The follower tells the rounds, in every deploy mode; twice would be noise.
                self.log.debug("%s", line.rstrip())
            else:
                yield line


def last_word(line: str) -> dict[str, Any] | None:
    """The JSON object of figures that a driver ends with, None for any other line."""
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and _LAST_WORD_KEYS & value.keys() else None


def _joined(present: str | None, more: Path) -> str:
    return f"{present},{more}" if present else str(more)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []
