"""Connections and tasks as ALTER CONNECTION reaches them: through Airflow's API, or directly in Airflow's database.

Inside a task the API is used. At the command line, where the database can be reached, its rows are changed under a row
lock, and no rights are checked except those to read secrets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_rfr.connections.plan import references_of
from airflow_provider_rfr.connections.ports import Stored
from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.connections.types import Definition, parsed_extra
from airflow_provider_rfr.exceptions import (
    AlterationProblem,
    AlterationRefusedError,
    AlterConnectionError,
    ConfigurationError,
    ConnectionConflictError,
    ConnectionRightsError,
    ConnectionShadowedError,
    ConnectionValidationError,
)
from airflow_provider_rfr.hooks.common import read_connection
from airflow_provider_rfr.hooks.connection_checks import masked
from airflow_provider_rfr.hooks.connection_sources import (
    Origin,
    definition_of,
    find_definition,
    not_allowed,
    origin_of,
    refuse_shadowed,
    server_backends,
    worker_backends,
)

if TYPE_CHECKING:
    from requests import Response
    from sqlalchemy.orm import Session

    from airflow_provider_rfr.connections.statement import SecretReference
    from airflow_provider_rfr.connections.types import ContentHash, Definition
    from airflow_provider_rfr.store.connections import TaskRef


_TEST_SECONDS: Final = 90.0
_PAGE: Final = 100
_SHOWN: Final = ("conn_type", "host", "port", "login", "schema")


class ApiGateway:
    """Gateway and authority by Airflow's REST API."""

    def __init__(self, api: AirflowApi) -> None:
        self._api = api

    def read(self, name: str) -> Stored | None:
        """The connection, if it comes from where it can be written.

        :raises ConnectionShadowedError: it does not
        :raises ConnectionRightsError: the user may not see it
        """
        origin = origin_of(name, worker_backends())
        row = self._row(name)
        if origin is None:
            return None
        refuse_shadowed(name, origin)
        definition = definition_of(origin.connection)
        if origin.is_database:
            self._refuse_hidden(name, definition, row)
            assert row is not None
            definition = replace(definition, description=row.get("description") or None)
        return Stored(definition, origin.name)

    def find(self, name: str) -> Definition | None:
        """Any connection, as tasks here see it."""
        return find_definition(name)

    def referring(self, name: str) -> Sequence[str]:
        """Ids of the database's connections that name this one; their secrets come masked."""
        found: list[str] = []
        offset = 0
        while True:
            query = [("limit", str(_PAGE)), ("offset", str(offset))]
            page = self._checked(name, self._api.call("GET", ["connections"], query=query)).json()
            rows = page["connections"]
            found += [str(row["connection_id"]) for row in rows if name in references_of(_of_row(row)).values()]
            offset += len(rows)
            if not rows or offset >= page["total_entries"]:
                return found

    def commit(self, expected: str, hashes: ContentHash, candidate: Definition) -> None:
        """Airflow's API has no condition, so what is stored is looked at right before and right after."""
        origin = self._expected(expected, hashes, candidate)
        if not origin.is_database:
            origin.backend.set_conn_value(candidate.name, json.dumps(_body(candidate, with_name=False)))
        else:
            path = ["connections", candidate.name]
            self._checked(candidate.name, self._api.call("PATCH", path, _body(candidate)))
        self._stored(hashes, candidate)

    def commit_tested(self, expected: str, hashes: ContentHash, candidate: Definition) -> bool:
        """Airflow's connection test, which stores what works; False where it is not enabled."""
        if not self._expected(expected, hashes, candidate).is_database:
            return False
        body = {**_body(candidate), "commit_on_success": True}
        answer = self._api.call("POST", ["connections", "enqueue-test"], body)
        if answer.status_code in (403, 404, 405, 422):
            # Disabled, or no executor that can do it; whether the user may, the other way finds out, too.
            return False
        token = str(self._checked(candidate.name, answer).json()["token"])
        self._await_test(candidate, token)
        self._stored(hashes, candidate)
        query = [("update_mask", "description")]
        answer = self._api.call("PATCH", ["connections", candidate.name], _body(candidate), query=query)
        self._checked(candidate.name, answer)
        return True

    def rename(self, expected: str, hashes: ContentHash, definition: Definition, new_name: str) -> None:
        """A new connection and the end of the old one, in one request and one transaction of Airflow's."""
        if not self._expected(expected, hashes, definition).is_database:
            raise ConnectionShadowedError(definition.name, "can be renamed in Airflow's database only")
        create = {
            "action": "create",
            "action_on_existence": "fail",
            "entities": [_body(replace(definition, name=new_name))],
        }
        delete = {"action": "delete", "action_on_non_existence": "fail", "entities": [definition.name]}
        said = self._checked(
            definition.name, self._api.call("PATCH", ["connections"], {"actions": [create, delete]})
        ).json()
        errors = [each for part in said.values() if part for each in part.get("errors", [])]
        if errors:
            raise ConnectionConflictError(definition.name, f"could not be renamed: is there a {new_name!r} already?")

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """Those for which Airflow refuses a change that changes nothing, and those that it does not have."""
        denied = []
        for name in names:
            # The mask names a field that is never updated, so only the right is asked for.
            query = [("update_mask", "connection_id")]
            body = {"connection_id": name, "conn_type": "generic"}
            answer = self._api.call("PATCH", ["connections", name], body, query=query)
            if answer.status_code == 404 and self._is_writable(name):
                continue
            if answer.status_code in (403, 404):
                denied.append(name)
            else:
                self._checked(name, answer)
        return denied

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        """Those that the installation does not give to connections."""
        return not_allowed(secrets)

    def _is_writable(self, name: str) -> bool:
        origin = origin_of(name, worker_backends())
        return origin is not None and not origin.is_database and origin.can_write

    def _row(self, name: str) -> dict[str, Any] | None:
        answer = self._api.call("GET", ["connections", name])
        if answer.status_code == 404:
            return None
        return dict(self._checked(name, answer).json())

    def _refuse_hidden(self, name: str, seen: Definition, row: dict[str, Any] | None) -> None:
        """The API server may itself have another origin that goes before its database."""
        same = row is not None and all((row.get(field) or None) == getattr(seen, field) for field in _SHOWN)
        if not same:
            raise ConnectionShadowedError(
                name,
                "comes from an environment variable or a secrets backend of Airflow's API server, which goes before"
                " its database: a change in the database would have no effect; change it there",
            )

    def _expected(self, expected: str, hashes: ContentHash, candidate: Definition) -> Origin:
        name = candidate.name
        origin = origin_of(name, worker_backends())
        if origin is None or hashes.of(definition_of(origin.connection)) != expected:
            raise ConnectionConflictError(name, "somebody else changed it meanwhile; try again")
        if origin.is_database and origin.connection.password and not candidate.password:
            # It takes the rest and leaves the password there, which would be half of the statement.
            remedy = "use airflow rfr connection alter where Airflow's database is"
            problem = AlterationProblem("password", "can't be taken away through Airflow's API", remedy)
            raise AlterationRefusedError(name, [problem])
        return origin

    def _stored(self, hashes: ContentHash, candidate: Definition) -> None:
        found = origin_of(candidate.name, worker_backends())
        if found is None or hashes.of(definition_of(found.connection)) != hashes.of(candidate):
            raise ConnectionConflictError(
                candidate.name, "somebody else changed it in the same moment; look what it is, and try again"
            )

    def _await_test(self, candidate: Definition, token: str) -> None:
        name = candidate.name
        end = time.monotonic() + _TEST_SECONDS
        while time.monotonic() < end:
            headers = {"Airflow-Connection-Test-Token": token}
            answer = self._api.call("GET", ["connections", "enqueue-test"], headers=headers)
            said = self._checked(name, answer).json()
            if said["state"] == "success":
                return
            if said["state"] == "failed":
                told = str(said.get("result_message") or "Airflow's test failed")
                raise ConnectionValidationError(name, masked(told, candidate))
            time.sleep(0.5)
        raise ConnectionValidationError(name, "Airflow's connection test did not end; is a worker running?")

    def _checked(self, name: str, answer: Response) -> Response:
        if answer.status_code == 403:
            raise ConnectionRightsError(name, "Airflow does not let this user edit connections")
        if answer.status_code == 409:
            raise ConnectionConflictError(name, "somebody else is changing or testing it; try again")
        if answer.status_code >= 400:
            # The body of the answer may repeat what was sent.
            raise AlterConnectionError(name, f"Airflow answered {answer.status_code}")
        return answer


