"""Statements about connections with Airflow: by its REST API from a task, by its database at the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_rfr.hooks.common import mask_secrets, quiet_masking
from airflow_provider_rfr.hooks.control_store import ControlStoreHook

if TYPE_CHECKING:
    from airflow_provider_rfr.connections.alteration import Outcome
    from airflow_provider_rfr.connections.dependents import Dependent
    from airflow_provider_rfr.connections.ports import Services
    from airflow_provider_rfr.connections.statement import Statement, Value
    from airflow_provider_rfr.store.connections import AlterationRecord


class ConnectionsHook(BaseHook):
    """A hook that alters, drops and comments on connections, and lists their dependents.

    :param airflow_api_conn_id: connection of Airflow's own API; not needed at the command line, nor where Airflow asks
        for no password
    :param report: called with each line of progress; logs it by default
    :param at_database: whether Airflow's database is used rather than its API; None: where there is no API
    """

    conn_name_attr = "airflow_api_conn_id"
    default_conn_name = "airflow_api"

    def __init__(
        self,
        airflow_api_conn_id: str | None = None,
        control_store_conn_id: str | None = None,
        *,
        report: Callable[[str], None] | None = None,
        at_database: bool | None = None,
    ) -> None:
        super().__init__()
        self._airflow_api_conn_id = airflow_api_conn_id
        self._control_store_conn_id = control_store_conn_id
        self._report = report or self.log.info
        self._at_database = at_database

    def execute(self, statement: Statement, *, actor: str, parameters: Mapping[str, Value] | None = None) -> Outcome:
        """Carry out a statement.

        :param actor: the user, for the audit
        :param parameters: values of ``:name``, masked in this process's log from here on
        :raises AlterConnectionError: nothing was changed
        """
        from airflow_provider_rfr.connections.alteration import execute

        mask_secrets(parameter for parameter in (parameters or {}).values() if isinstance(parameter, (str, dict, list)))
        with self._services() as services:
            return execute(services, statement, actor=actor, parameters=parameters)

    def dependents(self, name: str) -> Sequence[Dependent]:
        """Return the dependents of the connection, by any number of steps."""
        from airflow_provider_rfr.connections.alteration import dependents_of

        with self._services() as services:
            return dependents_of(services, name)

    def history(self, name: str | None = None, limit: int = 100) -> list[AlterationRecord]:
        """Return the audit, the newest first; of all connections without a name."""
        from airflow_provider_rfr.store.connections import list_alterations

        with closing(ControlStoreHook(self._control_store_conn_id).get_store()) as store, store.read() as connection:
            return list_alterations(connection, name, limit)

    @contextmanager
    def _services(self) -> Iterator[Services]:
        from airflow_provider_rfr.connections.ports import Services
        from airflow_provider_rfr.hooks import connection_gateways as gateways
        from airflow_provider_rfr.hooks._connection_checks import HookValidator
        from airflow_provider_rfr.hooks._connection_sources import SecretReader, content_hash
        from airflow_provider_rfr.hooks.airflow_database import can_be_reached

        api = gateways.AirflowApi(self._airflow_api_conn_id)
        at_database = self._at_database
        if at_database is None:
            at_database = can_be_reached() and not api.is_there()
        gateway: Any = gateways.DatabaseGateway() if at_database else gateways.ApiGateway(api)
        tasks: Any = gateways.DatabaseTasks() if at_database else gateways.ApiTasks(api)
        where = ControlStoreHook(self._control_store_conn_id)
        # Airflow masks what it reads, and would warn of each value that is too short for that.
        with quiet_masking(), closing(where.get_store()) as store:
            hashes, store_conn_id = content_hash(store), where.control_store_conn_id
            secrets, validator = SecretReader(gateway.variable), HookValidator(gateway.find)
            yield Services(store, hashes, gateway, secrets, validator, tasks, self._report, store_conn_id)


def type_of(conn_id: str) -> str | None:
    """Return the connection's type; None where there is none, or it can't be read."""
    from airflow_provider_rfr.connections.dependents import find_readable
    from airflow_provider_rfr.hooks._connection_sources import find_definition

    definition = find_readable(find_definition, conn_id)
    return None if definition is None else definition.conn_type
