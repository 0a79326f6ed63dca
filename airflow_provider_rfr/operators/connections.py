"""ALTER CONNECTION in DAGs: the operator with its arguments, and tasks that continue with altered connections.

A task whose connection is altered stops at its checkpoint, and continues with the new settings in the same try. The
work is asked to stop, and keeps what it has done. When it has ended, the connections are read again, and it runs once
more. This uses no retry, and does not wait for the scheduler. A control store that can't be reached never fails a task;
then no alteration restarts it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import BaseOperator
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
from airflow_provider_rfr.connections.statement import (
    DRAIN_SECONDS,
    Action,
    ActionKind,
    Parameter,
    SecretReference,
    Settings,
    Statement,
    Value,
    Verb,
    boolean,
    duration,
    name_of,
    parse_statement,
    parts_of,
)
from airflow_provider_rfr.connections.types import may_be_secret, type_named
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    ConfigurationError,
    Problem,
    RfrError,
    StatementError,
)
from airflow_provider_rfr.hooks.connections import ConnectionsHook, type_of
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.http.redaction import is_secret_extra

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.connections.airflow.use import ConnectionUse
    from airflow_provider_rfr.store.connections import TaskRef

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class AlterConnectionOperator(BaseOperator):
    """Change a connection atomically after validation, and restart its dependents; or drop an unused connection.

    Takes either a ``statement``, or ``connection`` with ``set``, ``drop`` and ``reset``. A setting counts if either
    ``WITH`` or an argument changes it from its default. Returns what was changed, masked, and the outcome of every
    refresh and sink that uses the connection.

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
    :param restart: restart the tasks that use the connection; else they keep their copies until their next runs
    :param dry_run: only report the plan
    :param drain_timeout: time that a running refresh may take to reach its next checkpoint; seconds, a timedelta or
        text such as ``10m``
    :param new_identity: accept another upstream, and read everything from its beginning
    :param airflow_api_conn_id: connection of type ``rfr_http`` with Airflow's address, and a user who may edit
        connections; not needed where Airflow asks for no password (templated)
    :param control_store_conn_id: connection of the control store; None for the default (templated)
    :raises ConnectionConflictError: another process alters the connection; a retry may help
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
        """Render and parse the statement, and mask plain secrets in it before Airflow stores the rendered fields.

        :raises AirflowFailException: the statement can't be parsed, so its secrets are unknown; Airflow stores nothing
        """
        # This method is overridden, because Airflow does not call render_template_fields for a mapped task.
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

        :raises ConfigurationError: both forms are given, or none, or an argument can't be read
        """
        names = ("connection", "set", "drop", "reset", "if_exists")
        settings = ("validate", "restart", "drain_timeout", "new_identity")
        arguments = {name: getattr(self, name) for name in names + settings}
        return statement_from(self.statement, dry_run=self.dry_run_only, **arguments)


def statement_from(
    statement: str | None = None,
    *,
    connection: str | None = None,
    set: Mapping[str, Any] | str | None = None,
    drop: Sequence[str] | str | None = None,
    reset: Sequence[str] | str | None = None,
    if_exists: Any = False,
    **settings: Any,
) -> Statement:
    """Return the statement, from its text or from a connection's id and options.

    :param set: values by option; text must be a JSON object
    :param drop: options to remove, as for ``reset``; text may name several, separated by commas
    :param settings: those of :func:`settings_with`
    :raises ConfigurationError: the field, the problem, and the remedy
    """
    may_be_missing = _boolean("if_exists", if_exists)
    if statement:
        if connection or set or drop or reset:
            problem = "can't be combined with connection, set, drop or reset"
            raise ConfigurationError("statement", problem, "use one form")
        parsed = parse_statement(statement)
        if_exists = parsed.if_exists or may_be_missing
        return replace(parsed, settings=settings_with(parsed.settings, **settings), if_exists=if_exists)
    if connection and not isinstance(connection, str):
        # A DAG that renders templates to native types makes a number of an id such as 42.
        problem = f"must be text, not {type(connection).__name__}"
        raise ConfigurationError("connection", problem, 'use a statement, with the id as "..." in it')
    if not connection:
        raise ConfigurationError("connection", "must be set", "give its id, or a statement")
    actions = [
        *(Action(ActionKind.SET, name, _value(value)) for name, value in _flat("", _mapping(set))),
        *(Action(ActionKind.DROP, name) for name in _names("drop", drop)),
        *(Action(ActionKind.RESET, name) for name in _names("reset", reset)),
    ]
    return Statement(Verb.ALTER, connection, may_be_missing, tuple(actions), settings_with(Settings(), **settings))


def settings_with(
    settings: Settings,
    *,
    validate: Any = True,
    restart: Any = True,
    dry_run: Any = False,
    new_identity: Any = False,
    drain_timeout: Any = None,
) -> Settings:
    """Combine the settings of a statement with arguments: of two booleans, the one counts that is not the default.

    :param drain_timeout: counts where the statement has the default
    :raises ConfigurationError: the field, the problem, and the remedy
    """
    seconds = duration(DRAIN_SECONDS if drain_timeout is None else drain_timeout)
    if seconds is None:
        raise ConfigurationError("drain_timeout", "must be a duration", "write e.g. 10m")
    return Settings(
        validate=_boolean("validate", validate) and settings.validate,
        restart=_boolean("restart", restart) and settings.restart,
        dry_run=_boolean("dry_run", dry_run) or settings.dry_run,
        new_identity=_boolean("new_identity", new_identity) or settings.new_identity,
        drain_timeout=seconds if settings.drain_timeout == DRAIN_SECONDS else settings.drain_timeout,
    )


def check_plain(statement: Statement) -> None:
    """Refuse plain secrets while the DAG is parsed, as far as option names reveal them: Airflow shows a DAG's code.

    :raises AlterationRefusedError: with every such option
    """
    remedy = "write SECRET 'env:NAME', or use parameters"
    problems = [
        Problem(name, "is secret and must not be plain text", remedy)
        for name, value in statement.set.items()
        if is_secret_extra(name) and not isinstance(value, (SecretReference, Parameter))
    ]
    if problems:
        raise AlterationRefusedError(statement.connection, problems)


def plain_texts(statement: Statement, conn_type: str | None) -> Iterator[str]:
    """Yield plain values that may be secret, so that they can be masked before the statement is refused.

    :param conn_type: type of the connection; None where it is unknown, which masks the most
    """
    connection_type = type_named(conn_type or "http")
    for action in statement.actions:
        value = action.value
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            is_named = may_be_secret(action.option)
            option = connection_type.full_name(action.option)
            values = [value] if is_named else connection_type.secret_values(option, value)
            yield from (str(secret) for secret in values if len(str(secret)) > 2)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
            value = value.strip()
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError("set", "must be a mapping", 'write e.g. {"port": 5433}')
    return value


def _flat(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield options with full names: ``{"extra": {"a": 1}}`` is the option ``extra.a``.

    A dot in the name of a nested field is part of that name.
    """
    for name, value in values.items():
        full = f"{place}.{name_of([str(name)])}" if place else _lower(str(name))
        if isinstance(value, Mapping) and value and parts_of(full)[0] == "extra":
            yield from _flat(full, value)
        else:
            yield full, value