def _of_row(row: dict[str, Any]) -> Definition:
    try:
        extra = parsed_extra(row.get("extra"))
    except ValueError:
        extra = {}
    return Definition(str(row["connection_id"]), str(row["conn_type"]), extra=extra)


def _body(definition: Definition, *, with_name: bool = True) -> dict[str, Any]:
    """The whole connection: what is left out would stay as it was."""
    body: dict[str, Any] = {"connection_id": definition.name} if with_name else {}
    names = ("conn_type", "description", "host", "login", "schema", "port", "password")
    body |= {name: getattr(definition, name) for name in names}
    return {**body, "extra": json.dumps(dict(definition.extra))}


_FIELDS = ("host", "port", "login", "schema", "description")


def can_be_reached() -> bool:
    """Whether this process has Airflow's database; a task on a worker has not."""
    from airflow.providers.common.compat.sdk import conf

    return not str(conf.get("database", "sql_alchemy_conn", fallback="")).startswith("airflow-db-not-allowed")


class DatabaseGateway:
    """Gateway and authority by Airflow's database; its transaction is the compare-and-set."""

    def read(self, name: str) -> Stored | None:
        """:raises ConnectionShadowedError: it comes from a place that can't be written"""
        origin = origin_of(name, server_backends())
        if origin is None:
            return None
        refuse_shadowed(name, origin)
        if not origin.is_database:
            return Stored(definition_of(origin.connection), origin.name)
        with _session() as session:
            row = _row(session, name)
            return None if row is None else Stored(definition_of(row), origin.name)

    def find(self, name: str) -> Definition | None:
        """Any connection, wherever it comes from."""
        origin = origin_of(name, server_backends())
        return None if origin is None else definition_of(origin.connection)

    def referring(self, name: str) -> Sequence[str]:
        """Ids of the database's connections that name this one."""
        from airflow.models import Connection
        from sqlalchemy import select

        with _session() as session:
            rows = session.scalars(select(Connection)).all()
            return [str(row.conn_id) for row in rows if _refers(row, name)]

    def commit(self, expected: str, hashes: ContentHash, candidate: Definition) -> None:
        """Nobody comes between the look and the change: the row is locked."""
        origin = origin_of(candidate.name, server_backends())
        if origin is not None and not origin.is_database:
            if hashes.of(definition_of(origin.connection)) != expected:
                raise ConnectionConflictError(candidate.name, "somebody else changed it meanwhile; try again")
            origin.backend.set_conn_value(candidate.name, _json(candidate))
            return
        with _session() as session:
            _put(_expected(session, expected, hashes, candidate.name), candidate)

    def commit_tested(self, expected: str, hashes: ContentHash, candidate: Definition) -> bool:
        """Airflow tests connections through its API only."""
        return False

    def rename(self, expected: str, hashes: ContentHash, definition: Definition, new_name: str) -> None:
        """:raises ConnectionConflictError: the new name is taken"""
        with _session() as session:
            row = _expected(session, expected, hashes, definition.name)
            if _row(session, new_name) is not None:
                raise ConnectionConflictError(definition.name, f"there is a {new_name!r} already")
            row.conn_id = new_name

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """None: the database is open to who is here."""
        return []

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        """Those that the installation does not give to connections."""
        return not_allowed(secrets)


