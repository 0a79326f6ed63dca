"""Gateways to stored connections and tasks: by Airflow's REST API for tasks, by its database for the command line.

A task can't open the database, and acts with the rights of an API user. The database gateway changes rows under a row
lock, and checks no rights.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf

from airflow_provider_rfr.connections.airflow.lookup import (
    CONNECTION_VARIABLE,
    ConnectionOrigin,
    changed_meanwhile,
    definition_of,
    fields_of,
    find_definition,
    has_airflow_database,
    masked,
    origin_of,
    read_connection,
    server_backends,
    session_of_airflow,
    worker_backends,
)
from airflow_provider_rfr.connections.dependents import references_of
from airflow_provider_rfr.connections.types import PLACE, Definition, object_in
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    AlterConnectionError,
    ConfigurationError,
    ConnectionConflictError,
    ConnectionRightsError,
    ConnectionShadowedError,
    ConnectionValidationError,
    Problem,
)

if TYPE_CHECKING:
    from requests import Response
    from sqlalchemy.orm import Session

    from airflow_provider_rfr.connections.types import ContentHash
    from airflow_provider_rfr.store.connections import TaskRef
    from airflow_provider_rfr.webhooks.calls import ConnectionSettings

_TEST_SECONDS: Final = 90.0
_PAGE: Final = 100


class ApiGateway:
    """A gateway by Airflow's REST API, with the rights of the API's user."""

    def __init__(self, api: AirflowApi, hashes: ContentHash) -> None:
        self._api = api
        self._hashes = hashes

    def read(self, name: str) -> Definition | None:
        origin = origin_of(name, worker_backends())
        # Requested also for a connection from a secrets backend or the environment: the user needs the right to see it.
        answer = self._api.call("GET", ["connections", name])
        row = None if answer.status_code == 404 else self._checked(name, answer).json()
        if origin is None:
            return None
        origin.refuse_shadowed(name)
        definition = definition_of(origin.connection)
        if not origin.is_database:
            return definition
        if row is None or any((row.get(field) or None) != getattr(definition, field) for field in PLACE):
            raise ConnectionShadowedError(
                name,
                "comes from an environment variable or a secrets backend of Airflow's API server, which goes before"
                " its database: a change in the database would have no effect; change it there",
            )
        return replace(definition, description=row.get("description") or None)

    def find(self, name: str) -> Definition | None:
        return find_definition(name)

    def referring(self, name: str) -> Sequence[str]:
        names: list[str] = []
        offset = 0
        while True:
            query = [("limit", str(_PAGE)), ("offset", str(offset))]
            page = self._checked(name, self._api.call("GET", ["connections"], query=query)).json()
            for row in page["connections"]:
                # The API masks secrets, but not references.
                extra = object_in(row.get("extra") or "{}")
                definition = Definition(str(row["connection_id"]), str(row["conn_type"]), extra=extra or {})
                if name in references_of(definition).values():
                    names.append(definition.name)
            offset += len(page["connections"])
            if not page["connections"] or offset >= page["total_entries"]:
                return names

    def commit(self, expected: str, candidate: Definition) -> None:
        """Store the candidate.

        Airflow's API has no conditional update, so the stored connection is compared right before and after.
        """
        origin = self._expected(expected, candidate)
        if not origin.is_database:
            origin.write(candidate)
        else:
            self._checked(candidate.name, self._api.call("PATCH", ["connections", candidate.name], _body(candidate)))
        self._check_stored(candidate)

    def commit_tested(self, expected: str, candidate: Definition) -> bool:
        """Run Airflow's connection test, and store settings that work; return False where it is not enabled.

        The test could store them itself (``commit_on_success``), but would overwrite changes made while it ran.
        """
        if not self._expected(expected, candidate).is_database:
            return False
        answer = self._api.call("POST", ["connections", "enqueue-test"], _body(candidate))
        if answer.status_code in (403, 404, 405, 422):
            # The test is disabled, no executor supports it, or the user may not run it.
            return False
        self._await_test(candidate, str(self._checked(candidate.name, answer).json()["token"]))
        self.commit(expected, candidate)
        return True

    def rename(self, expected: str, definition: Definition, new_name: str) -> None:
        """Create the new connection and delete the old one, in one request and one transaction of Airflow's."""
        name = definition.name
        self._expected(expected, definition).require_database(name)
        renamed = _body(replace(definition, name=new_name))
        create = {"action": "create", "action_on_existence": "fail", "entities": [renamed]}
        delete = {"action": "delete", "action_on_non_existence": "fail", "entities": [name]}
        answer = self._api.call("PATCH", ["connections"], {"actions": [create, delete]})
        parts = self._checked(name, answer).json().values()
        if any(part.get("errors") for part in parts if part):
            raise ConnectionConflictError(name, f"could not be renamed: is there a {new_name!r} already?")

    def drop(self, expected: str, definition: Definition) -> None:
        self._expected(expected, definition).require_database(definition.name)
        answer = self._api.call("DELETE", ["connections", definition.name])
        if answer.status_code == 404:
            raise changed_meanwhile(definition.name)
        self._checked(definition.name, answer)

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """Return the connections that the user may not edit, found by an update that changes nothing.

        A connection that Airflow does not have is among them, unless it is in a secrets backend that can be written.
        The right to delete is another one, which Airflow checks when a connection is deleted.
        """
        denied = []
        for name in names:
            # The mask names a field that is never updated, so only the right is checked.
            query = [("update_mask", "connection_id")]
            body = {"connection_id": name, "conn_type": "generic"}
            answer = self._api.call("PATCH", ["connections", name], body, query=query)
            if answer.status_code == 404:
                origin = origin_of(name, worker_backends())
                if origin is None or origin.is_database or not origin.can_write:
                    denied.append(name)
            elif answer.status_code == 403:
                denied.append(name)
            else:
                self._checked(name, answer)
        return denied

    def variable(self, name: str) -> str | None:
        from airflow.sdk import Variable

        value = Variable.get(name, default=None)
        return None if value is None else str(value)

    def task_state(self, task: TaskRef) -> str | None:
        path = ["dags", task.dag_id, "dagRuns", task.run_id, "taskInstances", task.task_id]
        path += [str(task.map_index)] if task.map_index >= 0 else []
        try:
            answer = self._api.call("GET", path)
        except ConfigurationError:
            return None
        if answer.status_code == 404:
            # Airflow's own error has a detail. A proxy's 404 tells nothing about the task.
            with suppress(ValueError):
                return "gone" if "detail" in answer.json() else None
            return None
        return str(answer.json()["state"] or "scheduled") if answer.status_code < 400 else None

    def start_task(self, task: TaskRef) -> None:
        # First the task, then the downstream tasks that failed only because it did.
        one: Any = task.task_id if task.map_index < 0 else [task.task_id, task.map_index]
        body = {"dag_run_id": task.run_id, "task_ids": [one], "dry_run": False}
        for more in ({"only_failed": False}, {"only_failed": True, "include_downstream": True}):
            answer = self._api.call("POST", ["dags", task.dag_id, "clearTaskInstances"], {**body, **more})
            if answer.status_code >= 400:
                problem = f"Airflow answered {answer.status_code} to its restart"
                raise ConfigurationError(str(task), problem, "clear the task")

    def _expected(self, expected: str, candidate: Definition) -> ConnectionOrigin:
        origin = origin_of(candidate.name, worker_backends())
        if origin is None or self._hashes.of(definition_of(origin.connection)) != expected:
            raise changed_meanwhile(candidate.name)
        if origin.is_database and origin.connection.password and not candidate.password:
            # The API would store the other fields and keep the password, so the statement would be half done.
            remedy = "use airflow rfr connection alter where Airflow's database is"
            problem = Problem("password", "can't be removed through Airflow's API", remedy)
            raise AlterationRefusedError(candidate.name, [problem])
        return origin

    def _check_stored(self, candidate: Definition) -> None:
        stored = origin_of(candidate.name, worker_backends())
        if stored is None or self._hashes.of(definition_of(stored.connection)) != self._hashes.of(candidate):
            raise ConnectionConflictError(
                candidate.name, "another process changed it in the same moment; look what it is, and try again"
            )

    def _await_test(self, candidate: Definition, token: str) -> None:
        name = candidate.name
        end = time.monotonic() + _TEST_SECONDS
        while time.monotonic() < end:
            headers = {"Airflow-Connection-Test-Token": token}
            answer = self._api.call("GET", ["connections", "enqueue-test"], headers=headers)
            result = self._checked(name, answer).json()
            if result["state"] == "success":
                return
            if result["state"] == "failed":
                message = str(result.get("result_message") or "Airflow's test failed")
                raise ConnectionValidationError(name, masked(message, candidate))
            time.sleep(0.5)
        raise ConnectionValidationError(name, "Airflow's connection test did not end; is a worker running?")

    def _checked(self, name: str, answer: Response) -> Response:
        if answer.status_code == 403:
            raise ConnectionRightsError(name, "Airflow does not let this user edit or delete it")
        if answer.status_code == 409:
            raise ConnectionConflictError(name, "another process is changing or testing it; try again")
        if answer.status_code >= 400:
            # The body of the answer may repeat what was sent.
            raise AlterConnectionError(name, f"Airflow answered {answer.status_code}")
        return answer