def _lower(option: str) -> str:
    """Convert the first part of an option's name to lower case: it may be written in any case, as in a statement."""
    first, *more = parts_of(option)
    return name_of([first.lower(), *more])


def _value(value: Any) -> Value:
    """Return the value; a reference or a parameter may be written as in a statement."""
    if isinstance(value, str) and (value.upper().startswith("SECRET ") or value.startswith(":")):
        try:
            actions = parse_statement(f"ALTER CONNECTION c SET (a = {value})").actions
        except StatementError:
            return value
        return actions[0].value if len(actions) == 1 else value
    plain: Value = value
    return plain


def _names(field: str, names: Sequence[str] | str | None) -> list[str]:
    options = [part.strip() for part in names.split(",")] if isinstance(names, str) else names or ()
    if not isinstance(options, (list, tuple)) or not all(isinstance(name, str) for name in options):
        raise ConfigurationError(field, "must be a list of options", 'write e.g. ["schema"]')
    return [_lower(name) for name in options if name]


def _boolean(field: str, value: Any) -> bool:
    result = boolean(value)
    if result is None:
        raise ConfigurationError(field, "must be a boolean", "write true or false")
    return result


def running_with(
    context: Context,
    kind: str,
    conn_ids: Sequence[str] | Callable[[], Sequence[str]],
    work: Callable[[], _T],
    *,
    details: Mapping[str, Any] | None = None,
    stop: Callable[[], None] = lambda: None,
    kind_of: Callable[[Exception], str] = lambda error: type(error).__name__,
    control_store_conn_id: str | None = None,
) -> _T:
    """Do a task's work with these connections; repeat it each time that it fails after one of them was altered.

    :param kind: ``refresh`` or ``sink``
    :param conn_ids: connections that the task names, or a function that returns them before each start of the work
    :param work: reads the connections itself, each time that it is called
    :param details: further details of the task to register, see ``ConnectionUse``; no secrets
    :param stop: asks the work to end at its next checkpoint, from another thread; by default it ends by itself
    :param kind_of: returns the name of the error that the work failed with
    :param control_store_conn_id: connection of the control store; None for the default
    """
    store = _unless_away(ControlStoreHook(control_store_conn_id).get_store)
    if store is None or "ti" not in context:
        return work()
    from airflow_provider_rfr.connections.airflow.use import ConnectionUse
    from airflow_provider_rfr.hooks.connections import upstream_identity
    from airflow_provider_rfr.store.connections import DEFERRED, FAILED, IDLE

    task = task_of(context)
    use: ConnectionUse | None = None
    with closing(store):
        while True:
            with _failure_noted(use, kind_of):
                names = conn_ids() if callable(conn_ids) else conn_ids
            use = _unless_away(ConnectionUse, store, task, kind, names, details or {}, upstream_identity, stop)
            if use is None:
                return work()
            try:
                with use:
                    result = work()
            except TaskDeferred:
                _unless_away(use.end, DEFERRED)
                raise
            except Exception as error:
                # Any error counts: it may be the requested stop, or a failure with the old settings.
                if not _unless_away(use.is_stale):
                    _unless_away(use.end, FAILED, str(error), kind_of(error))
                    raise
                _log.info("It ended with: %s", error)
                _log.info("A connection of this %s was altered: it continues with the new settings", kind)
            else:
                _unless_away(use.end, IDLE)
                return result