class DatabaseTasks:
    """Tasks by Airflow's database."""

    def state(self, task: TaskRef) -> str | None:
        """As Airflow names it; ``gone`` if it is not there."""
        with _session() as session:
            found = _instance(session, task)
            return "gone" if found is None else str(found.state or "scheduled")

    def start(self, task: TaskRef) -> None:
        """Clear it, and what failed only because it did.

        :raises ConfigurationError: it is not there any more
        """
        from airflow.models.taskinstance import TaskInstance, clear_task_instances
        from sqlalchemy import select

        with _session() as session:
            found = _instance(session, task)
            if found is None:
                raise ConfigurationError(str(task), "is not there any more", "start its DAG")
            of_run = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
            blocked = session.scalars(select(TaskInstance).where(*of_run, TaskInstance.state == "upstream_failed"))
            clear_task_instances([found, *blocked], session)


def variable(name: str) -> str | None:
    """Airflow's variable of that name."""
    from airflow.models import Variable

    found: Any = Variable.get(name, default_var=None)
    return None if found is None else str(found)


def _refers(row: Any, name: str) -> bool:
    try:
        return name in references_of(definition_of(row)).values()
    except ConfigurationError:
        return False


def _expected(session: Session, expected: str, hashes: ContentHash, name: str) -> Any:
    row = _row(session, name, lock=True)
    if row is None or hashes.of(definition_of(row)) != expected:
        raise ConnectionConflictError(name, "somebody else changed it meanwhile; try again")
    return row


