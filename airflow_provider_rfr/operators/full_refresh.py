"""The operator of a resumable full refresh: one try of one task, from its arguments to the Spark application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import conf
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.api import SourceSettings, settings_of
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.dag_arguments import calling_folder, file_folders, is_pending, path_from_dag
from airflow_provider_rfr.hooks.lake import LakeHook, secrets_of
from airflow_provider_rfr.hooks.spark import RefreshSparkHook
from airflow_provider_rfr.hooks.webhooks import Triggers, check_triggers
from airflow_provider_rfr.lake.commit_event import rfc3339
from airflow_provider_rfr.links import RefreshLink, SparkUiLink, store_link
from airflow_provider_rfr.operators import connections, webhooks
from airflow_provider_rfr.operators._attempt import (
    DEFAULT_STORE,
    EndedDriver,
    RefreshAttempt,
    check_store,
    deadline_of,
    leave_driver,
)
from airflow_provider_rfr.operators._outcome import (
    Lineage,
    add_table_events,
    facets_of,
    final_errors,
    outlets_of,
    sentence_of,
    source_name,
    table_alias,
    task_alias,
)
from airflow_provider_rfr.operators.arguments import (
    MAPPED,
    check_arguments,
    check_reading,
    check_source,
    check_streams,
    from_dag_folder,
    options_mapping,
    shipped_source,
    stream_names,
    tables_of,
    with_run_settings,
)
from airflow_provider_rfr.operators.submit import SparkApplicationOperator, load_application, private_folder
from airflow_provider_rfr.preflight import check_machine
from airflow_provider_rfr.refresh.config import parse_config, parse_options
from airflow_provider_rfr.triggers.refresh import DeferredRefresh, Ending, RefreshTrigger

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import DAG, Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_provider_rfr.hooks.spark import DriverAddress
    from airflow_provider_rfr.lake import LakeSettings

STORE_PARTS = ("store", "history.py")
"""Further parts of this package that a driver needs to keep refresh tokens and rows of the history tables."""
_READING: Final = ("source", "streams", "target", "options")
_UNKNOWN: Final = {**dict.fromkeys(_READING, MAPPED), "options": None}
_CHECKED: Final = (*_READING, "checkpoint_store", "deliver_after")


def _clear_number(context: Context) -> int:
    """Return the number of tries before this task's last clear, which tells one clear from another.

    A run's ``clear_number`` is not used, because it counts the clears of other tasks, too.
    """
    ti = context["ti"]
    return max(0, int(getattr(ti, "max_tries", 0) or 0) - int(getattr(context.get("task"), "retries", 0) or 0))


def _airflow_run(context: Context) -> dict[str, Any]:
    """Return the part ``run.airflow`` of the refresh's document: the run that webhooks of its commit name."""
    task = connections.task_of(context)
    logical_date = context.get("logical_date")
    return {
        "dag_id": task.dag_id,
        "dag_run_id": task.run_id,
        "task_id": task.task_id,
        "map_index": task.map_index,
        "logical_date": rfc3339(logical_date) if isinstance(logical_date, datetime) else None,
        "try_number": getattr(context["ti"], "try_number", None),
    }


def store_url(*, elsewhere: bool) -> str | None:
    """Return the control store's address for the driver; None where the driver can't reach it.

    :param elsewhere: whether the driver runs on another machine, which can't open a SQLite file of this one
    """
    store = ControlStoreHook()
    try:
        is_file = store.url.get_backend_name() == "sqlite"
    except ConfigurationError:
        return None
    return None if is_file and elsewhere else store.url_for_driver


