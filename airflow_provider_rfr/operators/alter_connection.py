"""The operator that alters a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr.connections.arguments import check_plain, plain_texts, settings_with, statement_of, switch
from airflow_provider_rfr.connections.parser import parse_statement
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.hooks.common import mask_secrets
from airflow_provider_rfr.hooks.connections import ConnectionsHook
from airflow_provider_rfr.hooks.dag_arguments import is_pending

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_provider_rfr.connections.statement import Statement, Value


class AlterConnectionOperator(BaseOperator):
    """Change a connection validated, whole or not at all, and restart exactly what uses it.

    Either a ``statement``, or ``connection`` with ``set``, ``drop`` and ``reset``; of ``WITH`` and the
    arguments what is more careful counts. Returns what was changed, masked,
    and what became of every refresh and sink that uses the connection.

    What is templated is stored and shown by Airflow, so it must hold no secret: write ``SECRET 'env:NAME'``, or
    ``:name`` with the value in ``parameters``, which is neither stored nor shown.

    :param statement: e.g. ``ALTER CONNECTION api SET (host = 'https://new.example.com')`` (templated)
    :param connection: id of the connection (templated)
    :param set: values by option, e.g. ``{"port": 5433, "password": "SECRET 'env:PG_PASSWORD'"}`` (templated)
    :param drop: options that go (templated)
    :param reset: options that go back to their defaults (templated)
    :param parameters: values of ``:name``; also of plain secrets
    :param if_exists: a connection that is missing is no error
    :param validate: try the new settings before they are stored
    :param restart: restart what uses the connection; else it goes on with its copy until its next run
    :param dry_run: only say what would be done
    :param drain_timeout: for which a running refresh may take to reach its next checkpoint; seconds, a timedelta or
        text such as ``10m``
    :param new_identity: take another upstream, and read everything from its beginning
    :param airflow_api_conn_id: connection of type http with Airflow's address, and a user who may edit connections;
        not needed where Airflow asks for no password (templated)
    :param control_store_conn_id: connection of the control store; None for the usual one (templated)
    :raises ConnectionConflictError: somebody else alters it, a retry may help
    :raises ConnectionValidationError: the new settings do not work, as far as they can be tried now
    :raises AirflowFailException: the statement can't be done, and nothing was changed
    """

    template_fields: Sequence[str] = (
        "statement",
        "connection",
        "set",
        "drop",
        "reset",
        "if_exists",
        "validate",
        "restart",
        "dry_run_only",
        "drain_timeout",
        "new_identity",
        "airflow_api_conn_id",
        "control_store_conn_id",
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
        if not any(is_pending(getattr(self, name)) for name in self.template_fields):
            check_plain(self._wanted())

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render, and mask what is plain text where it should not be, before Airflow stores what it shows."""
        super().render_template_fields(context, jinja_env)
        mask_secrets(plain_texts(self.statement, self.set))

    def execute(self, context: Context) -> dict[str, Any]:
        """Do it."""
        hook = ConnectionsHook(self.airflow_api_conn_id, self.control_store_conn_id, tell=self.log.info)
        try:
            outcome = hook.execute(self._wanted(), actor=_actor(context), parameters=self._values)
        except RfrError as error:
            if error.retryable:
                raise
            raise AirflowFailException(str(error)) from None
        for line in outcome.lines():
            self.log.info("%s", line)
        return outcome.to_json()

    def _wanted(self) -> Statement:
        """:raises ConfigurationError: both forms, or none, or what can't be read"""
        if self.statement and (self.connection or self.set or self.drop or self.reset):
            raise ConfigurationError("statement", "stands beside connection, set, drop or reset", "use one form")
        switches = {
            "validate": self.validate,
            "restart": self.restart,
            "dry_run": self.dry_run_only,
            "drain_timeout": self.drain_timeout,
            "new_identity": self.new_identity,
        }
        if self.statement:
            found = parse_statement(self.statement)
            settings, if_exists = settings_with(found.settings, **switches), switch("if_exists", self.if_exists)
            return replace(found, settings=settings, if_exists=found.if_exists or if_exists)
        return statement_of(
            self.connection, set=self.set, drop=self.drop, reset=self.reset, if_exists=self.if_exists, **switches
        )


def _actor(context: Context) -> str:
    """Who started the run, where Airflow knows it, and the task."""
    run, ti = context.get("dag_run"), context["ti"]
    who = getattr(run, "triggering_user_name", None)
    task = f"{ti.dag_id}.{ti.task_id} ({ti.run_id})"
    return f"{who} by {task}" if who else task
