"""Kubernetes as far as a driver's pod goes: the part of its API that Spark's submit client and Airflow's client use.

Spark's own ``spark-submit`` submits to it. As in a cluster, the pod waits until there is the config map that it mounts;
then its "container" is started: the application that Spark uploaded, with the files that were submitted with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.clusters.drivers import ClusterServer, Driver, JsonHandler

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: "{url}"}}}}]
users: [{{name: test, user: {{}}}}]
"""


@dataclass
class Pod:
    """One pod.

    :ivar body: as it was created
    :ivar sidecar: a container beside the driver's, which never ends
    """

    body: dict[str, Any]
    driver: Driver | None = None
    sidecar: bool = False

    def shown(self) -> dict[str, Any]:
        code = self.driver.exit_code if self.driver is not None else None
        phase = "Pending" if self.driver is None else "Running" if code is None else "Failed" if code else "Succeeded"
        if self.sidecar and phase != "Pending":
            phase = "Running"
        state: dict[str, Any] = {"running": {}} if code is None else {"terminated": _terminated(code)}
        statuses = [_status("spark-kubernetes-driver", state)] if self.driver is not None else []
        statuses += [_status("istio-proxy", {"running": {}})] if self.sidecar else []
        return {**self.body, "status": {"phase": phase, "containerStatuses": statuses}}


class KubernetesApi(ClusterServer):
    """A context manager around the server and its pods.

    :ivar pods: by name
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _handler(self))
        self.pods: dict[str, Pod] = {}

    def end_drivers(self) -> None:
        for name in list(self.pods):
            self.delete(name)

    @property
    def newest(self) -> tuple[str, Pod]:
        return list(self.pods.items())[-1]

    def kubeconfig(self) -> Path:
        """A file that leads clients here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "kubeconfig"
        path.write_text(KUBECONFIG.format(url=self.url))
        return path

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        pod = Pod(_stored(body, next(self._numbers)))
        self.pods[body["metadata"]["name"]] = pod
        return pod.shown()

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        properties = _properties(body.get("data", {}).get("spark.properties", ""))
        pod = self.pods.get(properties.get("spark.kubernetes.driver.pod.name", ""))
        if pod is not None and pod.driver is None:
            self._start(pod, properties)
        return _stored(body, next(self._numbers))

    def delete(self, name: str) -> None:
        pod = self.pods.pop(name)
        if pod.driver is not None:
            pod.driver.kill()

    def _start(self, pod: Pod, properties: dict[str, str]) -> None:
        arguments = pod.body["spec"]["containers"][0]["args"]
        main = arguments.index("org.apache.spark.deploy.PythonRunner") + 1
        files = [urlsplit(file).path for file in properties.get("spark.files", "").split(",") if file]
        folder = self.folder / pod.body["metadata"]["name"]
        pod.driver = Driver(folder, files, urlsplit(arguments[main]).path, arguments[main + 1 :])


def _properties(text: str) -> dict[str, str]:
    """Java's properties, as far as Spark writes them."""
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key: value.replace("\\", "") for key, _, value in lines}


def _stored(body: dict[str, Any], number: int) -> dict[str, Any]:
    metadata = {**body["metadata"], "namespace": "data", "uid": f"uid-{number}", "resourceVersion": str(number)}
    return {**body, "metadata": metadata}


def _status(name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "state": state, "ready": True, "restartCount": 0, "image": "spark", "imageID": "spark"}


def _terminated(code: int) -> dict[str, Any]:
    return {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}


def _handler(api: KubernetesApi) -> type[JsonHandler]:
    class Handler(JsonHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name, rest = self._pod()
            if name is not None and rest == ["log"]:
                driver = api.pods[name].driver
                self.answer(200, driver.output() if driver is not None else "", "text/plain")
            elif name is not None:
                self.answer(200, api.pods[name].shown())

        def do_POST(self) -> None:
            self.answer(201, api.create(self.read_body()))

        def do_PATCH(self) -> None:
            self.answer(200, api.apply(self.read_body()))

        def do_DELETE(self) -> None:
            self.read_body()
            name, _ = self._pod()
            if name is not None:
                shown = api.pods[name].shown()
                api.delete(name)
                self.answer(200, shown)

        def _pod(self) -> tuple[str | None, list[str]]:
            """The pod that the path names, answered for already if there is none."""
            parts = urlsplit(self.path).path.split("/")
            api.requests.append((self.command, "/".join(parts)))
            if api.trouble is not None:
                self._refuse(api.trouble)
                return None, []
            if parts[:6] != ["", "api", "v1", "namespaces", "data", "pods"] or parts[6] not in api.pods:
                self._refuse(404)
                return None, []
            return parts[6], parts[7:]

        def _refuse(self, status: int) -> None:
            self.answer(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status})

    return Handler