class MappedRefresh(OperatorPartial):
    """A refresh that is still to be mapped. Results of other tasks are checked in the mapped task."""

    __slots__ = ()

    def expand(self, **mapped: Any) -> MappedOperator:
        """Check each combination of values and map the task over them.

        :raises ConfigurationError: field, problem, remedy and place of the first mistake
        """
        self._check(_combinations(mapped))
        return super().expand(**mapped)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """Check each set of arguments and map the task over them.

        :raises ConfigurationError: field, problem, remedy and place of the first mistake
        """
        if isinstance(kwargs, Sequence):
            self._check((f"expand_kwargs[{n}]", item) for n, item in enumerate(kwargs) if isinstance(item, Mapping))
        return super().expand_kwargs(kwargs, strict=strict)

    def _check(self, tasks: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Check the arguments that are known now; check a source that several tasks share only once.

        :param tasks: mapped arguments of each task, with their place in the DAG
        """
        # Set now: after a mistake, Airflow would otherwise also warn that nothing was mapped.
        self._expand_called = True
        # Airflow creates a mapped task, so relative paths are looked up next to the DAG's file alone.
        folder = file_folders()[:1]
        streams_of = dict[int, list[str] | None]()
        for place, arguments in tasks:
            source, *reading = ({**_UNKNOWN, **self.kwargs, **arguments}[name] for name in _READING)
            try:
                if id(source) not in streams_of:
                    streams_of[id(source)] = check_source(source, folder)
                check_reading(streams_of[id(source)], *reading)
                if not is_pending(store := arguments.get("checkpoint_store", MAPPED)):
                    check_store(store)
                triggers = arguments.get("deliver_after")
                if triggers is not None and not hasattr(triggers, "resolve"):
                    check_triggers(triggers, folder)
            except ConfigurationError as error:
                raise error.inside(place) from error


def _combinations(mapped: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the arguments of each task, with their places in the lists to map over."""
    lists = {name: mapped[name] for name in _CHECKED if isinstance(mapped.get(name), (list, tuple))}
    for chosen in product(*(enumerate(values) for values in lists.values())) if lists else ():
        place = ", ".join(f"{name}[{number}]" for name, (number, _) in zip(lists, chosen, strict=True))
        yield f"expand {place}", {name: value for name, (_, value) in zip(lists, chosen, strict=True)}


class ResumableFullRefreshOperator(SparkApplicationOperator):
    """Refresh tables from an API on Spark; an attempt that dies is resumed by the next one.

    A retry, and a clear of a refresh that was not published, continue at the page where the last attempt stopped. A
    clear of a published refresh starts a new one. Takes every argument of its parent, ``SparkSubmitOperator``. Returns
    generation, snapshot id, pages, rows, pages re-fetched and attempts; with several streams totals, and ``streams``.

    A run's configuration may have settings for that run alone, below ``rfr``: ``{"rfr": {"max_shrink": null}}``. See
    :func:`~airflow_provider_rfr.operators.arguments.with_run_settings`.

    The connections are read in the task and inlined only in a file of mode 0600 that the driver gets.

    :param source: where the streams come from (templated but for ``definition`` and ``manifest``, which have templates
        of their own): one of ``class`` (``package.module:Name``), ``file`` (YAML), ``definition`` and ``manifest`` (of
        Airbyte; a file as well, or the mapping itself, with ``components``, ``components_keep_state`` and
        ``allowed_hosts``); with ``config``, which takes precedence over the connection's settings. Relative paths, here
        and in ``deliver_after``, are looked up next to the DAG's file, then next to the module that calls the operator
    :param streams: names of the streams; a list, or text with commas (templated)
    :param target: table to publish to, ``namespace.table``; ``{stream}`` is replaced by the stream's name, in
        letters that a table's name may have (templated)
    :param options: see ``RefreshOptions``; unknown names are refused while the DAG is parsed (templated)
    :param api_conn_id: connection of type ``rfr_api``; None, the default, if the source needs none (templated)
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default`` (templated)
    :param poll_interval: seconds between polls of the ledger while Spark runs, 10 by default; 2 at first
    :param checkpoint_store: where Airflow keeps a copy of the progress for display, ``task_state`` (default),
        ``variable`` or ``xcom`` (default before Airflow 3.3, which has no task state); what a retry reads again depends
        on the ledger alone
    :param keep_checkpoint: leave the checkpoint in its store once the tables are published; default false
    :param deliver_after: a triggers block, or the path of a file with one: its webhooks are delivered right after the
        publish, and can't make the task fail; default None
    :param deferrable: free the slot while a driver in a cluster (YARN, Kubernetes) runs, and let the triggerer follow
        it; the default is Airflow's ``[operators] default_deferrable``
    :raises ConfigurationError: field, problem and remedy, while the DAG is parsed
    """

    # The Spark provider has this attribute since its version 6.
    external_id_key = "spark_job_id"
    template_fields: Sequence[str] = (
        *SparkApplicationOperator.template_fields,
        *("source", "streams", "target", "options", "api_conn_id", "lake_conn_id"),
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
        checkpoint_store: str = DEFAULT_STORE,
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
        self._attempt: RefreshAttempt | None = None
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
        check_store(kwargs.get("checkpoint_store", DEFAULT_STORE))
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
        # Only the copy below is mapped, and Airflow would warn that this one never is.
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
        """Submit the refresh, follow it, and return its figures.

        :raises AirflowFailException: a retry would meet the same error
        :raises RfrError: a retry may help, and continues where this attempt stopped
        :raises TaskDeferred: the triggerer follows from here, then :meth:`execute_complete` is called
        """
        began = datetime.now(timezone.utc)
        conn_ids = [conn_id for conn_id in (self.api_conn_id, self.lake_conn_id, self._conn_id) if conn_id]
        with final_errors(self.log.error):
            return connections.running_with(
                context,
                "refresh",
                conn_ids,
                lambda: self._refresh(context, began),
                details={"check": self._connection_checks()},
                stop=self._stop_driver,
                kind_of=self._error_kind,
            )

    def look_again(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Execute the task again after it waited for a table that an undelivered webhook blocks."""
        return self.execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Finish the task when the triggerer has nothing more to wait for: the ledger says how the refresh ended.

        :raises Exception: as :meth:`execute`
        """
        with final_errors(self.log.error):
            return connections.finishing_deferred(context, lambda: self._finish_deferred(context, event))

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait here for a driver in a cluster, unless the triggerer follows it."""
        hook = self._submitted
        if hook is None or not self._leaves_driver:
            return super().poll_until_complete(external_id, context)
        hook.after_submit()
        self._left = hook.address_of(str(external_id))
        return None

    def _refresh(self, context: Context, began: datetime) -> dict[str, Any]:
        store_link(context, SparkUiLink(), "")
        check_machine()
        lake = LakeHook(self.lake_conn_id).get_lake_settings()
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
                store = store_url(elsewhere=hook.in_cluster)
                shipped, parts = ({**document, "store": store}, STORE_PARTS) if store else (document, ())
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
        lake = LakeHook(refresh.lake_conn_id).get_lake_settings()
        secrets = [*self._read_source(lake).secrets.values(), *secrets_of(lake)]
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

    def _begin(self, context: Context, lineage: Lineage, run_key: str, replace_where: str | None) -> RefreshAttempt:
        self._hook, self._left, self._leaves_driver = None, None, False
        # The parent remembers a finished job under this key. A clear changes it, so a published refresh runs again.
        self.external_id_key = f"{type(self).external_id_key}_{_clear_number(context)}"
        self._attempt = RefreshAttempt(context, lineage, run_key, replace_where, self.checkpoint_store, self.log.info)
        store_link(context, RefreshLink(), RefreshLink().get_link(self, ti_key=context["ti"]))
        return self._attempt

    def _conclude(self, context: Context, attempt: RefreshAttempt, result: dict[str, Any]) -> dict[str, Any]:
        attempt.monitor.published(keep=self.keep_checkpoint)
        figures = attempt.lineage.figures
        self.log.info("%s", sentence_of(result))
        tables = tables_of(stream_names(self.streams), self.target).values()
        add_table_events(context, self, self.lake_conn_id, tables, figures)
        if self._deliver_after is not None:
            webhooks.deliver(self, self._deliver_after, self.lake_conn_id, list(figures))
        return result

    def _document(self, context: Context, lake: LakeSettings) -> dict[str, Any]:
        """Return the configuration of the Spark application; it holds the secrets of both connections.

        :raises ConfigurationError: field, problem and remedy
        """
        document = self.document_without_run(lake)
        run = context.get("dag_run")
        if conf.getboolean("core", "dag_run_conf_overrides_params", fallback=True):
            tables = tables_of(document["streams"], self.target)
            document = with_run_settings(document, tables, getattr(run, "conf", None))
        # A run that was deleted and created again under the same id started at another time, so its key is another one.
        started = rfc3339(getattr(run, "start_date", None))
        key = f"{connections.task_of(context).consumer}/{started}-{_clear_number(context)}"
        document["run"] |= {"key": key, "airflow": _airflow_run(context)}
        parse_config(document)
        return document

    def document_without_run(self, lake: LakeSettings) -> dict[str, Any]:
        """Return the part of the configuration that is the same for all runs of the task; it holds secrets.

        :param lake: settings of the connection ``lake_conn_id``
        :raises ConfigurationError: field, problem and remedy
        """
        source, streams = shipped_source(self.source, file_folders(self)), stream_names(self.streams)
        settings, moved = self._read_source(lake), connections.api_addresses(self.api_conn_id)
        check_streams(streams, None)
        return {
            "source": settings.completed(source),
            "streams": streams,
            "target": self.target,
            "lake": {"name": lake.name, "properties": lake.properties},
            "options": parse_options(options_mapping(self.options)).model_dump(mode="json"),
            "run": {"moved": moved} if moved else {},
        }

    def _read_source(self, lake: LakeSettings) -> SourceSettings:
        """Read the settings of the API's connection. From here on Airflow masks the secrets of both connections."""
        settings = settings_of(self.api_conn_id)
        mask_secrets((*settings.secrets.values(), *secrets_of(lake)))
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
            # The refresh itself reports the mistake.
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
        failure = (result_line or {}).get("error") or {}
        return str(failure.get("cause") or failure.get("type") or type(error).__name__)
