"""``docker/bare_machine.sh``: docker-compose.yaml without containers.

Every service is started as a process on loopback by the file's own command, with its own settings and in the file's
own order, and is waited for by its own health check. Then the ready DAG runs once, and the table is compared with the
API. What a container would have to itself is put in its place: names of services become 127.0.0.1, ports free ones,
folders those of a scratch folder. PostgreSQL comes from the machine's packages and runs the same SQL.

``--image`` also carries out the Dockerfile's COPY and pip steps, into a virtual environment of the run's own; what
apt-get and useradd do is left to the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from demo.airflow_stack import free_port
from demo.cleanup import exit_on_signals
from demo.compose_file import COMPOSE_FILE, DOCKERFILE, ROOT, image_environment, read_compose, read_environment

DAG = "resumable_full_refresh"
PATIENCE = 420.0
RUN_PATIENCE = 420.0
LAST_LINE = "Published "


class BareMachine:
    """The file's services as processes, each in a process group of its own.

    :param folder: for all that they write
    :param root: what is ``/opt/rfr`` in the image
    :param python: a virtual environment with the image's packages
    """

    def __init__(self, folder: Path, root: Path, python: Path) -> None:
        self.folder = folder
        made = subprocess.run([str(ROOT / "docker" / "new_env.sh")], capture_output=True, text=True, check=True)
        self.environment = read_environment(made.stdout)
        text = COMPOSE_FILE.read_text()
        services = read_compose(text, self.environment)["services"]
        wanted = {port for service in services.values() for port in ports_inside(service)}
        self.ports = {port: free_port() for port in sorted(wanted)}
        self.services: dict[str, Any] = read_compose(self._moved(text, list(services), root), self.environment)[
            "services"
        ]
        self._root = root
        self._bin = python / "bin"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._began: dict[str, float] = {}

    def start(self) -> dict[str, float]:
        """Start everything; returns the seconds that each service took to become healthy.

        :raises RuntimeError: a service ended, with the end of its log
        """
        seconds: dict[str, float] = {}
        while len(seconds) < len(self.services):
            for name, service in self.services.items():
                if name not in seconds and name not in self._processes and self._may_start(service, seconds):
                    self.start_one(name)
            for name in list(self._processes):
                if name not in seconds and self._is_ready(name):
                    seconds[name] = round(time.monotonic() - self._began[name], 1)
                    say(f"  {name:<16} {'ended well' if self._once(name) else 'healthy'} after {seconds[name]} s")
            time.sleep(0.5)
        return seconds

    def start_one(self, name: str) -> None:
        """Start one service, which may have run before."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        self._began[name] = time.monotonic()
        if name == "postgres":
            self._processes[name] = self._start_postgres(home)
            return
        with (home / "output.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._found(self.services[name]["command"]),
                env=self._environment(name),
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop_one(self, name: str) -> None:
        """End a service as Compose does."""
        process = self._processes.pop(name)
        process.terminate()
        process.wait(30)

    def healthy(self, name: str) -> bool:
        """What the service's health check says."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        if kind != "CMD":
            raise ValueError(f"{name}: a health check of kind {kind}")
        return self.run(name, command).returncode == 0

    def run(self, name: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command next to a service, as ``docker compose exec`` does."""
        environment = self._environment(name)
        return subprocess.run(
            self._found(command),
            env=environment,
            cwd=self._root,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def stop(self) -> None:
        """End every service, and what it started."""
        for sent, seconds in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0)):
            # PostgreSQL waits for its sessions at SIGTERM, and ends them at SIGINT.
            for name, process in self._processes.items():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT if (name, sent) == ("postgres", signal.SIGTERM) else sent)
            end = time.monotonic() + seconds
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
        self._processes.clear()

    def log(self, name: str, characters: int = 3000) -> str:
        """The end of what a service printed."""
        return (self.folder / name / "output.log").read_text(errors="replace")[-characters:]

    def _moved(self, text: str, names: list[str], root: Path) -> str:
        """The file with this machine's addresses and folders; its secrets are not in it yet."""
        for port, free in self.ports.items():
            text = re.sub(rf"(?<![\w.]){port}(?![\w.])", str(free), text)
        text = re.sub(rf"(?<=//)({'|'.join(names)})(?=:)", "127.0.0.1", text)
        text = re.sub(rf"(@|--host, )({'|'.join(names)})(?![\w-])", r"\g<1>127.0.0.1", text)
        places = {"/opt/rfr": root, "/var/lib/rfr-s3": self.folder / "objects", "/var/lib/rfr-spark": self.folder}
        for inside, outside in {**places, "0.0.0.0": "127.0.0.1"}.items():
            text = text.replace(inside, str(outside))
        return text

    def _environment(self, name: str) -> dict[str, str]:
        own = {key: str(value) for key, value in self.services[name].get("environment", {}).items()}
        kept = {key: os.environ[key] for key in ("HOME", "JAVA_HOME", "LANG", "LC_ALL") if key in os.environ}
        image = {
            key: value for key, value in image_environment(DOCKERFILE.read_text()).items() if not key.startswith("UV_")
        }
        path = f"{self._bin}:{postgres_binaries()}:{os.environ.get('PATH', os.defpath)}"
        more = {"PATH": path, "AIRFLOW_HOME": str(self.folder / name), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**kept, **image, **own, **more, "TMPDIR": str(self.folder)}

    def _found(self, command: Sequence[str]) -> list[str]:
        """The command by its full path: a process's own search path is this one's, not that of its environment."""
        path = f"{self._bin}:{postgres_binaries()}:{os.environ.get('PATH', os.defpath)}"
        first = str(self._root / command[0]) if "/" in command[0] else shutil.which(command[0], path=path)
        if first is None:
            raise RuntimeError(f"there is no {command[0]}")
        return [first, *command[1:]]

    def _may_start(self, service: dict[str, Any], ready: dict[str, float]) -> bool:
        return all(name in ready for name in service.get("depends_on", {}))

    def _once(self, name: str) -> bool:
        return "healthcheck" not in self.services[name]

    def _is_ready(self, name: str) -> bool:
        code = self._processes[name].poll()
        if code is not None and not (self._once(name) and code == 0):
            raise RuntimeError(f"{name} ended with {code}:\n{self.log(name)}")
        if self._once(name):
            if code is not None:
                del self._processes[name]
            return code is not None
        if self.healthy(name):
            return True
        if time.monotonic() - self._began[name] > PATIENCE:
            raise RuntimeError(f"{name} did not become healthy:\n{self.log(name)}")
        return False

    def _start_postgres(self, home: Path) -> subprocess.Popen[bytes]:
        """What the image's entry point does: a cluster, a server, and the scripts of its folder."""
        service, port = self.services["postgres"], str(self.ports[5432])
        user = "postgres" if os.geteuid() == 0 else None
        secret = home / "password"
        secret.write_text(service["environment"]["POSTGRES_PASSWORD"])
        if user is not None:
            self.folder.chmod(0o711)
            for path in (home, secret):
                os.chown(path, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        tools = postgres_binaries()
        make = [str(tools / "initdb"), "-D", str(home / "data"), "-U", "postgres", "-E", "UTF8", "--no-sync"]
        make += ["--auth=scram-sha-256", f"--pwfile={secret}"]
        subprocess.run(make, check=True, capture_output=True, user=user, cwd=home)
        serve = [str(tools / "postgres"), "-D", str(home / "data"), "-p", port, "-k", str(home)]
        with (home / "output.log").open("wb") as log:
            process = subprocess.Popen(
                [*serve, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
                user=user,
                cwd=home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes["postgres"] = process
        environment = {**self._environment("postgres"), "PGPASSWORD": service["environment"]["POSTGRES_PASSWORD"]}
        ready = [str(tools / "pg_isready"), "--host", "127.0.0.1", "--port", port]
        while subprocess.run(ready, capture_output=True, check=False).returncode:
            if process.poll() is not None:
                raise RuntimeError(self.log("postgres"))
            time.sleep(0.1)
        for script in scripts_of(service):
            run = [str(tools / "psql"), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-p", port]
            with script.open() as source:
                subprocess.run([*run, "-h", "127.0.0.1"], env=environment, stdin=source, check=True)
        return process


class Airflow:
    """Airflow's public API, as its one user."""

    def __init__(self, port: int, password: str) -> None:
        self._port = port
        self._token = ""
        self._token = self.call("POST", "/auth/token", {"username": "admin", "password": password})["access_token"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """:raises RuntimeError: it answers with an error"""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text)

    def run(self, conf: dict[str, Any]) -> str:
        """Run the ready DAG once; returns the state it ended in."""
        end = time.monotonic() + RUN_PATIENCE
        while not any(dag["dag_id"] == DAG for dag in self.call("GET", "/api/v2/dags")["dags"]):
            if time.monotonic() > end:
                raise TimeoutError(f"the DAG was not parsed: {self.call('GET', '/api/v2/importErrors')}")
            time.sleep(1)
        path = f"/api/v2/dags/{DAG}/dagRuns"
        self.call("POST", path, {"dag_run_id": "bare", "logical_date": None, "conf": conf})
        while (state := self.call("GET", f"{path}/bare")["state"]) not in ("success", "failed"):
            if time.monotonic() > end:
                raise TimeoutError(f"the run is still {state}")
            time.sleep(1)
        return str(state)

    def first_scheduled(self, dag_id: str, task_id: str) -> str:
        """Wait for the first run that a DAG has by its schedule; returns the state of one of its tasks."""
        end = time.monotonic() + RUN_PATIENCE
        path = f"/api/v2/dags/{dag_id}/dagRuns"
        while not (runs := self.call("GET", path)["dag_runs"]) or runs[0]["state"] not in ("success", "failed"):
            if time.monotonic() > end:
                raise TimeoutError(f"{dag_id}: {runs}")
            time.sleep(1)
        return str(self.call("GET", f"{path}/{runs[0]['dag_run_id']}/taskInstances/{task_id}")["state"])

    def task_log(self, seconds: float = 30.0) -> str:
        """What the UI shows of the task's first try; the worker sends it on while it is written, and a little later."""
        path = f"/api/v2/dags/{DAG}/dagRuns/bare/taskInstances/refresh/logs/1?full_content=true"
        end = time.monotonic() + seconds
        while True:
            answer = self.call("GET", path)["content"]
            log = "\n".join(str(line.get("event", line)) for line in answer if isinstance(line, dict))
            if LAST_LINE in log or time.monotonic() > end:
                return log
            time.sleep(1)


def check(machine: BareMachine) -> dict[str, Any]:
    """Run the ready DAG unchanged, once more after the store was restarted, and compare table and API."""
    airflow = Airflow(machine.ports[8080], machine.environment["AIRFLOW_ADMIN_PASSWORD"])
    state = airflow.run({})
    log = airflow.task_log()
    if state != "success":
        say(log[-6000:])
    say(f"the ready DAG: {state}")
    figures: dict[str, Any] = {"state": state, "log_in_ui": LAST_LINE in log}
    secrets = [value for name, value in machine.environment.items() if name != "AIRFLOW_PORT"]
    figures["secrets_in_log"] = sum(secret in log for secret in secrets)
    figures |= others(machine, airflow)
    machine.stop_one("s3")
    machine.start_one("s3")
    wait_until_healthy(machine, "s3")
    figures |= compare(machine)
    say(
        f"after the store's restart: {figures['rows']} rows, {figures['missing']} missing, {figures['doubled']} doubled"
    )
    return figures


def others(machine: BareMachine, airflow: Airflow) -> dict[str, Any]:
    """What became of the other ready DAGs by themselves, and what a shell in the worker shows."""
    store = "from airflow_provider_rfr.hooks.control_store import ControlStoreHook as Hook"
    opened = machine.run("worker", ["python", "-c", f"{store}; Hook().get_store(); print(Hook().url.drivername)"])
    shown = machine.run("worker", command_for_ten_rows())
    figures = {
        "webhooks": airflow.first_scheduled("deliver_webhooks", "deliver"),
        "migrations": airflow.call("GET", "/api/v2/dags/builtin_migration/dagRuns")["total_entries"],
        "control_store": "".join(opened.stdout.split()[-1:]),
        "rows_shown": sum(line.startswith("{'id': ") for line in shown.stdout.splitlines()),
    }
    say(f"the other ready DAGs, and a shell in the worker: {figures}{(opened.stderr + shown.stderr)[-2000:]}")
    return figures


def compare(machine: BareMachine) -> dict[str, Any]:
    """The table's rows against the API's own account."""
    connection = json.loads(machine.services["worker"]["environment"]["AIRFLOW_CONN_RFR_LAKE_DEFAULT"])
    extra = connection["extra"]
    uri = connection["host"].replace("://", f"://{connection['login']}:{connection['password']}@")
    keys = ("endpoint", "region", "access_key_id", "secret_access_key")
    store = {f"s3.{key.replace('_', '-')}": extra[f"s3_{key}"] for key in keys}
    lake = LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": extra["warehouse"], **store})
    rows = Counter(
        open_catalog(lake).load_table("raw.orders").scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    )
    source = http.client.HTTPConnection("127.0.0.1", machine.ports[8091], timeout=30)
    source.request("GET", "/_admin/truth/orders")
    truth = set(json.load(source.getresponse())["ids"])
    source.close()
    total = sum(rows.values())
    return {"rows": total, "missing": len(truth - set(rows)), "doubled": total - len(rows)}


def command_for_ten_rows() -> list[str]:
    """The command of docs/containers.md that shows rows of the published table, as the worker runs it."""
    found = re.search(
        r"^\$ docker compose exec worker (python -c '.*?')$", (ROOT / "docs" / "containers.md").read_text(), re.M | re.S
    )
    if found is None:
        raise ValueError("docs/containers.md has no command for ten rows")
    return shlex.split(found[1])


def wait_until_healthy(machine: BareMachine, name: str) -> None:
    """:raises TimeoutError: it does not become healthy"""
    end = time.monotonic() + PATIENCE
    while not machine.healthy(name):
        if time.monotonic() > end:
            raise TimeoutError(name)
        time.sleep(0.2)


def build_image(folder: Path) -> tuple[Path, Path]:
    """Carry out the Dockerfile's COPY and pip steps; returns what becomes ``/opt/rfr``, and the environment."""
    root, environment = folder / "image", folder / "venv"
    root.mkdir()
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", str(environment)], check=True)
    variables = {**os.environ, "VIRTUAL_ENV": str(environment), "PATH": f"{environment}/bin:{os.environ['PATH']}"}
    for step in image_steps(DOCKERFILE.read_text()):
        say(f"  {step}")
        if step.startswith("COPY "):
            *sources, target = step.split()[1:]
            for source in sources:
                copy(ROOT / source, root / target)
        else:
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", step.removeprefix("RUN ")], env=variables, cwd=root, check=True
            )
    return root, environment


def image_steps(dockerfile: str) -> list[str]:
    """The steps that a machine can carry out for itself: COPY, and what pip installs."""
    steps = re.sub(r"\\\n\s*", "", dockerfile).splitlines()
    return [step for step in steps if step.startswith(("COPY ", "RUN python -m "))]


def copy(source: Path, target: Path) -> None:
    """As COPY does: a folder's content into the target, a file into the folder."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def ports_inside(service: dict[str, Any]) -> set[int]:
    """The ports that a service listens on."""
    published = [str(port).rpartition(":")[2] for port in service.get("ports", ())]
    return {int(port) for port in (*service.get("expose", ()), *published)}


def scripts_of(service: dict[str, Any]) -> list[Path]:
    """The scripts that PostgreSQL's image runs in a new cluster."""
    mounts = (volume.split(":") for volume in service["volumes"])
    return [ROOT / mount[0] for mount in mounts if mount[1].startswith("/docker-entrypoint-initdb.d/")]


def postgres_binaries() -> Path:
    """The folder with ``initdb``; not on the path on Debian."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    path = str(found[-1]) if found else shutil.which("initdb")
    if path is None:
        raise RuntimeError("PostgreSQL's server is not installed (Debian's package: postgresql)")
    return Path(path).resolve().parent


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may pass through."""
    with tempfile.TemporaryDirectory(prefix="rfr-bare-") as folder:
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if every service became healthy and the table is the API's."""
    parser = argparse.ArgumentParser(prog="docker/bare_machine.sh", description="docker-compose.yaml on this machine.")
    parser.add_argument("--image", action="store_true", help="carry out the Dockerfile's COPY and pip steps first")
    options = parser.parse_args(arguments)
    exit_on_signals()
    with scratch() as folder:
        root, environment = build_image(folder) if options.image else (ROOT, Path(sys.prefix))
        machine = BareMachine(folder, root, environment)
        try:
            seconds = machine.start()
            figures = {"healthy": len(seconds), "services": len(machine.services), **check(machine)}
        finally:
            machine.stop()
    print(json.dumps(figures), flush=True)
    return 0 if good(figures) else 1


def good(figures: dict[str, Any]) -> bool:
    """Whether everything ran, no row is lost or doubled, and no secret was logged."""
    whole = figures["missing"] == figures["doubled"] == figures["secrets_in_log"] == figures["migrations"] == 0
    ran = figures["state"] == "success" and figures["webhooks"] == "skipped" and figures["log_in_ui"]
    shown = figures["rows"] > 0 and figures["rows_shown"] == 10
    stored = figures["control_store"].startswith("postgresql")
    return bool(whole and ran and shown and stored and figures["healthy"] == figures["services"])


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
