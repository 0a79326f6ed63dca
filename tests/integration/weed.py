"""SeaweedFS as a process: an S3 store that checks signatures and keeps its data, and the Iceberg REST catalog in it.

It has the options of docker-compose.yaml, apart from addresses and the folder. `scripts/weed.sh` installs the program.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest
import yaml

from demo.airflow_stack import free_port
from tests.integration.conftest import ROOT
from tests.soon import wait_until

BUCKET: Final = "lake"
"""The bucket of tables, which is also the catalog's warehouse."""
_COMPOSE: Final = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]["lake"]
_PORTS: Final = ("master.port", "volume.port", "filer.port", "admin.port")
"""Of services that only the process itself asks; each has a second port, for gRPC."""


def program() -> str:
    """Return the path of ``weed``; skip the test where there is none, and fail it in CI."""
    path = shutil.which("weed", path=f"{ROOT}/.venv/bin:{os.environ['PATH']}")
    if path is not None:
        return path
    reason = "SeaweedFS is not installed (scripts/weed.sh)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class SeaweedServer:
    """A context manager around one server on loopback, which keeps its data in the folder.

    :param options: more options, without the leading dash
    :param key: id and secret of the one access key, which is also the catalog's OAuth client; by default a random one
    :ivar key_id: id of the key
    :ivar secret: of the key
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        key: tuple[str, str] | None = None,
    ) -> None:
        self.key_id, self.secret = key or (f"key{secrets.token_hex(8)}", secrets.token_hex(24))
        self.s3_port, self.catalog_port = free_port(), free_port()
        self._folder = folder
        self._environment = dict(environment or {})
        ports = {name: free_port() for name in _PORTS} | {f"{name}.grpc": free_port() for name in _PORTS}
        ports |= {"s3.port": self.s3_port, "s3.port.grpc": free_port(), "s3.port.iceberg": self.catalog_port}
        own = {"dir": folder, "ip.bind": "127.0.0.1", "admin.port.legacy": 0, **ports}
        # Of an option that is given twice, the last one counts.
        self._options = [f"-{name}={value}" for name, value in own.items()] + [f"-{option}" for option in options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SeaweedServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.s3_port}"

    @property
    def store_properties(self) -> dict[str, str]:
        """Return PyIceberg's properties of the store."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": self.key_id,
            "s3.secret-access-key": self.secret,
        }

    @property
    def catalog_properties(self) -> dict[str, str]:
        """Return the properties of the catalog, without those of the store."""
        uri = f"http://127.0.0.1:{self.catalog_port}"
        login = {"credential": f"{self.key_id}:{self.secret}", "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
        # The server does not list its endpoints, and Java's client can't extend a token that it exchanges.
        of_server = {"view-endpoints-supported": "true", "token-exchange-enabled": "false"}
        return {"type": "rest", "uri": uri, "warehouse": f"s3://{BUCKET}", **of_server, **login}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server, and wait until it has its bucket."""
        keys = {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret}
        with (self._folder / "server.log").open("wb") as output:
            self._process = subprocess.Popen(
                [program(), *_COMPOSE["command"], *self._options],
                cwd=self._folder,
                env={**os.environ, **keys, **self._environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = self._process

        def is_up() -> bool:
            assert process.poll() is None, self.log[-4000:]
            # It writes this once it has its buckets.
            return "All enabled components are running" in self.log

        wait_until(is_up, every=0.2, describe=lambda: self.log[-4000:])

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def vending_server(folder: Path, *, token_seconds: int, credential_seconds: int) -> SeaweedServer:
    """Return a server whose catalog vends credentials for each table.

    :param token_seconds: life of an OAuth token
    :param credential_seconds: life of vended credentials
    """
    folder.mkdir(parents=True, exist_ok=True)
    role = "arn:aws:iam::role/Tables"
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    everything = [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}]
    trusted = {"Principal": {"Federated": "iceberg-catalog"}, "Action": ["sts:AssumeRoleWithCredentials"]}
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **trusted}]}
    access = {
        "sts": {
            "tokenDuration": f"{credential_seconds}s",
            "maxSessionLength": "1h",
            "issuer": "weed",
            "signingKey": key,
        },
        "policies": [{"name": "Files", "document": {"Version": "2012-10-17", "Statement": everything}}],
        "roles": [{"roleName": "Tables", "roleArn": role, "attachedPolicies": ["Files"], "trustPolicy": trust}],
    }
    (folder / "access.json").write_text(json.dumps(access))
    # A duration that an option names is a quarter of an hour at least; without one, it is the `tokenDuration`.
    options = [f"s3.iam.config={folder}/access.json", f"s3.iceberg.credentialRole={role}"]
    options.append("s3.iceberg.credentialDurationSeconds=0")
    return SeaweedServer(folder, options, environment={"ICEBERG_OAUTH_TOKEN_EXPIRY": str(token_seconds)})
