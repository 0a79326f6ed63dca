"""The operator that alters or drops a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
from airflow_provider_rfr.connections.arguments import check_plain, plain_texts, statement_from
from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.hooks.connections import ConnectionsHook, type_of
from airflow_provider_rfr.hooks.dag_arguments import is_pending

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.connections.statement import Statement, Value


class AlterConnectionOperator(BaseOperator):
    """Change a connection after validation, whole or not at all, and restart its dependents; or drop an unused one.

    Either a ``statement``, or ``connection`` with ``set``, ``drop`` and ``reset``; of ``WITH`` and the arguments the
    more careful setting counts. Returns what was changed, masked, and the outcome of every refresh and sink that uses
    the connection.

    Airflow stores and shows templated fields, so they must hold no secret: write ``SECRET 'env:NAME'``, or ``:name``
    with the value in ``parameters``, which is neither stored nor shown.

    :param statement: e.g. ``ALTER CONNECTION api SET (host = 'https://new.example.com')``, or
        ``DROP CONNECTION api`` (templated)
    :param connection: id of the connection (templated)
    :param set: values by option, e.g. ``{"port": 5433, "password": "SECRET 'env:PG_PASSWORD'"}`` (templated)
    :param drop: options to remove (templated)
    :param reset: options to set back to their defaults (templated)
    :param parameters: values of ``:name``, which may be secrets
    :param if_exists: a connection that is missing is not an error
    :param validate: try the new settings before they are stored
    :param restart: restart what uses the connection; else it keeps its copy until its next run
    :param dry_run: only report what would be done
    :param drain_timeout: time that a running refresh may take to reach its next checkpoint; seconds, a timedelta or
        text such as ``10m``
    :param new_identity: take another upstream, and read everything from its beginning
    :param airflow_api_conn_id: connection of type ``rfr_http`` with Airflow's address, and a user who may edit
        connections; not needed where Airflow asks for no password (templated)
    :param control_store_conn_id: connection of the control store; None for the usual one (templated)
    :raises ConnectionConflictError: another process alters it, a retry may help
    :raises ConnectionValidationError: the new settings do not work, as far as they can be tried now
    :raises AirflowFailException: the statement can't be done, and nothing was changed
    """

    template_fields: Sequence[str] = (
        *("statement", "connection", "set", "drop", "reset", "if_exists", "validate", "restart", "dry_run_only"),
        *("drain_timeout", "new_identity", "airflow_api_conn_id", "control_store_conn_id"),
    )
    template_fields_renderers = {"statement": "sql", "set": "json"}  # noqa: RUF012
    ui_color = "#dbeee8"

    def __init__(
        self,
        *,
        statement: str | None = None,
        connection: str | None = None,
        set: Mapping[str, Any] | str | None = None,
        drop: Sequence[str] | str | None = None,
        reset: Sequence[str] | str | None = None,
        parameters: Mapping[str, Value] | None = None,
        if_exists: bool | str = False,
        validate: bool | str = True,
        restart: bool | str = True,
        dry_run: bool | str = False,
        drain_timeout: float | str | timedelta = "10m",
        new_identity: bool | str = False,
        airflow_api_conn_id: str | None = None,
        control_store_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.statement = statement
        self.connection = connection
        self.set = set
        self.drop = drop
        self.reset = reset
        self.if_exists = if_exists
        self.validate = validate
        self.restart = restart
        # The base class has a method of the argument's name.
        self.dry_run_only = dry_run
        self.drain_timeout = (
            str(drain_timeout.total_seconds()) if isinstance(drain_timeout, timedelta) else drain_timeout
        )
        self.new_identity = new_identity
        self.airflow_api_conn_id = airflow_api_conn_id
        self.control_store_conn_id = control_store_conn_id
        self._values = dict(parameters or {})
        self._statement: Statement | None = None
        if not any(is_pending(getattr(self, name)) for name in self.template_fields):
            self._statement = self._parse()
            check_plain(self._statement)

    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        """Render, then parse, and mask plain texts in the place of secrets, before Airflow stores the rendered fields.

        :raises AirflowFailException: the statement can't be parsed, so its secrets are unknown; Airflow stores nothing
        """
        # Not render_template_fields, which Airflow does not call for a mapped task.
        super()._do_render_template_fields(parent, *args, **kwargs)
        if parent is self:
            try:
                self._statement = self._statement or self._parse()
            except RfrError as error:
                raise AirflowFailException(str(error)) from None
            mask_secrets(plain_texts(self._statement, type_of(self._statement.connection)))

    def execute(self, context: Context) -> dict[str, Any]:
        hook = ConnectionsHook(self.airflow_api_conn_id, self.control_store_conn_id, report=self.log.info)
        run, ti = context.get("dag_run"), context["ti"]
        user, actor = getattr(run, "triggering_user_name", None), f"{ti.dag_id}.{ti.task_id} ({ti.run_id})"
        try:
            statement = self._statement or self._parse()
            outcome = hook.execute(statement, actor=f"{user} by {actor}" if user else actor, parameters=self._values)
        except RfrError as error:
            if error.retryable:
                raise
            raise AirflowFailException(str(error)) from None
        for line in outcome.lines():
            self.log.info("%s", line)
        return outcome.to_json()

    def _parse(self) -> Statement:
        """Build the statement from the arguments.

        :raises ConfigurationError: both forms, or none, or what can't be read
        """
        names = ("connection", "set", "drop", "reset", "if_exists")
        settings = ("validate", "restart", "drain_timeout", "new_identity")
        arguments = {name: getattr(self, name) for name in names + settings}
        return statement_from(self.statement, dry_run=self.dry_run_only, **arguments)