@contextmanager
def _failure_noted(use: ConnectionUse | None, kind_of: Callable[[Exception], str]) -> Iterator[None]:
    """Record an error as the end of the task's former start, if there was one, and raise it."""
    try:
        yield
    except Exception as error:
        if use is not None:
            from airflow_provider_rfr.store.connections import FAILED

            _unless_away(use.end, FAILED, str(error), kind_of(error))
        raise


def finishing_deferred(context: Context, work: Callable[[], _T]) -> _T:
    """Do the rest of the work of a task whose driver ran in a cluster, and record how the task ended."""
    from airflow_provider_rfr.store.connections import FAILED, IDLE, end_use

    end: tuple[str, str | None, str | None] = (IDLE, None, None)
    try:
        return work()
    except Exception as error:
        end = (FAILED, str(error), type(error).__name__)
        raise
    finally:
        store = _unless_away(ControlStoreHook().get_store)
        if store is not None:
            task = task_of(context)
            _unless_away(store.run, lambda connection: end_use(connection, store.now(connection), task, None, *end))
            store.close()


def api_addresses(api_conn_id: str | None) -> list[dict[str, Any]]:
    """Return the addresses of an API's connection for ``run.moved`` of a document, as :func:`addresses_of` does.

    The list is empty if the control store can't be reached.
    """
    store = _unless_away(ControlStoreHook().get_store) if api_conn_id else None
    if store is None or api_conn_id is None:
        return []
    from airflow_provider_rfr.connections.airflow.use import addresses_of

    with closing(store):
        return _unless_away(addresses_of, store, api_conn_id) or []


def task_of(context: Context) -> TaskRef:
    """Return a reference to the running task instance that stays the same over all its attempts and clears.

    Airflow's own id does not stay the same.
    """
    from airflow_provider_rfr.store.connections import TaskRef

    ti = context["ti"]
    return TaskRef(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)


def _unless_away(action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
    try:
        return action(*args, **kwargs)
    except (ConfigurationError, DBAPIError) as error:
        _log.warning("ALTER CONNECTION can't follow this task: %s", type(error).__name__)
        return None
