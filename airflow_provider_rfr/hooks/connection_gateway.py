"""Connections of Airflow's database as a task reaches them: read through the task's own chain, written by the API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.connections.definition import Definition, parsed_extra
from airflow_provider_rfr.connections.ports import Stored
from airflow_provider_rfr.connections.references import references_of
from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.exceptions import (
    AlterationProblem,
    AlterationRefusedError,
    AlterConnectionError,
    ConnectionConflictError,
    ConnectionRightsError,
    ConnectionShadowedError,
    ConnectionValidationError,
)
from airflow_provider_rfr.hooks.connection_checks import masked
from airflow_provider_rfr.hooks.connection_content import definition_of, find_definition
from airflow_provider_rfr.hooks.connection_origin import Origin, origin_of, refuse_shadowed, worker_backends
from airflow_provider_rfr.hooks.connection_secrets import not_allowed

if TYPE_CHECKING:
    from requests import Response

    from airflow_provider_rfr.connections.hashing import ContentHash
    from airflow_provider_rfr.hooks.airflow_api import AirflowApi

TEST_SECONDS: Final = 90.0
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
        end = time.monotonic() + TEST_SECONDS
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
