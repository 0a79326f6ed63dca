"""The hook of ALTER CONNECTION, and the checks by which the machine that runs it tries new settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from airflow_provider_rfr.compat import providers_of_hooks, tested
from airflow_provider_rfr.connections.airflow.lookup import (
    as_connection,
    has_airflow_database,
    mask_secrets,
    masked,
    quiet_masking,
    secret_texts,
)
from airflow_provider_rfr.connections.types import LIBPQ_OPTIONS
from airflow_provider_rfr.exceptions import (
    CatalogError,
    ConfigurationError,
    ConnectionValidationError,
    RfrError,
    SourceError,
)
from airflow_provider_rfr.hooks.api import ask, http_settings, read_first_page, source_settings
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.lake import lake_settings
from airflow_provider_rfr.http.redaction import without_credentials

if TYPE_CHECKING:
    from airflow_provider_rfr.connections.alteration import Outcome
    from airflow_provider_rfr.connections.dependents import DependentTask, Services
    from airflow_provider_rfr.connections.statement import Statement, Value
    from airflow_provider_rfr.connections.types import Definition
    from airflow_provider_rfr.store.connections import AlterationRecord, Use


class ConnectionsHook(BaseHook):
    """A hook that alters, drops and comments on connections, and lists their dependents.

    A task works through Airflow's REST API, and the command line through Airflow's database.

    :param airflow_api_conn_id: connection of Airflow's own API; not needed at the command line, nor where Airflow asks
        for no password
    :param control_store_conn_id: connection of the control store; None for the default
    :param report: called with each line of progress; logs it by default
    :param at_database: whether Airflow's database is used rather than its API; None: if no API accepts the user
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

    def dependents(self, name: str) -> Sequence[DependentTask]:
        """Return the tasks that use the connection, directly or through other connections."""
        from airflow_provider_rfr.connections.alteration import dependents_of

        with self._services() as services:
            return dependents_of(services, name)

    def history(self, name: str | None = None, limit: int = 100) -> list[AlterationRecord]:
        """Return the recorded alterations, the newest first; without a name, those of all connections."""
        from airflow_provider_rfr.store.connections import list_alterations

        with closing(ControlStoreHook(self._control_store_conn_id).get_store()) as store, store.read() as connection:
            return list_alterations(connection, name, limit)

    @contextmanager
    def _services(self) -> Iterator[Services]:
        from airflow_provider_rfr.connections.airflow.gateways import AirflowApi, ApiGateway, DatabaseGateway
        from airflow_provider_rfr.connections.airflow.lookup import content_hash, not_allowed, read_secret
        from airflow_provider_rfr.connections.dependents import Services

        api = AirflowApi(self._airflow_api_conn_id, http_settings)
        at_database = self._at_database
        if at_database is None:
            # The API is preferred where there is one, because it checks the rights of the user.
            at_database = has_airflow_database() and not api.is_there()
        store_hook = ControlStoreHook(self._control_store_conn_id)
        # Airflow masks each value that it reads, and would warn about those that are too short to be masked.
        with quiet_masking(), closing(store_hook.get_store()) as store:
            hashes = content_hash(store)
            gateway = DatabaseGateway(hashes) if at_database else ApiGateway(api, hashes)
            yield Services(
                store,
                hashes,
                gateway,
                not_allowed,
                partial(read_secret, gateway.variable),
                run_test,
                upstream_identity,
                partial(check_use, gateway.find),
                self._report,
                store_hook.control_store_conn_id,
            )


def type_of(conn_id: str) -> str | None:
    """Return the connection's type; None where there is none, or it can't be read."""
    from airflow_provider_rfr.connections.airflow.lookup import find_definition
    from airflow_provider_rfr.connections.dependents import find_readable

    definition = find_readable(find_definition, conn_id)
    return None if definition is None else definition.conn_type


def run_test(candidate: Definition) -> bool:
    """Run the connection test of the type's hook; return False where there is no hook, or it has no test.

    :raises ConnectionValidationError: the test fails; its message is masked
    """
    mask_secrets(secret_texts(candidate))
    hook = providers_of_hooks().hooks.get(candidate.conn_type)
    # Some types have fields only, and no hook.
    if hook is None or not hook.hook_class_name:
        return False
    try:
        works, message = tested(as_connection(candidate))
    except Exception as error:  # noqa: BLE001 - the hook can't be made: each one has errors of its own
        works, message = False, f"{type(error).__name__}: {error}"
    if works:
        return True
    if "doesn't implement or inherit test_connection" in message or "Unknown hook type" in message:
        return False
    raise ConnectionValidationError(candidate.name, masked(message, candidate))


