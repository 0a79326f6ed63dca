"""A process in a "cluster", in a folder of its own: a driver whose files were staged there, or a pod's container."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tests.integration.conftest import ROOT


class ClusterProcess:
    """A process that a "cluster" runs in a folder of its own, where its output is, too."""

    def __init__(self, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "stdout").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
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

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        """SIGKILL to everything that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


class Driver(ClusterProcess):
    """One run of an application with the files that were submitted with it.

    The files are copied before the constructor returns, as a cluster's staging does: the submitter removes its own.
    """

    def __init__(self, folder: Path, files: Sequence[str], application: str, arguments: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder)
        environment = {**_environment(), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        super().__init__(folder, [sys.executable, application, *arguments], environment)


def _environment() -> dict[str, str]:
    """Nothing of the test's own Airflow: a cluster's machines have none."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}


class ClusterServer:
    """A context manager around the HTTP server of a cluster's stand-in and the drivers that it started.

    :ivar requests: method and path of each request
    :ivar trouble: the HTTP status of every answer, None for right ones
    """

    def __init__(self, folder: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        self.folder = folder
        self.requests: list[tuple[str, str]] = []
        self.trouble: int | None = None
        self._numbers = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.end_drivers()

    def end_drivers(self) -> None:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class JsonHandler(BaseHTTPRequestHandler):
    """A request with a body in JSON, and its answer."""

    def read_body(self) -> Any:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(text) if text else {}

    def answer(self, status: int, body: Any, content_type: str = "application/json") -> None:
        text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        pass
