"""The operator that runs sinks: exports of the platform's own tables."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator
from urllib3 import HTTPHeaderDict

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError, SinkError
from airflow_provider_rfr.hooks.api import http_settings
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.hooks.dag_arguments import calling_folder
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.webhooks import configured_hosts
from airflow_provider_rfr.operators._outcome import final_errors
from airflow_provider_rfr.operators.arguments import names_in
from airflow_provider_rfr.operators.connections import running_with

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.builtins import BuiltinObject
    from airflow_provider_rfr.builtins.model import RecordedObject


class SinkOperator(BaseOperator):
    """Export the rows that were added to the sources of declared sinks since the last run; each row once.

    A migration of a source does not repeat rows. If a run is killed after a batch and before it moves the cursor, the
    next run sends this batch again with the same id. A sink that fails does not stop the others. Connections of HTTP
    sinks are of type ``rfr_http``; a login, with its password, is sent as basic authentication, a password alone as a
    bearer token. Private hosts have to be allowed, as for webhooks, by ``[rfr] webhook_allowed_hosts``. Returns
    batches, rows and cursor by sink.

    :param sinks: names of the sinks; empty, the default, for every declared sink (templated)
    :param objects: YAML files or folders of declarations, next to the DAG's file if relative (templated)
    :param project: project that the objects belong to; default ``rfr`` (templated)
    :param declared_version: version of the code that declares them; None for this package's
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default`` (templated)
    :param control_store_conn_id: connection of the control store; None for the default, see :class:`ControlStoreHook`
    """

    template_fields: Sequence[str] = ("sinks", "objects", "project", "lake_conn_id")
    ui_color = "#dbe3ee"

    def __init__(
        self,
        *,
        sinks: Sequence[str] | str = (),
        objects: Sequence[str] | str = (),
        project: str = PROJECT,
        declared_version: str | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sinks = sinks
        self.objects = objects
        self.project = project
        self.declared_version = declared_version
        self.lake_conn_id = lake_conn_id
        self.control_store_conn_id = control_store_conn_id
        self._calling_folder = calling_folder()
        # Made in execute(): Airflow copies operators, and an event can't be copied.
        self._stopping: threading.Event | None = None

    def execute(self, context: Context) -> dict[str, dict[str, Any]]:
        """Run the sinks.

        :raises AirflowFailException: sinks failed, and no retry helps any of them
        :raises RfrError: a retry may help
        """
        with final_errors(self.log.error):
            store = self.control_store_conn_id
            run, stop = self._run_all, self.on_kill
            return running_with(context, "sink", self._conn_ids, run, stop=stop, control_store_conn_id=store)

    def on_kill(self) -> None:
        """Ask the run to end after the current batch; the next run continues."""
        if self._stopping is not None:
            self._stopping.set()

    def _conn_ids(self) -> list[str]:
        """Return the connections of the lake and of the sinks, as they are declared now."""
        chosen = self._chosen(BuiltinsHook.of_task(self))
        named = [obj.sink.settings.get("connection") for obj in chosen if obj.sink is not None]
        return [self.lake_conn_id, *(str(name) for name in named if name)]

    def _run_all(self) -> dict[str, dict[str, Any]]:
        stopping = self._stopping = threading.Event()
        hook, done, errors = BuiltinsHook.of_task(self), dict[str, dict[str, Any]](), list[RfrError]()
        chosen = self._chosen(hook)
        recorded = {obj.key: obj for obj in hook.recorded().objects}
        for obj in chosen:
            try:
                done[obj.name] = self._run(hook, obj, recorded, stopping)
            except RfrError as error:
                errors.append(error)
            except Exception as error:
                errors.append(SinkError(obj.name, f"it failed ({type(error).__name__})", "the log has the traceback"))
                self.log.exception("%s failed", obj.name)
        if not errors:
            return done
        problems = "; ".join(map(str, errors))
        if not any(error.retryable for error in errors):
            raise AirflowFailException(problems)
        raise RfrError(problems)

    def _run(
        self, hook: BuiltinsHook, obj: BuiltinObject, recorded: Mapping[str, RecordedObject], stopping: threading.Event
    ) -> dict[str, Any]:
        from airflow_provider_rfr.sinks.run import HttpTarget, run_sink

        assert obj.sink is not None
        target, source = None, recorded.get(obj.sink.source.casefold())
        if obj.sink.to == "http":
            conn_id = obj.sink.settings.get("connection")
            if not conn_id:
                raise ConfigurationError("sink.settings.connection", "is missing", "name a connection of type rfr_http")
            settings = http_settings(str(conn_id))
            headers = HTTPHeaderDict(settings.credential)
            # The connection's own headers take precedence over those from its login.
            headers.update(settings.headers)
            mask_secrets((settings.password, *headers.values()))
            allowed = tuple(configured_hosts())
            target = HttpTarget(settings.base_url, headers, verify=settings.verify, allowed_hosts=allowed)
        done = run_sink(
            obj.id,
            obj.name,
            obj.sink,
            catalog=hook.catalog,
            store=hook.store,
            target=target,
            source_table=None if source is None else source.name,
            source_id=None if source is None else source.uuid,
            stop=stopping.is_set,
        )
        self.log.info("%s: sent %s rows in %s batches", obj.name, done.rows, done.batches)
        if not done.done:
            raise SinkError(obj.name, "it was asked to stop", "the next run continues after what was sent")
        return asdict(done)

    def _chosen(self, hook: BuiltinsHook) -> list[BuiltinObject]:
        declared = {obj.key: obj for obj in hook.spec.objects if obj.sink is not None}
        names = names_in(self.sinks)
        if unknown := [name for name in names if name.casefold() not in declared]:
            known = ", ".join(obj.name for obj in declared.values()) or "none"
            raise ConfigurationError("sinks", f"{unknown[0]} is not a declared sink", f"declared: {known}")
        return [declared[name.casefold()] for name in names] if names else list(declared.values())
