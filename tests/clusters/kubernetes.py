"""Kubernetes as far as Spark goes: the part of its API that Spark's submit client, a driver and Airflow's client use.

Spark's own ``spark-submit`` submits to it. The driver's pod is started (tests/clusters/pods.py); the driver's scheduler
creates the pods of its executors here, and follows them by lists and watches. What a pod owns goes with it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tests.clusters.drivers import ClusterServer, JsonHandler
from tests.clusters.pods import Pod

KUBECONFIG: Final = """
apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: "{url}"}}}}]
users: [{{name: test, user: {{}}}}]
"""
_KINDS: Final = {
    "pods": "Pod",
    "configmaps": "ConfigMap",
    "services": "Service",
    "persistentvolumeclaims": "PersistentVolumeClaim",
}
_ROLE: Final = "spark-role"
_CONDITION: Final = re.compile(r"([\w./-]+)(!=|==?| in | notin )(\([^)]*\)|[^,]*)")


class KubernetesApi(ClusterServer):
    """A context manager around the server and its pods.

    :ivar pods: by name
    :ivar objects: bodies by kind and name
    :ivar sent: the text of every body that a client has sent
    :ivar changed: guards all of it, and is notified of each change
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _handler(self))
        self.pods: dict[str, Pod] = {}
        self.objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in _KINDS}
        self.sent: list[str] = []
        self._history: list[tuple[str, str, dict[str, Any]]] = []
        self.changed = threading.Condition()
        self._is_over = False

    def end_drivers(self) -> None:
        with self.changed:
            self._is_over = True
            for name in list(self.pods):
                if name in self.pods:
                    self.delete("pods", name)

    @property
    def newest(self) -> tuple[str, Pod]:
        """The driver that was submitted last."""
        pod = self._in_role("driver")[-1]
        return pod.name, pod

    @property
    def executors(self) -> list[Pod]:
        """The executors that run."""
        return [pod for pod in self._in_role("executor") if pod.process is not None and pod.process.exit_code is None]

    def kubeconfig(self) -> Path:
        """A file that leads clients here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "kubeconfig"
        path.write_text(KUBECONFIG.format(url=self.url))
        return path

    def shown(self, kind: str, name: str) -> dict[str, Any]:
        body = self.objects[kind][name]
        return {**body, "status": self.pods[name].status()} if kind == "pods" else body

    def listed(self, kind: str, query: Mapping[str, str]) -> dict[str, Any]:
        with self.changed:
            items = [self.shown(kind, name) for name in self.objects[kind]]
            metadata = {"resourceVersion": str(len(self._history))}
        chosen = [item for item in items if _is_chosen(item, query)]
        return {"kind": f"{_KINDS[kind]}List", "apiVersion": "v1", "metadata": metadata, "items": chosen}

    def watch(self, kind: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield each change after the version in the query, or of all time; ends with the server."""
        seen = int(query.get("resourceVersion") or 0)
        while not self._is_over:
            with self.changed:
                while len(self._history) == seen and not self._is_over:
                    self.changed.wait()
                news, seen = self._history[seen:], len(self._history)
            for change, changed_kind, body in news:
                if changed_kind == kind and _is_chosen(body, query):
                    yield {"type": change, "object": body}

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            name = body["metadata"]["name"]
            metadata = {**body["metadata"], "namespace": "data", "uid": f"uid-{next(self._numbers)}"}
            body = {"apiVersion": "v1", "kind": _KINDS[kind], **body, "metadata": metadata}
            self.objects[kind][name] = body
            if kind == "pods":
                self.pods[name] = Pod(body, self._free_address())
            self._tell("ADDED", kind, name)
            self._start_pods()
            return self.shown(kind, name)

    def apply(self, kind: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Create it, or merge the patch into what there is."""
        with self.changed:
            if name not in self.objects[kind]:
                return self.create(kind, patch)
            _merge(self.objects[kind][name], patch)
            self._tell("MODIFIED", kind, name)
            return self.shown(kind, name)

    def delete(self, kind: str, name: str) -> dict[str, Any]:
        """Remove it with everything that it owns; a pod's container gets a SIGKILL."""
        with self.changed:
            self.objects[kind][name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            if kind == "pods" and (process := self.pods[name].process) is not None:
                process.kill()
            self._tell("DELETED", kind, name)
            shown = self.shown(kind, name)
            del self.objects[kind][name]
            if kind == "pods":
                del self.pods[name]
            for owned_kind, owned in [(kind, name) for kind in _KINDS for name in self.objects[kind]]:
                owners = self.objects[owned_kind][owned]["metadata"].get("ownerReferences", ())
                if shown["metadata"]["uid"] in [owner["uid"] for owner in owners]:
                    self.delete(owned_kind, owned)
            return shown

    def delete_all(self, kind: str, query: Mapping[str, str]) -> dict[str, Any]:
        chosen = self.listed(kind, query)
        for item in chosen["items"]:
            if (name := item["metadata"]["name"]) in self.objects[kind]:
                self.delete(kind, name)
        return chosen

    def _in_role(self, role: str) -> list[Pod]:
        with self.changed:
            return [pod for pod in self.pods.values() if pod.body["metadata"].get("labels", {}).get(_ROLE) == role]

    def _free_address(self) -> str:
        """An address of the network of this server, which nobody else's port has."""
        port = self._server.server_address[1]
        return f"127.{port // 256}.{port % 256}.{len(self._history) % 253 + 1}"

    def _start_pods(self) -> None:
        config_maps = self.objects["configmaps"]
        for pod in self.pods.values():
            if pod.process is None and config_maps.keys() >= set(pod.config_maps()):
                pod.start(self.folder / pod.name, config_maps, self.url)
                self._tell("MODIFIED", "pods", pod.name)
                threading.Thread(target=self._follow, args=(pod,), daemon=True).start()

    def _follow(self, pod: Pod) -> None:
        """Tell of the end of a pod's process."""
        pod.process.wait()
        with self.changed:
            if self.pods.get(pod.name) is pod:
                self._tell("MODIFIED", "pods", pod.name)

    def _tell(self, change: str, kind: str, name: str) -> None:
        self.objects[kind][name]["metadata"]["resourceVersion"] = str(len(self._history) + 1)
        self._history.append((change, kind, json.loads(json.dumps(self.shown(kind, name)))))
        self.changed.notify_all()


def _merge(body: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(body.get(key), dict):
            _merge(body[key], value)
        else:
            body[key] = value


def _is_chosen(body: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    metadata = body["metadata"]
    fields = {"metadata.name": metadata["name"], "status.phase": body.get("status", {}).get("phase")}
    chosen = _fits(query.get("labelSelector", ""), metadata.get("labels") or {})
    return chosen and _fits(query.get("fieldSelector", ""), fields)


def _fits(selector: str, values: Mapping[str, Any]) -> bool:
    """``name=value``, ``name!=value``, ``name in (value,value)`` or ``name notin (...)``, with commas between them."""
    return all(
        (values.get(name) in wanted.strip("()").split(",")) is not ("!" in operator or "not" in operator)
        for name, operator, wanted in _CONDITION.findall(selector)
    )


def _handler(api: KubernetesApi) -> type[JsonHandler]:
    class Handler(JsonHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, name, rest, query = self._target()
            if rest == ["log"]:
                self._respond(200, kind, name, lambda: api.pods[name].log())
            elif name:
                self._respond(200, kind, name, lambda: api.shown(kind, name))
            elif query.get("watch") == "true":
                self._watch(kind, query)
            else:
                self._respond(200, kind, name, lambda: api.listed(kind, query))

        def do_POST(self) -> None:
            kind, name, _, _ = self._target()
            body = self.read_body()
            self._respond(201, kind, name, lambda: api.create(kind, body))

        def do_PATCH(self) -> None:
            kind, name, _, _ = self._target()
            body = self.read_body()
            self._respond(200, kind, "", lambda: api.apply(kind, name, body))

        def do_DELETE(self) -> None:
            kind, name, _, query = self._target()
            self.read_body()
            self._respond(200, kind, name, lambda: api.delete(kind, name) if name else api.delete_all(kind, query))

        def read_body(self) -> Any:
            body = super().read_body()
            api.sent.append(json.dumps(body))
            return body

        def _watch(self, kind: str, query: Mapping[str, str]) -> None:
            if self.headers.get("Upgrade"):
                # Spark's client then watches by plain HTTP, as behind a proxy without WebSockets.
                return self.answer(200, {})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                for event in api.watch(kind, query):
                    self.wfile.write(json.dumps(event).encode() + b"\n")
            except OSError:
                # The client is gone.
                pass

        def _target(self) -> tuple[str, str, list[str], dict[str, str]]:
            """Return kind, name or "", what follows in the path, and the query."""
            url = urlsplit(self.path)
            api.requests.append((self.command, url.path))
            kind, name, *rest = [*url.path.removeprefix("/api/v1/namespaces/data/").split("/"), ""]
            return kind, name, [part for part in rest if part], dict(parse_qsl(url.query))

        def _respond(self, status: int, kind: str, name: str, act: Callable[[], Any]) -> None:
            """Act and answer, unless there is trouble, or no such object.

            :param name: of an object that has to exist; "" for none
            """
            with api.changed:
                is_unknown = kind not in _KINDS or (name and name not in api.objects[kind])
                refusal = api.trouble or (404 if is_unknown else None)
                body = act() if refusal is None else {"kind": "Status", "apiVersion": "v1", "code": refusal}
                if refusal is not None and not api.trouble:
                    body["reason"] = "NotFound"
            content_type = "text/plain" if isinstance(body, str) else "application/json"
            self.answer(refusal or status, body, content_type)

    return Handler
