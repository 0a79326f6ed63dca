"""Files of a refresh for a service that takes Spark jobs by an API of its own: document, application and package.

None of the files holds a secret of a connection: the document refers to environment variables or files of the driver.
The document names no run of Airflow, so it can be submitted any number of times. The job after a killed one continues
its refresh, and the job after a publish begins another refresh.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.http.redaction import is_secret, without_credentials
from airflow_provider_rfr.operators.arguments import REFRESH_ARGUMENTS, pending_arguments
from airflow_provider_rfr.operators.full_refresh import STORE_PARTS, store_url
from airflow_provider_rfr.operators.submit import application_path, zip_package
from airflow_provider_rfr.refresh.config import parse_config

if TYPE_CHECKING:
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

PACKAGE: Final = "airflow_provider_rfr.zip"
APPLICATION: Final = "refresh.py"
DOCUMENT: Final = "run.json"
_STORE_VARIABLE: Final = "RFR_CONTROL_STORE"


@dataclass(frozen=True, slots=True)
class BundledSecret:
    """A secret that the user has to give to the job; its value is in no bundle.

    :ivar kind: ``env`` for an environment variable of the driver, ``file`` for a file on its machine
    :ivar name: name of the variable, or path of the file
    :ivar conn_id: the connection that has the value in Airflow
    :ivar fields: fields of the document that refer to it
    """

    kind: str
    name: str
    conn_id: str
    fields: list[str] = field(default_factory=list)

    @property
    def reference(self) -> dict[str, str]:
        """Return the reference that the document has in place of the value."""
        return {self.kind: self.name}


class _References:
    """The secret references of a document; fields with the same value of a connection share one.

    :param folder: folder of the secrets' files on the driver's machine; None for environment variables
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._secrets: dict[tuple[str, str], BundledSecret] = {}

    @property
    def secrets(self) -> list[BundledSecret]:
        return list(self._secrets.values())

    def refer(self, conn_id: str, place: str, value: Any, variable: str | None = None) -> dict[str, str]:
        """Return the reference for a value.

        :param place: the value's field in the document, by which the variable is named
        :param variable: name of the variable, instead of one from ``place``
        """
        # Several fields of a source hold a connection's password, so the value identifies the secret.
        key = conn_id, str(value)
        if key not in self._secrets:
            name = self._unused(variable or _variable(conn_id, place))
            kind, name = ("env", name) if self._folder is None else ("file", str(PurePosixPath(self._folder) / name))
            self._secrets[key] = BundledSecret(kind, name, conn_id)
        secret = self._secrets[key]
        secret.fields.append(place)
        return secret.reference

    def refer_all(self, conn_id: str, place: str, value: Any) -> Any:
        """Return nested secrets with a reference for each text and each number in them."""
        if isinstance(value, Mapping):
            return {key: self.refer_all(conn_id, f"{place}.{key}", item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.refer_all(conn_id, f"{place}.{number}", item) for number, item in enumerate(value)]
        is_secret_value = value not in (None, "") and not isinstance(value, bool)
        return self.refer(conn_id, place, value) if is_secret_value else value

    def _unused(self, name: str) -> str:
        names = {PurePosixPath(secret.name).name for secret in self._secrets.values()}
        return next(free for free in (name, *(f"{name}_{number}" for number in range(2, 10_000))) if free not in names)


def _variable(conn_id: str, place: str) -> str:
    # The name leaves out the first two parts of the place, ``source.secrets`` or ``lake.properties``.
    words = f"{conn_id}_{place.split('.', 2)[2]}"
    return f"RFR_{re.sub(r'[^A-Za-z0-9]+', '_', words).upper().removeprefix('RFR_')}"


def write_bundle(
    task: ResumableFullRefreshOperator, folder: Path, secret_files: str | None = None
) -> list[BundledSecret]:
    """Write the files of a task's refresh into a folder, and return the secrets that its job needs.

    :param folder: made where it is missing; files of an earlier bundle in it are replaced
    :param secret_files: folder on the driver's machine with a file for each secret; None for environment variables
    :raises ConfigurationError: an argument is a template that only a run can fill in, or is wrong
    """
    if pending := pending_arguments(task, *REFRESH_ARGUMENTS):
        problem, remedy = (
            "is a template, which only a run fills in",
            "write the value itself, e.g. in a DAG for bundles",
        )
        raise ConfigurationError(f"task {task.task_id}: {pending[0]}", problem, remedy)
    references = _References(secret_files)
    document = _without_secrets(task, references)
    folder.mkdir(parents=True, exist_ok=True)
    zip_package(folder, STORE_PARTS if "store" in document else ())
    shutil.copyfile(application_path("full_refresh"), folder / APPLICATION)
    (folder / DOCUMENT).write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")
    return references.secrets


def _without_secrets(task: ResumableFullRefreshOperator, references: _References) -> dict[str, Any]:
    lake = LakeHook(task.lake_conn_id).get_lake_settings()
    document = task.document_without_run(lake)
    store = store_url(elsewhere=True)
    parse_config(document, may_refer=False)
    if task.api_conn_id:
        secrets = references.refer_all(task.api_conn_id, "source.secrets", document["source"]["secrets"])
        document["source"] = {**document["source"], "secrets": secrets}
    properties = {
        # An address may hold a password.
        key: references.refer(task.lake_conn_id, f"lake.properties.{key}", value)
        if value and (is_secret(key) or without_credentials(value) != value)
        else value
        for key, value in lake.properties.items()
    }
    document["lake"] = {"name": lake.name, "properties": properties}
    if store is not None:
        conn_id = ControlStoreHook.default_conn_name
        document["store"] = references.refer(conn_id, "store", store, _STORE_VARIABLE)
    return document
