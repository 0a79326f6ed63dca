"""ALTER CONNECTION with Airflow: by its REST API from a task, by its database at the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_rfr.hooks.common import mask_secrets
from airflow_provider_rfr.hooks.connection_gateways import AirflowApi
from airflow_provider_rfr.hooks.control_store import ControlStoreHook

if TYPE_CHECKING:
    from airflow_provider_rfr.connections.alteration import Outcome
    from airflow_provider_rfr.connections.plan import Dependent
    from airflow_provider_rfr.connections.ports import Services
    from airflow_provider_rfr.connections.statement import Statement, Value
    from airflow_provider_rfr.store.connection_audit import Alteration


class ConnectionsHook(BaseHook):
    """Alters connections, and tells what uses them.

    :param airflow_api_conn_id: connection of Airflow's own API; not needed at the command line, nor where Airflow asks
        for no password
    :param tell: is told what happens, line by line
    :param at_database: whether Airflow's database is used rather than its API; None for the API, if there is one
    """

    conn_name_attr = "airflow_api_conn_id"
    default_conn_name = "airflow_api"

    def __init__(
        self,
        airflow_api_conn_id: str | None = None,
        control_store_conn_id: str | None = None,
        *,
        tell: Callable[[str], None] | None = None,
        at_database: bool | None = None,
    ) -> None:
        super().__init__()
        self._api = AirflowApi(airflow_api_conn_id)
        self._control_store_conn_id = control_store_conn_id
        self._tell = tell or self.log.info
        self._at_database = at_database

    def execute(self, statement: Statement, *, actor: str, parameters: Mapping[str, Value] | None = None) -> Outcome:
        """Do what the statement says.

        :param parameters: values of ``:name``, masked in this process's log from here on
        :raises AlterConnectionError: nothing was changed
        """
        from airflow_provider_rfr.connections.alteration import execute

        mask_secrets(each for each in (parameters or {}).values() if isinstance(each, (str, dict, list)))
        world = self._world()
        try:
            return execute(world, statement, actor=actor, parameters=parameters)
        finally:
            world.store.close()

    def dependents(self, name: str) -> Sequence[Dependent]:
        """What uses the connection, by any number of steps."""
        from airflow_provider_rfr.connections.alteration import dependents_of

        world = self._world()
        try:
            return dependents_of(world, name)
        finally:
            world.store.close()

    def history(self, name: str | None = None, limit: int = 100) -> list[Alteration]:
        """The audit, the newest first; of all connections without a name."""
        from airflow_provider_rfr.store.connection_audit import list_alterations

        store = ControlStoreHook(self._control_store_conn_id).get_store()
        try:
            with store.read() as connection:
                return list_alterations(connection, name, limit)
        finally:
            store.close()

    def _world(self) -> Services:
        from airflow_provider_rfr.connections.ports import Services
        from airflow_provider_rfr.hooks.connection_checks import HookValidator
        from airflow_provider_rfr.hooks.connection_sources import SecretReader, content_hash

        gateway, tasks, variable = self._ends()
        store = ControlStoreHook(self._control_store_conn_id).get_store()
        return Services(
            store,
            content_hash(store),
            gateway,
            gateway,
            SecretReader(variable),
            HookValidator(gateway.find),
            tasks,
            self._tell,
        )

    def _ends(self) -> tuple[Any, Any, Callable[[str], str | None]]:
        from airflow_provider_rfr.hooks import connection_gateways

        at_database = self._at_database
        if at_database is None:
            at_database = connection_gateways.can_be_reached() and not self._api.is_there()
        if at_database:
            ends = connection_gateways
            return ends.DatabaseGateway(), ends.DatabaseTasks(), ends.variable
        from airflow_provider_rfr.hooks.connection_gateways import ApiGateway, ApiTasks

        return ApiGateway(self._api), ApiTasks(self._api), _variable


def _variable(name: str) -> str | None:
    from airflow.sdk import Variable

    found = Variable.get(name, default=None)
    return None if found is None else str(found)