def _put(row: Any, definition: Definition) -> None:
    for name in _FIELDS:
        setattr(row, name, getattr(definition, name))
    row.set_password(definition.password)
    if not definition.password:
        # Airflow's own method leaves the old one there.
        row._password, row.is_encrypted = None, False
    row.set_extra(definition.extra_text())


def _json(definition: Definition) -> str:
    import json

    names = ("conn_type", "description", "host", "login", "schema", "port", "password")
    return json.dumps({**{name: getattr(definition, name) for name in names}, "extra": dict(definition.extra)})


def _row(session: Session, name: str, *, lock: bool = False) -> Any:
    from airflow.models import Connection
    from sqlalchemy import select

    query = select(Connection).where(Connection.conn_id == name)
    return session.scalar(query.with_for_update() if lock else query)


def _instance(session: Session, task: TaskRef) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    of_task = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
    return session.scalar(
        select(TaskInstance).where(
            *of_task, TaskInstance.task_id == task.task_id, TaskInstance.map_index == task.map_index
        )
    )


@contextmanager
def _session() -> Iterator[Session]:
    from airflow.utils.session import create_session

    make: Callable[[], Any] = create_session
    with make() as session:
        yield session


class ApiTasks:
    """Looks at task instances, and clears them."""

    def __init__(self, api: AirflowApi) -> None:
        self._api = api

    def state(self, task: TaskRef) -> str | None:
        """As Airflow names it; ``gone`` if it is not there, None if the API does not tell."""
        path = ["dags", task.dag_id, "dagRuns", task.run_id, "taskInstances", task.task_id]
        path += [str(task.map_index)] if task.map_index >= 0 else []
        try:
            answer = self._api.call("GET", path)
        except ConfigurationError:
            return None
        if answer.status_code == 404:
            return "gone"
        return str(answer.json()["state"] or "scheduled") if answer.status_code < 400 else None

    def start(self, task: TaskRef) -> None:
        """Clear it, and what failed only because it did.

        :raises ConfigurationError: Airflow does not let this user
        """
        one: Any = task.task_id if task.map_index < 0 else [task.task_id, task.map_index]
        body = {"dag_run_id": task.run_id, "task_ids": [one], "dry_run": False, "only_failed": False}
        self._clear(task, body)
        self._clear(task, {**body, "only_failed": True, "include_downstream": True})

    def _clear(self, task: TaskRef, body: dict[str, Any]) -> None:
        answer = self._api.call("POST", ["dags", task.dag_id, "clearTaskInstances"], body)
        if answer.status_code >= 400:
            raise ConfigurationError(
                str(task), f"Airflow answered {answer.status_code} to its restart", "clear the task"
            )


