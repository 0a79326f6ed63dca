"""A complete Airflow on loopback for demos and tests: scheduler, dag-processor, API server, triggerer."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo.cleanup import Watchdog

COMPONENTS = {
    "api-server": ["api-server", "--workers", "1"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
BUSY_SECONDS = 30
PATIENCE = 300.0


class AirflowStack:
    """A context manager around Airflow's own processes, each in a process group of its own. If this process dies, they
    end too.

    :param home: ``AIRFLOW_HOME``: database, logs
    :param connections: connections by id, as Airflow's JSON
    :param environment: variables that take precedence over the stack's own settings
    :param folder: folder to remove if this process dies
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        connections: Mapping[str, Mapping[str, Any]],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.home = home
        self._folder = folder
        self._watchdog: Watchdog | None = None
        self.port = free_port()
        self._token = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, **self._settings(dags), **(environment or {})}
        for name, connection in connections.items():
            self.environment[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(connection)

    def __enter__(self) -> AirflowStack:
        self._watchdog = Watchdog(self.home, self._folder)
        try:
            self._migrate()
            for name, arguments in COMPONENTS.items():
                self._start(name, arguments)
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the components."""
        return [process.pid for process in self._processes.values()]

    def stop(self) -> None:
        """End the components and everything that they have started."""
        if self._watchdog is not None:
            self._watchdog.finish()
            self._watchdog = None
        for process in self._processes.values():
            process.wait(30)
        self._processes.clear()

    def restart(self, name: str, sent: signal.Signals = signal.SIGKILL) -> None:
        """End one component's own process, without its children, and start it again."""
        process = self._processes[name]
        process.send_signal(sent)
        process.wait(30)
        self._start(name, COMPONENTS[name])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call Airflow's public REST API below ``/api/v2``, and retry while its database is busy.

        :raises RuntimeError: the API answers with an error
        """
        # One answer may take BUSY_SECONDS: while the API server waits for SQLite in its event loop, another request
        # that holds the lock can't end.
        end = time.monotonic() + PATIENCE
        status, text = self._request(method, f"/api/v2{path}", body)
        while status == 500 and "Database error" in text and time.monotonic() < end:
            time.sleep(0.5)
            status, text = self._request(method, f"/api/v2{path}", body)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {text[:500]}")
        return json.loads(text) if text else None

    def wait_for_dag(self, dag_id: str) -> None:
        """Return when the DAG was parsed.

        :raises TimeoutError: the DAG was not parsed in time; the message has the import errors
        """
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if any(dag["dag_id"] == dag_id for dag in self.call("GET", "/dags")["dags"]):
                return
            time.sleep(0.5)
        raise TimeoutError(f"{dag_id} was not parsed: {self.call('GET', '/importErrors')}")

    def wait_for_run(self, dag_id: str, run_id: str, seconds: float = PATIENCE) -> str:
        """Wait for the end of a run, and return its state.

        :raises TimeoutError: the run did not end in time
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state: str = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
            if state in ("success", "failed"):
                return state
            time.sleep(0.5)
        raise TimeoutError(f"the run {run_id} of {dag_id} did not end")

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return a task instance as the API shows it."""
        return dict(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"))

    def task_logs(self) -> str:
        """Return everything that tasks have logged."""
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.home.glob("logs/dag_id=*/**/*.log")))

    def task_errors(self) -> list[str]:
        """Return the messages that tasks have logged as errors, without repetitions."""
        errors = []
        for line in self.task_logs().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record.get("level") in ("error", "critical"):
                    errors.append(str(record["event"]))
        return list(dict.fromkeys(errors))

    def _settings(self, dags: Path) -> dict[str, str]:
        binaries = str(Path(sys.executable).parent)
        return {
            "AIRFLOW_HOME": str(self.home),
            # Five components write to one file, and SQLite's default timeout is five seconds.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout={BUSY_SECONDS}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "PATH": f"{binaries}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Without this, setproctitle overwrites the environment of processes, by which demo.cleanup finds them.
            "SPT_NOENV": "1",
        }

    def _migrate(self) -> None:
        done = subprocess.run(
            ["airflow", "db", "migrate"], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"airflow db migrate: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["airflow", *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"airflow {name} ended: {(self.home / f'{name}.log').read_text()[-2000:]}")
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                health = self.call("GET", "/monitor/health")
                if all(health[part]["status"] == "healthy" for part in ("metadatabase", "scheduler", "dag_processor")):
                    return
            time.sleep(0.3)
        raise TimeoutError("Airflow did not become healthy")

    def _request(self, method: str, path: str, body: Any) -> tuple[int, str]:
        if not self._token and not path.startswith("/auth"):
            _, text = self._request("GET", "/auth/token", None)
            self._token = json.loads(text)["access_token"]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


def free_port() -> int:
    """Return a port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
