"""The operator of a resumable full refresh."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.log import mask_secret

from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError
from airflow_provider_rfr.hooks.api import ApiHook
from airflow_provider_rfr.hooks.fields import connection_named
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.spark import RefreshSparkHook
from airflow_provider_rfr.operators import environment, outcome, shipment
from airflow_provider_rfr.operators.arguments import (
    check_arguments,
    check_streams,
    options_mapping,
    shipped_source,
    stream_names,
    tables_of,
)
from airflow_provider_rfr.operators.assets import outlets_of, tell_assets
from airflow_provider_rfr.operators.checkpoints import CheckpointKeeper, check_store, open_store
from airflow_provider_rfr.operators.checkpoints.stores import TaskKey
from airflow_provider_rfr.operators.follower import LedgerFollower
from airflow_provider_rfr.operators.ledger_reader import LedgerReader
from airflow_provider_rfr.refresh.config import parse_config, parse_options
from airflow_provider_rfr.refresh.watchdog import process_started

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_provider_rfr.hooks.lake import LakeDocument

STOP_GRACE_SECONDS = 3.5
"""Airflow ends a task hard five seconds after it asked it to stop."""


class ResumableFullRefreshOperator(SparkSubmitOperator):
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
    template_fields_renderers = {"source": "json", "options": "json", "conf": "json", "env_vars": "json"}  # noqa: RUF012
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
        self._keeper: CheckpointKeeper | None = None
        self._load: partial[None] | None = None
        if self.application_args and not self.application:
            raise ConfigurationError("application_args", "the refresh takes its settings from options", "use options")
        check_store(checkpoint_store)
        check_arguments(source, streams, target, options, self._dag_folder())
        self.outlets = [*self.outlets, *outlets_of(self.task_id, lake_conn_id, streams, target)]

    @property
    def stalled_tries(self) -> int | None:
        """Tries in a row, up to this one, that brought the refresh no further; None while that can't be told."""
        return None if self._keeper is None else self._keeper.stalled

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
        """
        try:
            return self._refresh(context)
        except (ConfigurationError, PreflightError) as error:
            raise AirflowFailException(outcome.one_line(str(error))) from None

    def on_kill(self) -> None:
        """Ask the driver to stop, which keeps what it has read, and end it if it takes too long."""
        hook = self._hook
        if not isinstance(hook, RefreshSparkHook):
            return
        drivers = hook.driver_processes()
        for driver in drivers:
            self.log.info("Asking the Spark driver (process %s) to stop", driver.pid)
            driver.terminate()
        if drivers:
            hook.wait(STOP_GRACE_SECONDS)
        super().on_kill()
        for driver in drivers:
            if driver.is_running():
                driver.kill()

    def _refresh(self, context: Context) -> dict[str, Any]:
        environment.check_machine()
        lake = LakeHook(self.lake_conn_id).get_lake_document()
        document = self._document(context, lake)
        tables = tables_of(document["streams"], self.target)
        self._hook = None
        # A published refresh that is cleared runs again: the parent's memory of a finished job is one run's only.
        self.external_id_key = f"{type(self).external_id_key}_{_clear_number(context)}"
        reader = LedgerReader(lake, document["options"].get("replace_where"))
        keeper = self._keeper = self._checkpoint_keeper(context, reader)
        follower = self._follower(tuple(tables.values()), reader, keeper)
        with shipment.private_folder() as folder, keeper, follower:
            self._load = partial(self._load_hook, folder, document)
            try:
                super().execute(context)
            except AirflowException:
                self._raise_failure()
                raise
        result = self._result(reader, tables)
        keeper.published(keep=self.keep_checkpoint)
        self.log.info(
            "Published %s rows of %s pages to %s", result["rows"], result["pages"], ", ".join(tables.values())
        )
        tell_assets(context, self.outlets, self.task_id, self.lake_conn_id, outcome.figures_by_table(result))
        return result

    def _document(self, context: Context, lake: LakeDocument) -> dict[str, Any]:
        """The configuration of the Spark application; it holds the secrets of both connections."""
        source = shipped_source(self.source, self._dag_folder())
        config, secrets = dict(source.get("config") or {}), {}
        if self.api_conn_id:
            settings = ApiHook(self.api_conn_id).get_source_config()
            config, secrets = {**settings.config, **config}, settings.secrets
        for value in (*secrets.values(), *lake.secrets()):
            mask_secret(value)
        names = stream_names(self.streams)
        check_streams(names, None)
        document = {
            "source": {**source, "config": config, "secrets": secrets},
            "streams": names,
            "target": self.target,
            "lake": {"name": lake.name, "properties": lake.properties},
            "options": parse_options(options_mapping(self.options)).model_dump(mode="json"),
            "run": {"key": run_key(context)},
        }
        parse_config(document)
        return document

    def _checkpoint_keeper(self, context: Context, reader: LedgerReader) -> CheckpointKeeper:
        return CheckpointKeeper(
            open_store(self.checkpoint_store, context),
            str(TaskKey.of(context)),
            details=reader.details,
            known=lambda: reader.is_complete,
            first=getattr(context["ti"], "try_number", 1) == 1,
        )

    def _follower(self, tables: tuple[str, ...], reader: LedgerReader, keeper: CheckpointKeeper) -> LedgerFollower:
        return LedgerFollower(
            tables,
            reader.status,
            recall=keeper.recall,
            remember=keeper.remember,
            tell=self.log.info,
            poll_interval=self.poll_interval,
        )

    def _get_hook(self) -> RefreshSparkHook:
        """The hook with everything of this attempt; the parent asks for it once its own settings are complete."""
        connection_named(
            self._conn_id,
            "conn_id",
            "make one of type spark whose host is the master, e.g. local[*] or spark://host:7077",
        )
        self.application = self.application or str(shipment.application_path())
        hook = RefreshSparkHook.like(super()._get_hook())
        if self._load is not None:
            self._load(hook)
        return hook

    def _load_hook(self, folder: Path, document: dict[str, Any], hook: RefreshSparkHook) -> None:
        if not hook.can_run_python:
            raise ConfigurationError(
                "deploy_mode",
                "a standalone cluster runs no Python driver",
                "use client, which leaves it to this worker",
            )
        run = dict(document["run"])
        if not hook.in_cluster:
            run["supervisor"] = supervisor()
        path = shipment.write_config(folder, {**document, "run": run})
        hook.carry(path, None if hook.is_local else shipment.zip_package(folder))
        environment.prepare(hook, document["source"])

    def _raise_failure(self) -> None:
        """Say what failed, if it was the refresh; errors of the submit itself are the parent's."""
        hook = self._hook
        if not isinstance(hook, RefreshSparkHook):
            return
        word = hook.last_word
        if word is not None and "error" in word:
            errors = word.get("errors") or [word["error"]]
            raise outcome.failure_of(outcome.decisive(errors), len(errors) - 1) from None
        if hook.exit_code:
            raise outcome.silent_failure(hook.exit_code, hook.last_lines) from None

    def _result(self, reader: LedgerReader, tables: Mapping[str, str]) -> dict[str, Any]:
        word = self._hook.last_word if isinstance(self._hook, RefreshSparkHook) else None
        if word is not None:
            return outcome.result_of(word)
        found = {table: reader.status(table) for table in tables.values()}
        return outcome.result_of_ledger(
            tables, {table: status for table, status in found.items() if status is not None}
        )

    def _dag_folder(self) -> Path | None:
        fileloc = self._dag.fileloc if self._dag is not None else None
        return Path(fileloc).parent if fileloc else None


def run_key(context: Context) -> str:
    """Names one run of one task: the same over its retries, another one after a clear."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{_clear_number(context)}"


def supervisor() -> dict[str, Any]:
    """This process, which the driver must not outlive."""
    return {"pid": os.getpid(), "started": process_started(os.getpid()) or 0, "host": socket.gethostname()}


def _clear_number(context: Context) -> int:
    """Tries of this task before its last clear; a run's ``clear_number`` counts the clears of other tasks, too."""
    ti = context["ti"]
    return max(0, int(getattr(ti, "max_tries", 0) or 0) - int(getattr(context.get("task"), "retries", 0) or 0))