_DEFAULT_CONN_ID = "airflow_api"
_TIMEOUT = (5.0, 60.0)
_REMEDY = "make a connection airflow_api of type http: Airflow's address as host, login and password of its user"


class AirflowApi(BaseHook):
    """Calls Airflow as the user of a connection; where Airflow asks for no password, no connection is needed.

    :param airflow_api_conn_id: of type http; a password without a login is taken as a token
    """

    conn_name_attr = "airflow_api_conn_id"
    default_conn_name = _DEFAULT_CONN_ID

    def __init__(self, airflow_api_conn_id: str | None = None) -> None:
        super().__init__()
        self.airflow_api_conn_id = airflow_api_conn_id or _DEFAULT_CONN_ID
        self._token = ""
        self._base = ""
        self._login: str | None = None
        self._password: str | None = None

    def is_there(self) -> bool:
        """Whether there is an API that takes us."""
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
        """One request below ``/api/v2``; what the answer means is the caller's to say.

        :param path: its parts, which are quoted here
        :raises ConfigurationError: Airflow does not answer, or does not take the user
        """
        if not self._token:
            self._sign_in()
        url = f"{self._base}/api/v2/{'/'.join(quote(part, safe='') for part in path)}"
        answer = self._request(method, url, json=body, params=list(query), headers=self._headers(headers))
        if answer.status_code == 401:
            # The token is old: an alteration may wait for long.
            self._sign_in()
            answer = self._request(method, url, json=body, params=list(query), headers=self._headers(headers))
        return answer

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", **(more or {})}

    def _sign_in(self) -> None:
        self._find()
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
            raise ConfigurationError(
                "airflow_api_conn_id", f"Airflow answered {answer.status_code} at /auth/token", _REMEDY
            )
        try:
            self._token = str(answer.json()["access_token"])
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError("airflow_api_conn_id", "what answers there is not Airflow", _REMEDY) from None

    def _find(self) -> None:
        try:
            connection = read_connection(self.airflow_api_conn_id)
        except AirflowNotFoundException:
            if self.airflow_api_conn_id != _DEFAULT_CONN_ID:
                raise ConfigurationError(
                    "airflow_api_conn_id", f"there is no connection {self.airflow_api_conn_id!r}", _REMEDY
                ) from None
            self._base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
            if not self._base:
                raise ConfigurationError("airflow_api_conn_id", "there is no connection airflow_api", _REMEDY) from None
            return
        host = str(connection.host or "")
        base = host if "://" in host else f"{connection.schema or 'http'}://{host}"
        if connection.port and not urlsplit(base).port:
            base = f"{base.rstrip('/')}:{connection.port}"
        self._base, self._login, self._password = base.rstrip("/"), connection.login, connection.password

    def _request(self, method: str, url: str, **arguments: Any) -> Response:
        import requests

        try:
            with requests.Session() as session:
                session.trust_env = False
                # What is sent holds secrets: it goes nowhere else.
                answer = session.request(method, url, timeout=_TIMEOUT, allow_redirects=False, **arguments)
        except requests.RequestException as error:
            raise ConfigurationError(
                "airflow_api_conn_id", f"Airflow did not answer ({type(error).__name__})", _REMEDY
            ) from None
        if answer.is_redirect:
            raise ConfigurationError("airflow_api_conn_id", "Airflow's address leads to another one", "name that one")
        return answer
