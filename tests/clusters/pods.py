"""Pods of Spark in a "cluster": a container is started as a process, as the kubelet and Spark's image start it.

The command is the one that ``entrypoint.sh`` of Spark's image makes of the container's arguments, ``driver ...`` or
``executor``; environment, config maps and empty folders are the pod's own. Every pod has an address of its own in
127.0.0.0/8. Replaced is what only a cluster or an image has:

* paths in the container, such as ``/opt/spark/conf``, lead to folders of the pod;
* ``/opt/spark`` itself is the installed PySpark, and ``JAVA_HOME`` is this machine's;
* in the driver's ``spark.properties``, ``spark.driver.host`` is the pod's address instead of the DNS name of its
  service, ``spark.kubernetes.driver.master`` is the API here instead of ``https://kubernetes.default.svc``, and
  ``spark.kubernetes.authenticate.driver.mounted.oauthTokenFile`` and ``.caCertFile`` name files of the pod's folder
  instead of those of the service account.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.clusters.drivers import ClusterProcess
from tests.integration.standalone import SPARK_HOME

_CONF: Final = "/opt/spark/conf"
_JAVA_OPTION: Final = "SPARK_JAVA_OPT_"
_EXECUTOR_OPTIONS: Final = {
    "driver-url": "SPARK_DRIVER_URL",
    "executor-id": "SPARK_EXECUTOR_ID",
    "cores": "SPARK_EXECUTOR_CORES",
    "app-id": "SPARK_APPLICATION_ID",
    "hostname": "SPARK_EXECUTOR_POD_IP",
    "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "podName": "SPARK_EXECUTOR_POD_NAME",
}


@dataclass
class Pod:
    """One pod, which waits until the config maps that it mounts exist.

    :ivar body: as it was created
    :ivar address: its IP address
    :ivar process: of Spark's container; None as long as the pod waits
    :ivar sidecar: a container beside Spark's, which never ends
    """

    body: dict[str, Any]
    address: str
    process: ClusterProcess | None = None
    sidecar: bool = False

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    def config_maps(self) -> list[str]:
        """Return the names of the config maps that it mounts."""
        volumes = self.body["spec"].get("volumes", ())
        return [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]

    def start(self, folder: Path, config_maps: Mapping[str, Any], api: str) -> None:
        """Start Spark's container.

        :param folder: of the pod
        :param config_maps: bodies by name
        :param api: address of the API server
        """
        [container] = self.body["spec"]["containers"]
        paths = self._mount(folder, container, config_maps)
        if container["args"][0] == "driver":
            with (Path(paths[_CONF]) / "spark.properties").open("a") as properties:
                properties.write(self._replaced(folder, api))
        variables = {variable["name"]: self._value(variable) for variable in container.get("env", ())}
        environment = {name: _inside(paths, value) for name, value in variables.items()}
        environment = {**self._image(folder), **environment}
        arguments = [_inside(paths, argument) for argument in container["args"]]
        self.process = ClusterProcess(folder / "work-dir", entrypoint(arguments, environment), environment)

    def log(self) -> str:
        return self.process.output() if self.process is not None else ""

    def status(self) -> dict[str, Any]:
        code = self.process.exit_code if self.process is not None else None
        phase = "Pending" if self.process is None else "Running" if code is None else "Failed" if code else "Succeeded"
        if self.sidecar and phase != "Pending":
            phase = "Running"
        state: dict[str, Any] = {"running": {}} if code is None else {"terminated": _terminated(code)}
        name = self.body["spec"]["containers"][0]["name"]
        statuses = [_container_status(name, state)] if self.process is not None else []
        statuses += [_container_status("istio-proxy", {"running": {}})] if self.sidecar else []
        conditions = [{"type": "Ready", "status": str(phase == "Running")}]
        return {"phase": phase, "podIP": self.address, "conditions": conditions, "containerStatuses": statuses}

    def _mount(self, folder: Path, container: Mapping[str, Any], config_maps: Mapping[str, Any]) -> dict[str, str]:
        """Fill the folders that the container mounts; return them by their paths in the container."""
        volumes = {volume["name"]: volume for volume in self.body["spec"].get("volumes", ())}
        paths = {}
        for mount in container.get("volumeMounts", ()):
            place = folder / Path(mount["mountPath"]).name
            place.mkdir(parents=True)
            paths[mount["mountPath"]] = str(place)
            name = volumes[mount["name"]].get("configMap", {}).get("name")
            for file, text in config_maps[name]["data"].items() if name else ():
                (place / file).write_text(text)
        return paths

    def _replaced(self, folder: Path, api: str) -> str:
        """Return what replaces properties of a driver: of two with one name, Java takes the later."""
        account = folder / "serviceaccount"
        account.mkdir()
        prefix = "spark.kubernetes.authenticate.driver.mounted"
        files = {f"{prefix}.oauthTokenFile": account / "token", f"{prefix}.caCertFile": account / "ca.crt"}
        for file in files.values():
            file.write_text("any")
        settings = {"spark.driver.host": self.address, "spark.kubernetes.driver.master": api, **files}
        return "".join(f"\n{name}={value}" for name, value in settings.items())

    def _value(self, variable: Mapping[str, Any]) -> str:
        fields = {"status.podIP": self.address, "metadata.name": self.name}
        if "valueFrom" in variable:
            return fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        return str(variable.get("value", ""))

    def _image(self, folder: Path) -> dict[str, str]:
        """Return the environment that the image and the pod's own network give."""
        path = {name: os.environ[name] for name in ("PATH", "JAVA_HOME")}
        return {**path, "HOME": str(folder), "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": self.address}


def entrypoint(arguments: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that ``entrypoint.sh`` of Spark's image makes of a container's arguments."""
    kind, *rest = arguments
    if kind == "driver":
        address = environment["SPARK_DRIVER_BIND_ADDRESS"]
        conf = {"spark.driver.bindAddress": address, "spark.executorEnv.SPARK_DRIVER_POD_IP": address}
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return [f"{environment['SPARK_HOME']}/bin/spark-submit", *options, "--deploy-mode", "client", *rest]
    assert kind == "executor", arguments
    numbers = sorted(int(name.removeprefix(_JAVA_OPTION)) for name in environment if name.startswith(_JAVA_OPTION))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    return [
        f"{environment['JAVA_HOME']}/bin/java",
        *(environment[f"{_JAVA_OPTION}{number}"] for number in numbers),
        *(f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", f"{environment['SPARK_CONF_DIR']}:{environment['SPARK_HOME']}/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *(part for option, name in _EXECUTOR_OPTIONS.items() for part in (f"--{option}", environment[name])),
    ]


def _inside(paths: Mapping[str, str], text: str) -> str:
    for path, folder in paths.items():
        text = text.replace(path, folder)
    return text


def _container_status(name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "state": state, "ready": True, "restartCount": 0, "image": "spark", "imageID": "spark"}


def _terminated(code: int) -> dict[str, Any]:
    return {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
