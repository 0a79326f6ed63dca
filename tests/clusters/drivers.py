"""A driver in a "cluster": the application as a process of its own, in a folder that its files were staged to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.integration.conftest import ROOT


class Driver:
    """One run of an application with the files that were submitted with it.

    The files are copied before the constructor returns, as a cluster's staging does: the submitter removes its own.
    """

    def __init__(self, folder: Path, files: Sequence[str], application: str, arguments: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder)
        with (folder / "stdout").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, application, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**_environment(), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 and the signal for one that was killed, as a shell says it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def output(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to everything that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


def _environment() -> dict[str, str]:
    """Nothing of the test's own Airflow: a cluster's machines have none."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
