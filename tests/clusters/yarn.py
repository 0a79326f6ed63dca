"""YARN as far as an application's life goes: the resource manager's REST API, and a spark-submit that submits to it.

The paths, the fields and their values are those of "ResourceManager REST API's" in Hadoop's documentation: an
application by its id, and the change of its state. The ``spark-submit`` prints what Spark's YARN client logs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.clusters.drivers import ClusterServer, Driver, JsonHandler

ACCEPTED_SECONDS = 0.5

SUBMIT = """#!{python}
import json, sys, urllib.request

options, files, conf = {{}}, [], {{}}
arguments = sys.argv[1:]
while arguments and arguments[0].startswith("--"):
    name, value, *arguments = arguments
    options[name] = value
    if name == "--conf":
        key, _, text = value.partition("=")
        conf[key] = text
application, *rest = arguments
assert options["--master"] == "yarn" and options["--deploy-mode"] == "cluster", options
body = {{"files": options["--files"].split(","), "application": application, "arguments": rest, "conf": conf}}
request = urllib.request.Request("{url}/submit", json.dumps(body).encode(), method="POST")
app = json.load(urllib.request.urlopen(request))
print("26/11/20 12:00:00 INFO Client: Uploading resource file:" + body["files"][0] + " -> hdfs://staging/", flush=True)
print("26/11/20 12:00:01 INFO Client: Submitting application " + app["id"] + " to ResourceManager", flush=True)
print("26/11/20 12:00:01 INFO YarnClientImpl: Submitted application " + app["id"], flush=True)
if conf.get("spark.yarn.submit.waitAppCompletion") != "false":
    sys.exit("it would wait")
print("26/11/20 12:00:02 INFO Client: Application report for " + app["id"] + " (state: ACCEPTED)", flush=True)
print("26/11/20 12:00:02 INFO Client: ", flush=True)
print("\\t client token: N/A", flush=True)
print("\\t diagnostics: N/A", flush=True)
print("\\t tracking URL: " + app["trackingUrl"], flush=True)
print("\\t user: airflow", flush=True)
"""


class ResourceManager(ClusterServer):
    """A context manager around the server and the drivers that were submitted to it.

    :ivar before_answer: called before every answer, on a thread of its own
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _handler(self))
        self.drivers: dict[str, Driver] = {}
        self.before_answer: Callable[[], object] = lambda: None
        self._killed: set[str] = set()
        self._began: dict[str, float] = {}

    def end_drivers(self) -> None:
        for driver in self.drivers.values():
            driver.kill()

    @property
    def newest(self) -> tuple[str, Driver]:
        """The application that was submitted last."""
        return list(self.drivers.items())[-1]

    def install(self, folder: Path, name: str = "spark-submit") -> Path:
        """Write a spark-submit that submits here; returns its folder, for a ``PATH``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(SUBMIT.format(python=sys.executable, url=self.url))
        path.chmod(0o755)
        return folder

    def forget(self, app: str) -> None:
        """As a manager that keeps only so many applications."""
        self.drivers.pop(app).kill()

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        app = f"application_1763640000000_{next(self._numbers):04}"
        self._began[app] = time.monotonic()
        self.drivers[app] = Driver(self.folder / app, body["files"], body["application"], body["arguments"])
        return self.report(app)

    def kill(self, app: str) -> None:
        if self.drivers[app].exit_code is None:
            self._killed.add(app)
            self.drivers[app].kill()

    def report(self, app: str) -> dict[str, Any]:
        code = self.drivers[app].exit_code
        state, final, why = "RUNNING", "UNDEFINED", ""
        if app in self._killed:
            state, final, why = "KILLED", "KILLED", "Application killed by user."
        elif code is None and time.monotonic() - self._began[app] < ACCEPTED_SECONDS:
            state = "ACCEPTED"
        elif code == 0:
            state, final = "FINISHED", "SUCCEEDED"
        elif code is not None:
            state, final, why = "FINISHED", "FAILED", f"User application exited with status {code}"
        url = f"{self.url}/proxy/{app}/"
        return {"id": app, "state": state, "finalStatus": final, "diagnostics": why, "trackingUrl": url}


def _handler(manager: ResourceManager) -> type[JsonHandler]:
    class Handler(JsonHandler):
        def do_POST(self) -> None:
            self.answer(200, manager.submit(self.read_body()))

        def do_GET(self) -> None:
            app = self._app()
            if app is not None:
                self.answer(200, {"app": manager.report(app)})

        def do_PUT(self) -> None:
            app = self._app()
            if app is not None:
                assert self.read_body() == {"state": "KILLED"}
                manager.kill(app)
                self.answer(202, {"state": "KILLED"})

        def _app(self) -> str | None:
            manager.requests.append((self.command, self.path))
            manager.before_answer()
            parts = self.path.split("/")
            if manager.trouble is not None:
                self.answer(manager.trouble, {})
                return None
            if parts[:5] != ["", "ws", "v1", "cluster", "apps"] or parts[5] not in manager.drivers:
                error = {"exception": "NotFoundException", "message": f"app with id: {parts[5:]} not found"}
                self.answer(404, {"RemoteException": error})
                return None
            return parts[5]

    return Handler
