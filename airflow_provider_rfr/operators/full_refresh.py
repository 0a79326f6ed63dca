"""The operator of a resumable full refresh: one try of one task, from its arguments to the Spark application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException

from airflow_provider_rfr.exceptions import ConfigurationError, RefreshFailedError
from airflow_provider_rfr.hooks.api import ApiHook, SourceSettings
from airflow_provider_rfr.hooks.common import connection_named, mask_secrets
from airflow_provider_rfr.hooks.dag_arguments import dag_folder
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.spark import STOP_GRACE_SECONDS, RefreshSparkHook
from airflow_provider_rfr.hooks.webhooks import Triggers, check_triggers
from airflow_provider_rfr.lake.commit_event import rfc3339
from airflow_provider_rfr.links import RefreshLink, SparkUiLink, show_link
from airflow_provider_rfr.operators import connection_use, deferral, outcome, submit, webhooks
from airflow_provider_rfr.operators.arguments import (
    check_arguments,
    check_streams,
    options_mapping,
    shipped_source,
    stream_names,
    tables_of,
)
from airflow_provider_rfr.operators.checkpoints import CheckpointManager, TaskKey, check_store, open_store
from airflow_provider_rfr.operators.lineage import Lineage, TellsLineage, outlets_of, source_name, tell_assets
from airflow_provider_rfr.operators.progress import LedgerFollower, LedgerReader
from airflow_provider_rfr.operators.submit import clear_number, load_hook, run_key
from airflow_provider_rfr.preflight import check_machine
from airflow_provider_rfr.refresh.config import parse_config, parse_options
from airflow_provider_rfr.refresh.progress import ProgressBook
from airflow_provider_rfr.triggers.refresh import DeferredRefresh, Ending, RefreshTrigger

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_provider_rfr.hooks.api import SourceSettings
    from airflow_provider_rfr.hooks.drivers import DriverAddress
    from airflow_provider_rfr.hooks.lake import LakeDocument
    from airflow_provider_rfr.operators.lineage import Lineage


class _Attempt:
    """A try, in one process or, where it was deferred, in two.

    :param lineage: what comes from where
    :param replace_where: the part of the targets, as in the refresh's options
    :ivar keeper: a context manager around the try
    :ivar lineage: with figures once there are some
    """

    def __init__(self, context: Context, lineage: Lineage, replace_where: str | None, checkpoint_store: str) -> None:
        self.lineage = lineage
        self.run_key = run_key(context)
        self.replace_where = replace_where
        self._reader = LedgerReader(lineage.lake, replace_where)
        self.keeper = CheckpointManager(
            open_store(checkpoint_store, context),
            str(TaskKey.of(context)),
            details=self._reader.details,
            known=lambda: self._reader.is_complete,
            first=getattr(context["ti"], "try_number", 1) == 1,
        )

    @property
    def tables(self) -> Mapping[str, str]:
        """Table by stream."""
        return self.lineage.tables

    def follower(self, tell: Callable[[str], None], poll_interval: float) -> LedgerFollower:
        """Shows how the refresh goes on, for as long as this process waits for Spark."""
        return LedgerFollower(
            tuple(self.tables.values()),
            self._reader.status,
            recall=self.keeper.recall,
            remember=self.keeper.remember,
            tell=tell,
            poll_interval=poll_interval,
        )

    def deferred(self, driver: DriverAddress, lake_conn_id: str) -> DeferredRefresh:
        """The try as another process finds it again."""
        before, stalled = self.keeper.before
        lineage = self.lineage
        return DeferredRefresh(
            lineage.tables,
            self.run_key,
            driver,
            lake_conn_id,
            self.replace_where,
            before,
            stalled,
            lineage.source,
            lineage.mode,
        )

    def published(self) -> dict[str, Any] | None:
        """What the task returns, by the ledgers; None where this run has not published every table."""
        book = ProgressBook(tell=lambda line: None)
        found: dict[str, Mapping[str, Any]] = {}
        for table in self.tables.values():
            figures = self._reader.published(table, self.run_key)
            found |= {} if figures is None else {table: figures}
            book.take(table, self._reader.latest(table))
        self.keeper.remember(book.checkpoint(), guarded=True)
        whole = len(found) == len(self.tables)
        return self._noted(outcome.result_of_ledger(self.tables, found)) if whole else None

    def result(self, word: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the task returns.

        :param word: the driver's last word, None where it ran elsewhere and did not say it here
        :raises RefreshFailedError: the ledgers do not say that every table was published
        """
        if word is not None:
            return self._noted(outcome.result_of(word))
        result = self.published()
        if result is None:
            tables = ", ".join(self.tables.values())
            raise RefreshFailedError(
                f"Spark ended well, but the ledger does not say that {tables} was published; see the driver's log"
            )
        return result

    def is_refused(self) -> bool:
        """Whether a publish was refused for what was read, as of the last look."""
        statuses = [self._reader.latest(table) for table in self.tables.values()]
        return any(status is not None and status.refused_under is not None for status in statuses)

    def _noted(self, result: dict[str, Any]) -> dict[str, Any]:
        self.lineage = replace(self.lineage, figures=outcome.figures_by_table(result))
        return result


