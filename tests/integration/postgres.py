"""A real PostgreSQL server for tests, started from the machine's binaries and ended by its process id."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from demo.airflow_stack import free_port
from tests.soon import PATIENCE

_USERS = ("postgres", "nobody")


def binaries() -> Path:
    """The folder with ``initdb`` and ``postgres``; skips the test where there is none, and fails it in CI."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    path = programs[-1] if programs else shutil.which("initdb")
    if path is not None:
        return Path(path).resolve().parent
    reason = "PostgreSQL's server is not installed (package postgresql)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class PostgresServer:
    """A context manager around one server on 127.0.0.1, with a password, in a folder of its own."""

    def __init__(self) -> None:
        self.port = 0
        self._bin = binaries()
        self._user = _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="rfr-postgres-"))
        self._password = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        try:
            self._initialise()
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def url(self, database: str = "postgres") -> str:
        """SQLAlchemy's address of a database, password included."""
        address = URL.create("postgresql+psycopg2", "rfr", self._password, "127.0.0.1", self.port, database)
        return address.render_as_string(hide_password=False)

    def new_database(self) -> str:
        """Create an empty database; returns its address."""
        name = f"lake_{uuid.uuid4().hex[:8]}"
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)

    def _initialise(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self._password)
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            for path in (self._folder, secret):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        command = [str(self._bin / "initdb"), "-D", str(self._folder / "data"), "-U", "rfr", "-E", "UTF8"]
        command += ["--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=self._folder)

    def _start(self) -> None:
        self.port = free_port()
        command = [str(self._bin / "postgres"), "-D", str(self._folder / "data"), "-p", str(self.port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-k", str(self._folder), "-c", "fsync=off"]
        # A killed driver's connections stay until the server notices, and one server has many tests.
        command += ["-c", "max_connections=300"]
        # A killed scheduler's workers inherit its connection: a transaction that was open would lock its rows until
        # they end, and the next scheduler skips locked rows.
        command += ["-c", "idle_in_transaction_session_timeout=30s"]
        with (self._folder / "server.log").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, user=self._user, cwd=self._folder, start_new_session=True
            )
        self._wait()

    def _wait(self) -> None:
        engine = create_engine(self.url())
        end = time.monotonic() + PATIENCE
        while True:
            try:
                engine.connect().close()
                break
            except OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((self._folder / "server.log").read_text()) from None
                time.sleep(0.05)
        engine.dispose()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # A fast shutdown: sessions are ended, not waited for.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _unprivileged() -> str | None:
    """Whom to run the server as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no other user to run it as")
