"""The operator of a resumable full refresh."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, Asset
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.api import ApiHook
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.spark import RefreshSubmitHook
from airflow_provider_rfr.lake.catalog import LakeSettings, check_identifier
from airflow_provider_rfr.operators.following import LedgerFollower
from airflow_provider_rfr.operators.outcome import DriverOutput
from airflow_provider_rfr.operators.shipping import application_path, package_zip, shipped_config
from airflow_provider_rfr.preflight import check_java, check_pyspark
from airflow_provider_rfr.refresh.config import parse_config, parse_options
from airflow_provider_rfr.refresh.jvm import driver_java_options
from airflow_provider_rfr.refresh.watchdog import process_started
from airflow_provider_rfr.streams.loader import inline_source

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

STATE_KEY = "rfr"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


class ResumableFullRefreshOperator(SparkSubmitOperator):
    """Refresh tables from an API; a try that dies is gone on with by the next.

    .. seealso:: docs/operator.md

    :param source: where the streams come from: ``{"class": "pkg.module:Name"}``, ``{"file": "source.yaml"}`` or
        ``{"definition": {...}}``, with ``config`` (templated)
    :param streams: names of the streams to refresh, one after another (templated)
    :param target: table to publish to, ``namespace.table``; several streams need ``{stream}`` in it (templated)
    :param api_conn_id: connection of type ``rfr_api``; its fields go into the source's config, its secrets only into
        the file that is shipped to the driver
    :param lake_conn_id: connection of type ``rfr_lake``
    :param options: see :class:`airflow_provider_rfr.refresh.config.RefreshOptions` (templated)
    :param poll_interval: seconds between two looks at the ledger, for the log and the checkpoint
    :param kwargs: every argument of ``SparkSubmitOperator``
    :raises ConfigurationError: while the DAG is parsed: an argument is wrong, and what to write instead

    Returns generation, snapshot id, counts, pages fetched twice and attempts.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "source", "streams", "target", "options")
    template_fields_renderers = {
        **getattr(SparkSubmitOperator, "template_fields_renderers", {}),
        "source": "json",
        "options": "json",
    }
    ui_color = "#b3e0d5"

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        streams: Sequence[str] | str,
        target: str,
        api_conn_id: str | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        options: Mapping[str, Any] | None = None,
        poll_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "rfr-full-refresh")
        super().__init__(**kwargs)
        self.source = source
        self.streams = streams
        self.target = target
        self.api_conn_id = api_conn_id
        self.lake_conn_id = lake_conn_id
        self.options = options
        self.poll_interval = poll_interval
        check_arguments(source, streams, target, options)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Ship the configuration, submit, follow the ledger; on a retry the driver goes on where the last one ended."""
        check_pyspark()
        lake = LakeHook(self.lake_conn_id).get_lake_settings()
        document = self._document(context, lake)
        config = parse_config(document, f"task {self.task_id}")
        targets = [config.target_of(stream) for stream in config.streams]
        output = DriverOutput()
        with shipped_config(document) as path:
            self._hook = self._submit_hook(path, output)
            checkpoint = self._checkpoint(context)
            with LedgerFollower(lake, targets, checkpoint=checkpoint, log=self.log, poll_seconds=self.poll_interval):
                try:
                    super().execute(context)
                except AirflowException as error:
                    raise output.error(_first_line(error)) from None
        if "error" in output.figures:
            raise output.error("the refresh failed")
        return self._succeed(context, output.result(), lake.name, targets)

    def on_kill(self) -> None:
        """Let the driver commit what it has, then end it."""
        if isinstance(self._hook, RefreshSubmitHook):
            self._hook.ask_driver_to_stop()
        super().on_kill()

    def _document(self, context: Context, lake: LakeSettings) -> dict[str, Any]:
        source = dict(inline_source(dict(self.source)))
        if self.api_conn_id is not None:
            config, secrets = ApiHook(self.api_conn_id).get_source_config()
            source["config"] = {**config, **dict(source.get("config") or {})}
            source["secrets"] = {**secrets, **dict(source.get("secrets") or {})}
        streams = [self.streams] if isinstance(self.streams, str) else list(self.streams)
        return {
            "source": source,
            "streams": streams,
            "target": self.target,
            "lake": {"name": lake.name, "properties": dict(lake.properties)},
            "options": dict(self.options or {}),
            "run": {"key": run_key(context), "supervisor": supervisor()},
        }

    def _submit_hook(self, path: Path, output: DriverOutput) -> SparkSubmitHook:
        self.application = self.application or application_path()
        local = False
        hook = RefreshSubmitHook.listening(self._get_hook(), output.listen)
        if hook.master.startswith("local"):
            local = True
            check_java()
        self._place_config(path, cluster=hook.deploy_mode == "cluster", local=local)
        hook = RefreshSubmitHook.listening(self._get_hook(), output.listen)
        if local:
            hook.use_local_python()
        return hook

    def _place_config(self, path: Path, *, cluster: bool, local: bool) -> None:
        """Hand the file to the driver: by its path where the driver runs here, by ``--files`` where it does not."""
        files, py_files, conf = self._given()
        self.application_args = ["--config", path.name if cluster else str(path)]
        if cluster:
            files.append(str(path))
        if not local:
            py_files.append(package_zip(path.parent))
        else:
            given = str(conf.get(JAVA_OPTIONS) or "").split()
            conf[JAVA_OPTIONS] = " ".join([*driver_java_options(), *given])
            conf.setdefault("spark.driver.host", "127.0.0.1")
            conf.setdefault("spark.driver.bindAddress", "127.0.0.1")
        conf.setdefault("spark.ui.enabled", "false")
        self.files, self.py_files, self.conf = ",".join(files) or None, ",".join(py_files) or None, conf

    def _given(self) -> tuple[list[str], list[str], dict[Any, Any]]:
        files = [name for name in (self.files or "").split(",") if name]
        py_files = [name for name in (self.py_files or "").split(",") if name]
        return files, py_files, dict(self.conf or {})

    def _checkpoint(self, context: Context) -> Any:
        store = context.get("task_state_store")

        def keep(progress: dict[str, Any]) -> None:
            if store is None:
                return
            from airflow.sdk.execution_time.context import NEVER_EXPIRE

            try:
                store.set(STATE_KEY, {"version": 1, "targets": progress}, retention=NEVER_EXPIRE)  # type: ignore[attr-defined]
            except Exception as error:  # noqa: BLE001 - a display that can't be written stops no refresh
                self.log.warning("the checkpoint could not be stored: %s", type(error).__name__)

        return keep

    def _succeed(
        self, context: Context, result: dict[str, Any], catalog: str, targets: Sequence[str]
    ) -> dict[str, Any]:
        events = context.get("outlet_events")
        figures = {entry["target"]: entry for entry in result.get("streams") or [result] if "target" in entry}
        for target in targets:
            asset = table_asset(catalog, target)
            if events is not None and asset in (self.outlets or []):
                events[asset].extra = {key: value for key, value in figures.get(target, {}).items() if key != "seconds"}
        self.log.info("published %s rows as generation %s", result.get("rows"), result.get("generation"))
        return result


def check_arguments(source: Any, streams: Any, target: Any, options: Mapping[str, Any] | None) -> None:
    """Refuse while the DAG is parsed what is wrong already; templates are checked when they are rendered."""
    if isinstance(source, Mapping):
        origins = [name for name in ("class", "file", "definition") if name in source]
        if len(origins) != 1:
            raise ConfigurationError("source", f"names {len(origins)} origins", "name one of class, file, definition")
        unknown = sorted(set(source) - {"class", "file", "definition", "config", "secrets"})
        if unknown:
            raise ConfigurationError(f"source.{unknown[0]}", "unknown", "known are class, file, definition, config")
        if "secrets" in source:
            raise ConfigurationError("source.secrets", "would stand in the DAG", "put secrets in the API connection")
    if not streams:
        raise ConfigurationError("streams", "is empty", "name at least one stream")
    if isinstance(target, str) and "{{" not in target:
        check_identifier(target.replace("{stream}", "stream"))
        if not isinstance(streams, str) and len(streams) > 1 and "{stream}" not in target:
            raise ConfigurationError("target", "is one table for several streams", "write e.g. raw.{stream}")
    if options and not any(isinstance(value, str) and "{{" in value for value in options.values()):
        parse_options(options)


def table_asset(catalog: str, target: str) -> Asset:
    """The published table as an Airflow asset."""
    return Asset(name=f"{catalog}.{target}", uri=f"rfr://{catalog}/{target.replace('.', '/')}")


def run_key(context: Context) -> str:
    """Names a run of a task, the same over its retries, another one once the run was cleared."""
    ti, dag_run = context["ti"], context["dag_run"]
    clear = getattr(dag_run, "clear_number", 0) or 0
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{clear}"


def supervisor() -> dict[str, Any]:
    """This process, as the driver watches it."""
    return {"pid": os.getpid(), "started": process_started(os.getpid()) or 0, "host": socket.gethostname()}


def _first_line(error: Exception) -> str:
    return f"spark-submit failed: {str(error).splitlines()[0][:500]}"