def _refresh_document(
    source: Mapping[str, Any],
    settings: SourceSettings,
    streams: Sequence[str],
    target: str,
    options: Mapping[str, Any] | str | None,
    lake: LakeDocument,
    context: Context,
    moved: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The configuration of the Spark application; it holds the secrets of both connections.

    :param source: as it is shipped; what it says goes before the connection's settings
    :param moved: where the API was before, and is, if its connection was altered
    :raises ConfigurationError: field, problem and remedy
    """
    check_streams(list(streams), None)
    config = {**settings.config, **(source.get("config") or {})}
    document: dict[str, Any] = {
        "source": {**source, "config": config, "secrets": settings.secrets},
        "streams": list(streams),
        "target": target,
        "lake": {"name": lake.name, "properties": lake.properties},
        "options": parse_options(options_mapping(options)).model_dump(mode="json"),
        "run": {"key": run_key(context), "airflow": _airflow_run(context)},
    }
    if moved:
        document["run"]["moved"] = list(moved)
    parse_config(document)
    return document


def _airflow_run(context: Context) -> dict[str, Any]:
    """The part ``run.airflow`` of the refresh's document, which its commit's webhooks name."""
    ti = context["ti"]
    logical_date = context.get("logical_date")
    return {
        "dag_id": ti.dag_id,
        "dag_run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": -1 if ti.map_index is None else ti.map_index,
        "logical_date": rfc3339(logical_date) if isinstance(logical_date, datetime) else None,
    }


_RENDERERS = dict.fromkeys(("source", "streams", "options", "conf", "env_vars", "post_submit_commands"), "json")


class ResumableFullRefreshOperator(TellsLineage, SparkSubmitOperator):
    """Refresh tables from an API on Spark; an attempt that dies is resumed by the next one.

    A retry, and a clear of a refresh that was not published, go on at the page where the last attempt stopped. A
    clear of a published refresh starts a new one. Takes every argument of its parent, ``SparkSubmitOperator``.

    The connections are read in the task and inlined only in a file of mode 0600 that the driver gets.

    :param source: where the streams come from (templated but for ``definition``, which has templates of its own):
        one of ``class`` (``package.module:Name``), ``file`` (YAML, beside the DAG's file if relative) and
        ``definition``; with ``config``, which goes before the connection's settings
    :param streams: names of the streams; a list, or text with commas (templated)
    :param target: table to publish to, ``namespace.table``; ``{stream}`` stands for the stream's name (templated)
    :param options: see ``RefreshOptions``; unknown names are refused while the DAG is parsed (templated)
    :param api_conn_id: connection of type ``rfr_api``; None if the source needs none (templated)
    :param lake_conn_id: connection of type ``rfr_lake`` (templated)
    :param poll_interval: seconds between looks at the ledger while Spark runs; 2 at first
    :param checkpoint_store: where Airflow shows how far the refresh is, ``task_state``, ``variable`` or ``xcom``; what
        a retry reads again depends on the ledger alone
    :param keep_checkpoint: leave the checkpoint where it is once the tables are published
    :param deliver_after: a triggers block, or the path of a file with one: its webhooks are delivered right after the
        publish, and can't make the task fail
    :param deferrable: give the slot away while a driver in a cluster (YARN, Kubernetes) runs; the triggerer follows it
    :raises ConfigurationError: field, problem and remedy, while the DAG is parsed
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "source",
        "streams",
        "target",
        "options",
        "api_conn_id",
        "lake_conn_id",
    )
    template_fields_renderers = _RENDERERS
    operator_extra_links = (SparkUiLink(), RefreshLink())
    ui_color = "#dbeee8"

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
        self.is_published = False
        self._attempt: _Attempt | None = None
        self._load: Callable[[RefreshSparkHook], None] | None = None
        self._on_pages: Callable[[str], None] | None = None
        self._leaves = False
        self._left: DriverAddress | None = None
        if self.application_args and not self.application:
            raise ConfigurationError("application_args", "the refresh takes its settings from options", "use options")
        check_store(checkpoint_store)
        check_arguments(source, streams, target, options, dag_folder(self))
        if deliver_after is not None:
            check_triggers(deliver_after, dag_folder(self))
        self.outlets = [*self.outlets, *outlets_of(self.task_id, lake_conn_id, streams, target)]

    @property
    def stalled_tries(self) -> int | None:
        """Tries in a row, up to this one, that brought the refresh no further; None while that can't be told."""
        return None if self._attempt is None else self._attempt.keeper.stalled

    @property
    def lineage(self) -> Lineage | None:
        """What OpenLineage is told, as far as it is known."""
        return None if self._attempt is None else self._attempt.lineage

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Leave a source's inline definition alone: its templates are filled in by the refresh, page by page."""
        if isinstance(self.source, Mapping) and content is not None and content is self.source.get("definition"):
            return content
        return super().render_template(content, context, jinja_env, seen_oids)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit, follow, and return the figures: generation, snapshot id, pages, rows, pages re-fetched, attempts.

        :raises AirflowFailException: a retry would meet the same error
        :raises RfrError: a retry may help, and goes on where this attempt stopped
        :raises TaskDeferred: the triggerer follows from here; :meth:`execute_complete` goes on
        """
        return outcome.final(lambda: connection_use.in_touch(self, context, self._refresh), self.log.error)

    def look_again(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Refresh, if the table is not blocked any more."""
        return self.execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on where the triggerer has nothing more to wait for: the ledger says what became of the refresh.

        :raises Exception: as :meth:`execute`
        """
        return outcome.final(
            lambda: connection_use.going_on(context, lambda: self._go_on(context, event)), self.log.error
        )

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait here for a driver in a cluster, unless that is left to the triggerer."""
        hook = self._hook
        if not (self._leaves and isinstance(hook, RefreshSparkHook)):
            return super().poll_until_complete(external_id, context)
        hook.after_submit()
        self._left = hook.address_of(str(external_id))
        return None

    def on_kill(self) -> None:
        """Ask the driver to stop, which keeps what it has read, and end it if it takes too long."""
        hook = self._hook
        if isinstance(hook, RefreshSparkHook):
            with hook.driver_asked_to_stop(STOP_GRACE_SECONDS):
                super().on_kill()

    def _refresh(self, context: Context) -> dict[str, Any]:
        check_machine()
        lake = LakeHook(self.lake_conn_id).get_lake_document()
        document = self._document(context, lake)
        tables, options = tables_of(document["streams"], self.target), document["options"]
        if reason := webhooks.blocked(lake.name, tables.values()):
            self._wait(reason)
        lineage = Lineage(source_name(document["source"]), tables, options["mode"], lake)
        attempt = self._begin(context, lineage, options["replace_where"])
        with submit.private_folder() as folder, attempt.keeper, attempt.follower(self.log.info, self.poll_interval):
            self._load = partial(load_hook, folder, document)
            self._on_pages = partial(show_link, context, SparkUiLink())
            try:
                super().execute(context)
            except AirflowException:
                self._raise_failure()
                raise
        if self._left is not None:
            self._give_way(attempt, self._left)
        word = self._hook.last_word if isinstance(self._hook, RefreshSparkHook) else None
        return self._conclude(context, attempt, attempt.result(word))

    def _go_on(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        refresh, ending = DeferredRefresh.from_json(event["refresh"]), Ending.from_json(event)
        lake = LakeHook(refresh.lake_conn_id).get_lake_document()
        secrets = [*self._read_source(lake).secrets.values(), *lake.secrets()]
        attempt = self._begin(
            context, Lineage(refresh.source, refresh.tables, refresh.mode, lake), refresh.replace_where
        )
        attempt.keeper.go_on(refresh.before, refresh.stalled)
        driver = deferral.EndedDriver(refresh, ending, secrets)
        show_link(context, SparkUiLink(), driver.report.url)
        with attempt.keeper:
            result = attempt.published()
            if result is None:
                driver.forget(context.get("task_state_store"), self.external_id_key)
                raise driver.failure(refused=attempt.is_refused())
        driver.tidy()
        return self._conclude(context, attempt, result)

    def _begin(self, context: Context, lineage: Lineage, replace_where: str | None) -> _Attempt:
        self._hook, self._left, self._leaves, self.is_published = None, None, False, False
        # A published refresh that is cleared runs again: the parent's memory of a finished job is one run's only.
        self.external_id_key = f"{type(self).external_id_key}_{clear_number(context)}"
        self._attempt = _Attempt(context, lineage, replace_where, self.checkpoint_store)
        show_link(context, RefreshLink(), RefreshLink().get_link(self, ti_key=context["ti"]))
        return self._attempt

    def _conclude(self, context: Context, attempt: _Attempt, result: dict[str, Any]) -> dict[str, Any]:
        attempt.keeper.published(keep=self.keep_checkpoint)
        self.is_published = True
        figures = attempt.lineage.figures
        self.log.info("Published %s rows of %s pages to %s", result["rows"], result["pages"], ", ".join(figures))
        tell_assets(context, self.outlets, self.task_id, self.lake_conn_id, figures)
        if self._deliver_after is not None:
            webhooks.deliver(self, self._deliver_after, self.lake_conn_id, list(figures))
        return result

    def _wait(self, reason: str) -> None:
        self.log.warning("The refresh waits, and holds no slot: %s", reason)
        again = datetime.now(timezone.utc) + timedelta(seconds=webhooks.BLOCKED_SECONDS)
        self.defer(trigger=DateTimeTrigger(moment=again), method_name="look_again")

    def _give_way(self, attempt: _Attempt, driver: DriverAddress) -> None:
        refresh = attempt.deferred(driver, self.lake_conn_id)
        self.log.info("The driver %s runs in the cluster; this slot is free until it ends", driver.driver_id)
        deadline = deferral.deadline_of(self.execution_timeout)
        self.defer(
            trigger=RefreshTrigger(refresh.to_json(), self.poll_interval, deadline), method_name="execute_complete"
        )

    def _document(self, context: Context, lake: LakeDocument) -> dict[str, Any]:
        source, names = shipped_source(self.source, dag_folder(self)), stream_names(self.streams)
        settings, moved = self._read_source(lake), connection_use.moved(self.api_conn_id)
        return _refresh_document(source, settings, names, self.target, self.options, lake, context, moved)

    def _read_source(self, lake: LakeDocument) -> SourceSettings:
        """What the API's connection says; from here on Airflow masks the secrets of both connections."""
        settings = ApiHook(self.api_conn_id).get_source_config() if self.api_conn_id else SourceSettings({}, {})
        mask_secrets((*settings.secrets.values(), *lake.secrets()))
        return settings

    def _get_hook(self) -> RefreshSparkHook:
        """The hook with everything of this attempt; the parent asks for it once its own settings are complete."""
        remedy = "make one of type spark whose host is the master, e.g. local[*] or spark://host:7077"
        connection_named(self._conn_id, "conn_id", remedy)
        self.application = self.application or str(submit.application_path())
        hook = RefreshSparkHook.like(super()._get_hook())
        hook.on_pages = self._on_pages
        if self._load is not None:
            self._load(hook)
        if self.deferrable:
            self._leaves = deferral.prepare(hook, self._yarn_rm_auth)
        return hook

    def _raise_failure(self) -> None:
        """Say what failed, if it was the refresh; errors of the submit itself are the parent's."""
        hook = self._hook
        told = None
        if isinstance(hook, RefreshSparkHook):
            told = outcome.failure_of_driver(hook.last_word, hook.exit_code, hook.last_lines)
        if told is not None:
            raise told from None
