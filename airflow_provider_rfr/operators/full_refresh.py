"""The operator of a resumable full refresh: one try of one task, from its arguments to the Spark application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk.configuration import conf

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
from airflow_provider_rfr.exceptions import ConfigurationError, RefreshFailedError
from airflow_provider_rfr.hooks.api import ApiHook, SourceSettings
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.dag_arguments import calling_folder, file_folders, path_from_dag
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.spark import RefreshSparkHook
from airflow_provider_rfr.hooks.webhooks import Triggers, check_triggers
from airflow_provider_rfr.lake.commit_event import rfc3339
from airflow_provider_rfr.links import RefreshLink, SparkUiLink, store_link
from airflow_provider_rfr.operators import connection_use, webhooks
from airflow_provider_rfr.operators._checkpoints import ProgressMonitor, check_store, open_store
from airflow_provider_rfr.operators._deferral import EndedDriver, deadline_of, leave_driver
from airflow_provider_rfr.operators._lineage import (
    Lineage,
    add_table_events,
    facets_of,
    outlets_of,
    source_name,
    table_alias,
    task_alias,
)
from airflow_provider_rfr.operators._mapping import MappedRefresh
from airflow_provider_rfr.operators._outcome import (
    figures_by_table,
    final_errors,
    result_of,
    result_of_ledger,
    sentence_of,
)
from airflow_provider_rfr.operators.arguments import (
    MAPPED,
    check_arguments,
    check_streams,
    from_dag_folder,
    options_mapping,
    shipped_source,
    stream_names,
    tables_of,
)
from airflow_provider_rfr.operators.submit import SparkApplicationOperator, load_application, private_folder
from airflow_provider_rfr.preflight import check_machine
from airflow_provider_rfr.refresh.config import parse_config, parse_options
from airflow_provider_rfr.refresh.follow import LedgerFollower
from airflow_provider_rfr.triggers.refresh import DeferredRefresh, Ending, RefreshTrigger

if TYPE_CHECKING:
    from collections.abc import Callable

    import jinja2
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import DAG, Context

    from airflow_provider_rfr.hooks.drivers import DriverAddress
    from airflow_provider_rfr.hooks.lake import LakeDocument


_STORE_PARTS = ("store", "history.py")
"""What a driver in a cluster needs besides, to keep refresh tokens and rows of the history tables."""


class _Attempt:
    """One try, in one process or, where it was deferred, in two.

    :param run_key: as in the refresh's document
    :param replace_where: the part of the targets, as in the refresh's options
    :ivar lineage: with figures once the tables are published
    """

    def __init__(
        self,
        context: Context,
        lineage: Lineage,
        run_key: str,
        replace_where: str | None,
        store: str,
        show: Callable[[str], None],
    ) -> None:
        self.lineage = lineage
        self.run_key = run_key
        self.replace_where = replace_where
        tables = tuple(lineage.tables.values())
        self._ledgers = LedgerFollower(lineage.lake.settings, tables, replace_where, show=show)
        self.monitor = ProgressMonitor(
            self._ledgers,
            open_store(store, context),
            connection_use.task_of(context).consumer,
            is_first=getattr(context["ti"], "try_number", 1) == 1,
        )

    def deferred(self, driver: DriverAddress, lake_conn_id: str) -> DeferredRefresh:
        """Return everything that another process needs to continue this try."""
        before, stalled = self.monitor.before
        lineage = self.lineage
        return DeferredRefresh(
            tables=lineage.tables,
            run_key=self.run_key,
            driver=driver,
            lake_conn_id=lake_conn_id,
            replace_where=self.replace_where,
            before=before,
            stalled=stalled,
            source=lineage.source,
            mode=lineage.mode,
        )

    def published(self) -> dict[str, Any] | None:
        """Return the task's result, by the ledgers; None where this run has not published every table."""
        tables = self.lineage.tables
        figures = {table: self._ledgers.published(table, self.run_key) for table in tables.values()}
        if self._ledgers.advance():
            self.monitor.write()
        published = {table: counts for table, counts in figures.items() if counts is not None}
        return self._noted(result_of_ledger(tables, published)) if len(published) == len(figures) else None

    def result(self, result_line: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the task's return value.

        :param result_line: the driver's figures, None where it ran elsewhere and printed none here
        :raises RefreshFailedError: the ledgers do not say that every table was published
        """
        if result_line is not None:
            return self._noted(result_of(result_line))
        result = self.published()
        if result is None:
            tables = ", ".join(self.lineage.tables.values())
            raise RefreshFailedError(
                f"Spark ended well, but the ledger does not say that {tables} was published; see the driver's log"
            )
        return result

    def is_refused(self) -> bool:
        """Tell whether a publish was refused because of the rows that were read, as of the last look."""
        headers = self._ledgers.headers.values()
        return any(header is not None and header.refused_under is not None for header in headers)

    def _noted(self, result: dict[str, Any]) -> dict[str, Any]:
        self.lineage = replace(self.lineage, figures=figures_by_table(result))
        return result


def _run_key(context: Context) -> str:
    """Return the key of one run of one task: the same over its tries, another one after a clear.

    A run that was deleted and created again under the same id has another key, because it started at another time.
    """
    started = getattr(context.get("dag_run"), "start_date", None)
    return f"{connection_use.task_of(context).consumer}/{rfc3339(started)}-{_clear_number(context)}"


def _clear_number(context: Context) -> int:
    """Count the tries of this task before its last clear.

    A run's ``clear_number`` counts the clears of other tasks, too.
    """
    ti = context["ti"]
    return max(0, int(getattr(ti, "max_tries", 0) or 0) - int(getattr(context.get("task"), "retries", 0) or 0))


def _airflow_run(context: Context) -> dict[str, Any]:
    """Return the part ``run.airflow`` of the refresh's document, which its commit's webhooks name."""
    task = connection_use.task_of(context)
    logical_date = context.get("logical_date")
    return {
        "dag_id": task.dag_id,
        "dag_run_id": task.run_id,
        "task_id": task.task_id,
        "map_index": task.map_index,
        "logical_date": rfc3339(logical_date) if isinstance(logical_date, datetime) else None,
    }


def _store_url(hook: RefreshSparkHook) -> str | None:
    """Return the control store's address for the driver, None where the driver can't reach it."""
    store = ControlStoreHook()
    try:
        is_file = store.url.get_backend_name() == "sqlite"
    except ConfigurationError:
        return None
    return None if is_file and hook.in_cluster else store.url_for_driver


class ResumableFullRefreshOperator(SparkApplicationOperator):
    """Refresh tables from an API on Spark; an attempt that dies is resumed by the next one.

    A retry, and a clear of a refresh that was not published, continue at the page where the last attempt stopped. A
    clear of a published refresh starts a new one. Takes every argument of its parent, ``SparkSubmitOperator``. Returns
    generation, snapshot id, pages, rows, pages re-fetched and attempts; with several streams totals, and ``streams``.

    The connections are read in the task and inlined only in a file of mode 0600 that the driver gets.

    :param source: where the streams come from (templated but for ``definition`` and ``manifest``, which have templates
        of their own): one of ``class`` (``package.module:Name``), ``file`` (YAML), ``definition`` and ``manifest`` (of
        Airbyte; a file as well, or the mapping itself, with ``components``, ``components_keep_state`` and
        ``allowed_hosts``); with ``config``, which goes before the connection's settings. Relative paths, here and in
        ``deliver_after``, are looked up next to the DAG's file, then next to the module that calls the operator
    :param streams: names of the streams; a list, or text with commas (templated)
    :param target: table to publish to, ``namespace.table``; ``{stream}`` is replaced by the stream's name, in
        letters that a table's name may have (templated)
    :param options: see ``RefreshOptions``; unknown names are refused while the DAG is parsed (templated)
    :param api_conn_id: connection of type ``rfr_api``; None, the default, if the source needs none (templated)
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default`` (templated)
    :param poll_interval: seconds between looks at the ledger while Spark runs, 10 by default; 2 at first
    :param checkpoint_store: where Airflow shows how far the refresh is, ``task_state`` (default), ``variable`` or
        ``xcom``; what a retry reads again depends on the ledger alone
    :param keep_checkpoint: leave the checkpoint in its store once the tables are published; default false
    :param deliver_after: a triggers block, or the path of a file with one: its webhooks are delivered right after the
        publish, and can't make the task fail; default None
    :param deferrable: free the slot while a driver in a cluster (YARN, Kubernetes) runs, and let the triggerer follow
        it; the default is Airflow's ``[operators] default_deferrable``
    :raises ConfigurationError: field, problem and remedy, while the DAG is parsed
    """

    template_fields: Sequence[str] = (
        *SparkApplicationOperator.template_fields,
        "source",
        "streams",
        "target",
        "options",
        "api_conn_id",
        "lake_conn_id",
    )
    template_fields_renderers = dict.fromkeys(
        ("source", "streams", "options", "conf", "env_vars", "post_submit_commands"), "json"
    )
    operator_extra_links = (SparkUiLink(), RefreshLink())
    ui_color = "#dbeee8"
    _application_name = "full_refresh"

    def __init__(
        self,
        *,
        source: Mapping[str, Any] | str,
        streams: Sequence[str] | str,
        target: str,
        options: Mapping[str, Any] | str | None = None,
        api_conn_id: str | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        poll_interval: float = 10.0,
        checkpoint_store: str = "task_state",
        keep_checkpoint: bool = False,
        deliver_after: Triggers | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        name: str = "rfr-full-refresh",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.source = source
        self.streams = streams
        self.target = target
        self.options = options
        self.api_conn_id = api_conn_id
        self.lake_conn_id = lake_conn_id
        self.poll_interval = poll_interval
        self.checkpoint_store = checkpoint_store
        self.keep_checkpoint = keep_checkpoint
        self.deferrable = deferrable
        self._deliver_after = deliver_after
        self._calling_folder = calling_folder()
        self._attempt: _Attempt | None = None
        self._leaves_driver = False
        self._left: DriverAddress | None = None
        if self.application_args and not self.application:
            raise ConfigurationError("application_args", "the refresh takes its settings from options", "use options")
        check_store(checkpoint_store)
        check_arguments(source, streams, target, options, file_folders(self))
        if deliver_after is not None:
            check_triggers(deliver_after, file_folders(self))
        if task_alias(self) not in self.outlets:
            self.outlets = [*self.outlets, *outlets_of(self, lake_conn_id, streams, target)]

    @classmethod
    def partial(cls, **kwargs: Any) -> MappedRefresh:
        """Check the arguments that mapped tasks share, and make the alias of their tables an outlet.

        The other arguments are checked by ``expand`` and ``expand_kwargs``.

        :raises ConfigurationError: field, problem and remedy, while the DAG is parsed
        """
        folders = file_folders()
        source, streams, target = (kwargs.get(name, MAPPED) for name in ("source", "streams", "target"))
        check_store(kwargs.get("checkpoint_store", "task_state"))
        check_arguments(source, streams, target, kwargs.get("options"), folders)
        if "source" in kwargs:
            kwargs["source"] = from_dag_folder(source, folders)
        if (triggers := kwargs.get("deliver_after")) is not None:
            check_triggers(triggers, folders)
            if isinstance(triggers, (str, Path)):
                kwargs["deliver_after"] = path_from_dag(triggers, folders)
        shared = super().partial(**kwargs)
        if (dag := shared.kwargs["dag"]) is not None:
            alias = table_alias(dag.dag_id, shared.kwargs["task_id"])
            shared.kwargs["outlets"] = [*shared.kwargs["outlets"], alias]
        # Only the copy is to be mapped, and Airflow warns of one that never is.
        shared._expand_called = True
        return MappedRefresh(operator_class=cls, kwargs=shared.kwargs, params=shared.params)

    @property
    def dag(self) -> DAG:
        """Return the DAG of the task."""
        return super().dag

    @dag.setter
    def dag(self, dag: DAG | None) -> None:
        before = task_alias(self)
        SparkApplicationOperator.dag.fset(self, dag)  # type: ignore[attr-defined]
        self.outlets = [task_alias(self) if outlet == before else outlet for outlet in self.outlets]

    @property
    def stalled_tries(self) -> int | None:
        """Return the consecutive tries, up to this one, that made no progress; None while that is not known."""
        return None if self._attempt is None else self._attempt.monitor.stalled

    @property
    def lineage(self) -> Lineage | None:
        """Return the lineage of the current attempt; None before the connections were read."""
        return None if self._attempt is None else self._attempt.lineage

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Return the facets for OpenLineage's listener; a table has figures only once the refresh is published."""
        return None if self.lineage is None else facets_of(self.lineage)

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Leave an inline definition or manifest alone: its templates are filled in by the refresh, page by page."""
        inline = (
            [self.source.get(key) for key in ("definition", "manifest")] if isinstance(self.source, Mapping) else []
        )
        if isinstance(content, Mapping) and any(content is document for document in inline):
            return content
        return super().render_template(content, context, jinja_env, seen_oids)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit, follow, and return the figures.

        :raises AirflowFailException: a retry would meet the same error
        :raises RfrError: a retry may help, and continues where this attempt stopped
        :raises TaskDeferred: the triggerer follows from here, then :meth:`execute_complete` is called
        """
        began = datetime.now(timezone.utc)
        conn_ids = [conn_id for conn_id in (self.api_conn_id, self.lake_conn_id, self._conn_id) if conn_id]
        with final_errors(self.log.error):
            return connection_use.running_with(
                context,
                "refresh",
                conn_ids,
                lambda: self._refresh(context, began),
                details={"check": self._connection_checks()},
                stop=self._stop_driver,
                kind_of=self._error_kind,
            )

    def look_again(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Refresh, if the table is no longer blocked by an undelivered webhook."""
        return self.execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Finish the task when the triggerer has nothing more to wait for: the ledger says how the refresh ended.

        :raises Exception: as :meth:`execute`
        """
        with final_errors(self.log.error):
            return connection_use.finishing_deferred(context, lambda: self._finish_deferred(context, event))

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait here for a driver in a cluster, unless the triggerer does."""
        hook = self._submitted
        if hook is None or not self._leaves_driver:
            return super().poll_until_complete(external_id, context)
        hook.after_submit()
        self._left = hook.address_of(str(external_id))
        return None

    def _refresh(self, context: Context, began: datetime) -> dict[str, Any]:
        check_machine()
        lake = LakeHook(self.lake_conn_id).get_lake_document()
        document = self._document(context, lake)
        tables, options = tables_of(document["streams"], self.target), document["options"]
        if reason := webhooks.blocked(lake.name, tables.values()):
            self.log.warning("The refresh waits, and holds no slot: %s", reason)
            again = datetime.now(timezone.utc) + timedelta(seconds=webhooks.BLOCKED_SECONDS)
            self.defer(trigger=DateTimeTrigger(moment=again), method_name="look_again")
        lineage = Lineage(source_name(document["source"]), tables, options["mode"], lake)
        attempt = self._begin(context, lineage, document["run"]["key"], options["replace_where"])

        with private_folder() as folder, attempt.monitor:

            def load(hook: RefreshSparkHook) -> None:
                hook.on_pages = partial(store_link, context, SparkUiLink())
                store = _store_url(hook)
                shipped, parts = ({**document, "store": store}, _STORE_PARTS) if store else (document, ())
                load_application(hook, folder, shipped, parts)
                self._leaves_driver = self.deferrable and leave_driver(hook, self._yarn_rm_auth)

            attempt.monitor.follow(self.poll_interval)
            result_line = self._run_application(context, load)
        if self._left is not None:
            refresh = attempt.deferred(self._left, self.lake_conn_id)
            self.log.info("The driver %s runs in the cluster; this slot is free until it ends", self._left.driver_id)
            deadline = deadline_of(self.execution_timeout, began)
            trigger = RefreshTrigger(refresh.to_json(), self.poll_interval, deadline)
            self.defer(trigger=trigger, method_name="execute_complete")
        return self._conclude(context, attempt, attempt.result(result_line))

    def _finish_deferred(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        refresh, ending = DeferredRefresh.from_json(event["refresh"]), Ending.from_json(event)
        lake = LakeHook(refresh.lake_conn_id).get_lake_document()
        secrets = [*self._read_source(lake).secrets.values(), *lake.secrets()]
        lineage = Lineage(refresh.source, refresh.tables, refresh.mode, lake)
        attempt = self._begin(context, lineage, refresh.run_key, refresh.replace_where)
        attempt.monitor.resume(refresh.before, refresh.stalled)
        driver = EndedDriver(refresh, ending, secrets)
        store_link(context, SparkUiLink(), driver.report.url)
        with attempt.monitor:
            result = attempt.published()
            if result is None:
                driver.forget(context.get("task_state_store"), self.external_id_key)
                raise driver.failure(refused=attempt.is_refused())
        driver.tidy()
        return self._conclude(context, attempt, result)

    def _begin(self, context: Context, lineage: Lineage, run_key: str, replace_where: str | None) -> _Attempt:
        self._hook, self._left, self._leaves_driver = None, None, False
        # A published refresh that is cleared runs again: the parent's memory of a finished job is one run's only.
        self.external_id_key = f"{type(self).external_id_key}_{_clear_number(context)}"
        self._attempt = _Attempt(context, lineage, run_key, replace_where, self.checkpoint_store, self.log.info)
        store_link(context, RefreshLink(), RefreshLink().get_link(self, ti_key=context["ti"]))
        return self._attempt

    def _conclude(self, context: Context, attempt: _Attempt, result: dict[str, Any]) -> dict[str, Any]:
        attempt.monitor.published(keep=self.keep_checkpoint)
        figures = attempt.lineage.figures
        self.log.info("%s", sentence_of(result))
        add_table_events(context, self, self.lake_conn_id, figures)
        if self._deliver_after is not None:
            webhooks.deliver(self, self._deliver_after, self.lake_conn_id, list(figures))
        return result

    def _document(self, context: Context, lake: LakeDocument) -> dict[str, Any]:
        """Return the configuration of the Spark application; it holds the secrets of both connections.

        :raises ConfigurationError: field, problem and remedy
        """
        source, streams = shipped_source(self.source, file_folders(self)), stream_names(self.streams)
        settings, moved = self._read_source(lake), connection_use.moved(self.api_conn_id)
        check_streams(streams, None)
        document: dict[str, Any] = {
            "source": settings.completed(source),
            "streams": streams,
            "target": self.target,
            "lake": {"name": lake.name, "properties": lake.properties},
            "options": parse_options(options_mapping(self.options)).model_dump(mode="json"),
            "run": {"key": _run_key(context), "airflow": _airflow_run(context)},
        }
        if moved:
            document["run"]["moved"] = moved
        parse_config(document)
        return document

    def _read_source(self, lake: LakeDocument) -> SourceSettings:
        """Read the settings of the API's connection. From here on Airflow masks the secrets of both connections."""
        settings = ApiHook(self.api_conn_id).get_source_config() if self.api_conn_id else SourceSettings({}, {})
        mask_secrets((*settings.secrets.values(), *lake.secrets()))
        return settings

    def _connection_checks(self) -> dict[str, Any]:
        """Return the checks by which ALTER CONNECTION tries this refresh with other settings.

        They read a stream's first page, and look for the tables.
        """
        try:
            streams = stream_names(self.streams)
            checks: dict[str, Any] = {self.lake_conn_id: {"tables": list(tables_of(streams, self.target).values())}}
            if self.api_conn_id and streams:
                source = shipped_source(self.source, file_folders(self))
                checks[self.api_conn_id] = {"source": source, "stream": streams[0]}
        except ConfigurationError:
            # The refresh itself says what is wrong.
            return {}
        return checks

    def _stop_driver(self) -> None:
        hook = self._submitted
        if hook is None:
            return
        if hook.in_cluster:
            self.on_kill()
            return
        # Without a grace period: the driver may take as long as its checkpoint needs.
        for driver in hook.driver_processes():
            driver.terminate()

    def _error_kind(self, error: Exception) -> str:
        result_line = None if self._submitted is None else self._submitted.result_line
        found = (result_line or {}).get("error") or {}
        return str(found.get("cause") or found.get("type") or type(error).__name__)