def _body(definition: Definition) -> dict[str, Any]:
    return {"connection_id": definition.name, **fields_of(definition)}


_TIMEOUT = (5.0, 60.0)
_REMEDY = "make a connection airflow_api of type rfr_http: Airflow's address as host, login and password of its user"


def _unusable(problem: str, remedy: str = _REMEDY) -> ConfigurationError:
    return ConfigurationError("airflow_api_conn_id", problem, remedy)


class AirflowApi:
    """A client of Airflow's REST API, which signs in with the credentials of a connection.

    If Airflow asks for no password, no connection is needed.

    :param airflow_api_conn_id: connection of type ``rfr_http``; a password without a login is used as a token
    :param settings_of: reads a connection of that type
    """

    default_conn_name = "airflow_api"

    def __init__(self, airflow_api_conn_id: str | None, settings_of: Callable[[str], ConnectionSettings]) -> None:
        self.airflow_api_conn_id = airflow_api_conn_id or self.default_conn_name
        self._settings_of = settings_of
        self._headers: Mapping[str, str] = {}
        self._verify: bool | str = True
        self._token = ""
        self._base = ""
        self._login: str | None = None
        self._password: str | None = None

    def is_there(self) -> bool:
        """Tell whether there is an API that accepts this user."""
        try:
            self._sign_in()
        except ConfigurationError:
            return False
        return True

    def call(
        self,
        method: str,
        path: Sequence[str],
        body: Mapping[str, Any] | None = None,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send one request below ``/api/v2``; the caller checks the status of the answer.

        :param path: segments of the path, unquoted
        :raises ConfigurationError: Airflow does not answer, or does not accept the user
        """

        def send() -> Response:
            url = f"{self._base}/api/v2/{'/'.join(quote(part, safe='') for part in path)}"
            sent = {"Authorization": f"Bearer {self._token}", **(headers or {})}
            return self._request(method, url, json=body, params=list(query), headers=sent)

        if not self._token:
            self._sign_in()
        answer = send()
        if answer.status_code == 401:
            # The token has expired: an alteration may wait for minutes.
            self._sign_in()
            answer = send()
        return answer

    def _sign_in(self) -> None:
        try:
            read_connection(self.airflow_api_conn_id)
        except AirflowNotFoundException:
            if self.airflow_api_conn_id != self.default_conn_name:
                raise _unusable(f"there is no connection {self.airflow_api_conn_id!r}") from None
            self._base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
            if not self._base:
                raise _unusable("there is no connection airflow_api") from None
        else:
            settings = self._settings_of(self.airflow_api_conn_id)
            self._base = settings.base_url.rstrip("/")
            self._login, self._password = settings.login, settings.password
            self._headers, self._verify = settings.headers, settings.verify
        if self._password and not self._login:
            self._token = self._password
            return
        url = f"{self._base}/auth/token"
        if self._login:
            body = {"username": self._login, "password": self._password or ""}
            answer = self._request("POST", url, json=body)
        else:
            answer = self._request("GET", url)
        if answer.status_code >= 400:
            raise _unusable(f"Airflow answered {answer.status_code} at /auth/token")
        try:
            self._token = str(answer.json()["access_token"])
        except (ValueError, TypeError, KeyError):
            raise _unusable("the server there is not Airflow") from None

    def _request(self, method: str, url: str, headers: Mapping[str, str] | None = None, **arguments: Any) -> Response:
        import requests

        from airflow_provider_rfr.http.client import trusted_certificates

        arguments |= {"headers": {**self._headers, **(headers or {})}, "verify": trusted_certificates(self._verify)}
        try:
            with requests.Session() as session:
                session.trust_env = False
                # The request holds secrets, so it follows no redirect.
                answer = session.request(method, url, timeout=_TIMEOUT, allow_redirects=False, **arguments)
        except requests.RequestException as error:
            raise _unusable(f"Airflow did not answer ({type(error).__name__})") from None
        if answer.is_redirect:
            raise _unusable("Airflow's address leads to another one", "name that one")
        return answer


class DatabaseGateway:
    """A gateway by Airflow's database, where compare-and-set is one transaction.

    The command line uses it: it needs no API server, user or password, and can remove a connection's password, which
    the API can't.
    """

    def __init__(self, hashes: ContentHash) -> None:
        self._hashes = hashes

    def read(self, name: str) -> Definition | None:
        origin = origin_of(name, server_backends())
        if origin is None:
            return None
        origin.refuse_shadowed(name)
        if not origin.is_database:
            return definition_of(origin.connection)
        with session_of_airflow() as session:
            row = _row(session, name)
            return None if row is None else definition_of(row)

    def find(self, name: str) -> Definition | None:
        origin = origin_of(name, server_backends())
        return None if origin is None else definition_of(origin.connection)

    def referring(self, name: str) -> Sequence[str]:
        from airflow.models import Connection
        from sqlalchemy import select

        names = []
        with session_of_airflow() as session:
            for row in session.scalars(select(Connection)):
                try:
                    definition = definition_of(row)
                except ConfigurationError:
                    continue
                if name in references_of(definition).values():
                    names.append(definition.name)
        return names

    def commit(self, expected: str, candidate: Definition) -> None:
        """Store the candidate by compare-and-set, in one transaction (``SELECT ... FOR UPDATE``).

        A secrets backend is compared first and then written, because it has no transactions.
        """
        origin = origin_of(candidate.name, server_backends())
        if origin is not None and not origin.is_database:
            if self._hashes.of(definition_of(origin.connection)) != expected:
                raise changed_meanwhile(candidate.name)
            origin.write(candidate)
            return
        with session_of_airflow() as session:
            row = self._expected_row(session, expected, candidate.name)
            for name in ("host", "port", "login", "schema", "description"):
                setattr(row, name, getattr(candidate, name))
            row.set_password(candidate.password)
            if not candidate.password:
                # Airflow's set_password() ignores an empty password, and keeps the old one.
                row._password, row.is_encrypted = None, False
            row.set_extra(candidate.extra_text())

    def commit_tested(self, expected: str, candidate: Definition) -> bool:
        return False

    def rename(self, expected: str, definition: Definition, new_name: str) -> None:
        self._require_database(definition.name)
        with session_of_airflow() as session:
            row = self._expected_row(session, expected, definition.name)
            if _row(session, new_name) is not None:
                raise ConnectionConflictError(definition.name, f"there is a {new_name!r} already")
            row.conn_id = new_name

    def drop(self, expected: str, definition: Definition) -> None:
        self._require_database(definition.name)
        with session_of_airflow() as session:
            session.delete(self._expected_row(session, expected, definition.name))

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """Return an empty list: a user who can reach the database may do everything."""
        return []

    def variable(self, name: str) -> str | None:
        from airflow.models import Variable

        value: Any = Variable.get(name, default_var=None)
        return None if value is None else str(value)

    def task_state(self, task: TaskRef) -> str | None:
        with session_of_airflow() as session:
            instance = _instance(session, task)
            return "gone" if instance is None else str(instance.state or "scheduled")

    def start_task(self, task: TaskRef) -> None:
        from airflow.models.taskinstance import TaskInstance, clear_task_instances
        from sqlalchemy import select

        with session_of_airflow() as session:
            instance = _instance(session, task)
            if instance is None:
                raise ConfigurationError(str(task), "no longer exists", "start its DAG")
            # Tasks that failed only because this one did are cleared with it.
            of_run = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
            blocked = session.scalars(select(TaskInstance).where(*of_run, TaskInstance.state == "upstream_failed"))
            clear_task_instances([instance, *blocked], session)

    def _require_database(self, name: str) -> None:
        origin = origin_of(name, server_backends())
        if origin is not None:
            origin.require_database(name)

    def _expected_row(self, session: Session, expected: str, name: str) -> Any:
        row = _row(session, name, lock=True)
        if row is None or self._hashes.of(definition_of(row)) != expected:
            raise changed_meanwhile(name)
        return row


def _row(session: Session, name: str, *, lock: bool = False) -> Any:
    from airflow.models import Connection
    from sqlalchemy import select

    query = select(Connection).where(Connection.conn_id == name)
    return session.scalar(query.with_for_update() if lock else query)


def _instance(session: Session, task: TaskRef) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    return session.scalar(select(TaskInstance).filter_by(**asdict(task)))


def connections_of_types(types: Iterable[str]) -> dict[str, str]:
    """Return the type by id of the connections of these types in Airflow's database and in the environment.

    Connections of other secrets backends can't be listed.
    """
    from airflow.models import Connection
    from sqlalchemy import select

    wanted = frozenset(types)
    types_by_id = {}
    if has_airflow_database():
        with session_of_airflow() as session:
            # No secret is read.
            query = select(Connection.conn_id, Connection.conn_type).where(Connection.conn_type.in_(wanted))
            types_by_id = {str(conn_id): str(kind) for conn_id, kind in session.execute(query)}
    variables = (variable for variable in os.environ if variable.startswith(CONNECTION_VARIABLE))
    for name in (variable.removeprefix(CONNECTION_VARIABLE).lower() for variable in variables):
        with suppress(ConfigurationError):
            definition = find_definition(name)
            if definition is not None and definition.conn_type in wanted:
                types_by_id[name] = definition.conn_type
    return types_by_id