def upstream_identity(definition: Definition) -> str | None:
    """Return the answer of an API at its ``identity_path``, or PostgreSQL's system identifier; None for others.

    :raises ConnectionValidationError: the upstream should answer, and does not
    """
    mask_secrets(secret_texts(definition))
    if definition.conn_type in ("postgres", "postgresql"):
        return _system_identifier(definition)
    path = definition.get("extra.identity_path")
    if definition.conn_type != "rfr_api" or not path:
        return None
    try:
        answer = ask(as_connection(definition), str(path))
    except (ConfigurationError, SourceError) as error:
        raise ConnectionValidationError(definition.name, masked(str(error), definition)) from None
    if answer.status_code >= 400:
        raise ConnectionValidationError(definition.name, f"the API answered {answer.status_code} at {path}")
    return str(answer.text)


def check_use(find: Callable[[str], Definition | None], candidate: Definition, use: Use) -> None:
    """Check that a task could continue with the candidate: read one page of its first stream, or find its tables.

    :param find: returns a connection as it is stored now
    :raises ConnectionValidationError: that task could not continue with these settings
    """
    step = use.details.get("check", {}).get(candidate.name)
    if step is None:
        return
    try:
        if candidate.conn_type == "rfr_api":
            settings = source_settings(as_connection(candidate))
            read_first_page(settings.completed(step["source"]), step["stream"])
        elif candidate.conn_type == "rfr_lake":
            _find_tables(candidate, find(candidate.name), step["tables"])
    except RfrError as error:
        raise ConnectionValidationError(candidate.name, masked(str(error), candidate)) from None


def _system_identifier(definition: Definition) -> str | None:
    """Return PostgreSQL's system identifier.

    Return None where the server is reached through a tunnel, its driver is not installed, or the user lacks the right
    to see the identifier.
    """
    if definition.get("extra.ssh_conn_id"):
        return None
    from sqlalchemy import URL, create_engine, text
    from sqlalchemy.exc import DBAPIError

    from airflow_provider_rfr.timeouts import limit_waits

    url = URL.create(
        "postgresql+psycopg2",
        definition.login,
        definition.password,
        definition.host,
        definition.port,
        definition.schema,
    )
    arguments = {name: value for name in LIBPQ_OPTIONS if (value := definition.get(f"extra.{name}"))}
    try:
        engine = create_engine(url, hide_parameters=True, connect_args=arguments)
    except ImportError:
        return None
    limit_waits(engine)
    try:
        with engine.connect() as connection:
            return str(connection.execute(text("SELECT system_identifier FROM pg_control_system()")).scalar_one())
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None):
            # The server answers, but the user lacks the right to see the identifier.
            return None
        message = str(error.orig).strip().partition("\n")[0]
        raise ConnectionValidationError(definition.name, masked(message, definition)) from None
    finally:
        engine.dispose()


def _find_tables(candidate: Definition, present: Definition | None, tables: list[str]) -> None:
    """Check that each table that the stored settings reach is the same one (by UUID) with the candidate."""
    try:
        before = {} if present is None else _table_ids(present, tables)
    except ConnectionValidationError:
        # The stored settings are often altered because they do not work.
        before = {}
    after = _table_ids(candidate, tables)
    lost = sorted(name for name, uuid in before.items() if after.get(name) != uuid)
    if lost:
        raise ConnectionValidationError(candidate.name, f"there it has other tables, or none, of {', '.join(lost)}")


def _table_ids(definition: Definition, tables: list[str]) -> dict[str, str]:
    from airflow_provider_rfr.lake.catalog import load_table, open_catalog

    settings = lake_settings(as_connection(definition))
    try:
        catalog = open_catalog(settings)
        loaded = {name: load_table(catalog, name) for name in tables}
    except (CatalogError, ConfigurationError) as error:
        raise ConnectionValidationError(definition.name, masked(str(error), definition)) from None
    except RfrError:
        raise
    except Exception as error:  # noqa: BLE001 - each catalog has errors of its own; their texts may name secrets
        at = f" at {without_credentials(definition.host)}" if definition.host else ""
        problem = f"the catalog did not answer{at} ({type(error).__name__})"
        raise ConnectionValidationError(definition.name, masked(problem, definition)) from None
    return {name: str(table.metadata.table_uuid) for name, table in loaded.items() if table is not None}
