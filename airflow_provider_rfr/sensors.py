"""A sensor that waits for a commit of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSensorTimeout
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_rfr.connections.airflow.lookup import read_connection
from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError
from airflow_provider_rfr.hooks.dag_arguments import calling_folder, file_folders, is_pending, table_names
from airflow_provider_rfr.hooks.lake import CommitsReader, LakeHook, snapshots_of
from airflow_provider_rfr.hooks.webhooks import Triggers, WebhookHook, check_triggers
from airflow_provider_rfr.lake.commit_event import rfc3339
from airflow_provider_rfr.triggers import CommitReachedTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_AFTER_THE_RUN = 'write e.g. after="{{ dag_run.run_after }}", for commits later than the run'


class CommitSensor(BaseSensorOperator):
    """A sensor that waits until tables are committed to, or until they have pending webhooks. It holds no worker slot.

    The task returns the newest commit by table: snapshot id, sequence, time, and the refresh's own figures if it was
    one. With ``triggers`` it returns the number of pending deliveries.

    Airflow's scheduler may fail a sensor in mode ``reschedule`` that pokes very often, so deferring is the default.

    :param target: a table, several, or the return value of a refresh, e.g. ``refresh.output`` (templated)
    :param after: a time in ISO format (templated); only later commits count. By default, a run that is scheduled or of
        a backfill waits for a commit later than its ``run_after``, and a run that asset events started waits for the
        commits that these name, or later ones. Required for any other run, e.g. ``"{{ dag_run.run_after }}"``
    :param triggers: a triggers block, or the path of a file with one: wait until any of the tables has a delivery
        pending to one of its endpoints; ``after`` is ignored then
    :param lake_conn_id: connection of type ``rfr_lake`` (templated)
    :param control_store_conn_id: connection of the control store, for ``triggers``; None for the default one
    :param deferrable: wait in the triggerer
    :param poke_interval: seconds between two checks
    :raises ConfigurationError: ``after`` is missing or not a time, or the name of a table is invalid
    """

    template_fields: Sequence[str] = ("target", "after", "lake_conn_id")
    ui_color = "#dbeee8"

    def __init__(
        self,
        *,
        target: str | Sequence[str] | Mapping[str, Any],
        after: str | datetime | None = None,
        triggers: Triggers | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        deferrable: bool = True,
        poke_interval: float | timedelta = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.target = target
        self.after = after
        self.lake_conn_id = lake_conn_id
        self.deferrable = deferrable
        self.control_store_conn_id = control_store_conn_id
        self._triggers = triggers
        self._calling_folder = calling_folder()
        if triggers is not None:
            check_triggers(triggers, file_folders(self))
        elif after is None and self._dag is not None and self._dag.schedule is None:
            raise ConfigurationError("after", "is missing, and the DAG has no schedule that says it", _AFTER_THE_RUN)
        if not is_pending(target):
            table_names(target)

    def execute(self, context: Context) -> Any:
        """Check once, then wait in the triggerer, or in the worker if the sensor is not deferrable."""
        reader = None
        if self._triggers is None:
            reader = self._reader()
            self.log.info("Waiting for %s", self._awaited(context, reader))
        if not self.deferrable:
            with self._timeout_explained(context):
                return super().execute(context)
        if reader is None:
            # One deadline for the whole wait, however many deferrals it takes.
            deadline = datetime.now(timezone.utc) + timedelta(seconds=self.timeout)
            return self.check_again(context, None, deadline.isoformat())
        commits = self._newest_commits(context, reader)
        if commits is None:
            after, snapshots = self._due(context)
            trigger = CommitReachedTrigger(
                table_names(self.target), after.isoformat(), snapshots, self.lake_conn_id, self.poke_interval
            )
            timeout = timedelta(seconds=self.timeout)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)
        return commits

    def check_again(self, context: Context, event: Any, deadline: str) -> Any:
        """Return the number of pending deliveries, or defer once more.

        :param deadline: a time in ISO format
        :raises AirflowSensorTimeout: the deadline has passed
        """
        pending = self._count_pending()
        if not pending:
            now = datetime.now(timezone.utc)
            if now >= datetime.fromisoformat(deadline):
                raise AirflowSensorTimeout(f"no delivery was pending within {self.timeout:.0f} seconds")
            # Airflow stores the arguments of triggers, and the block may hold secrets, so the task itself checks again.
            again = DateTimeTrigger(moment=now + timedelta(seconds=max(self.poke_interval, 1.0)))
            self.defer(trigger=again, method_name="check_again", kwargs={"deadline": deadline})
        return pending

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral."""
        with self._timeout_explained(context):
            return super().resume_execution(next_method, next_kwargs, context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the commits that the trigger found."""
        return event["commits"]

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once for the commits, or for pending deliveries."""
        result: Any = self._newest_commits(context, self._reader()) if self._triggers is None else self._count_pending()
        return PokeReturnValue(is_done=bool(result), xcom_value=result)

    def _count_pending(self) -> int:
        assert self._triggers is not None
        hook = WebhookHook(self._triggers, self.lake_conn_id, self.control_store_conn_id, task=self)
        return hook.count_pending(table_names(self.target))

    def _newest_commits(self, context: Context, reader: CommitsReader) -> dict[str, Any] | None:
        return reader.newest_after(table_names(self.target), *self._due(context))

    def _reader(self) -> CommitsReader:
        return CommitsReader(read_connection(self.lake_conn_id))

    @contextmanager
    def _timeout_explained(self, context: Context) -> Iterator[None]:
        """Add the awaited commits to the message of a timeout."""
        try:
            yield
        except AirflowSensorTimeout as timeout:
            if self._triggers is not None:
                raise
            problem = f"not within {self.timeout:.0f} seconds: {self._awaited(context, self._reader())}"
            raise AirflowSensorTimeout(problem) from timeout

    def _awaited(self, context: Context, reader: CommitsReader) -> str:
        """Describe the awaited commits and the newest ones, for logs and errors."""
        tables, (after, snapshots) = table_names(self.target), self._due(context)
        newest = []
        try:
            for table in tables:
                text = f"{table}: none"
                if (commit := reader.newest(table)) is not None:
                    committed_at = rfc3339(datetime.fromisoformat(commit["committed_at"]))
                    text = f"{commit['table']} at {committed_at}, snapshot {commit['snapshot_id']}"
                newest.append(text)
        except CatalogError:
            newest = ["can't be read now"]
        since = f"from snapshot {', '.join(snapshots.values())} on" if snapshots else f"after {rfc3339(after)}"
        return f"commits of {', '.join(tables)} {since} (newest: {'; '.join(newest)})"

    def _due(self, context: Context) -> tuple[datetime, dict[str, str]]:
        """Return the time after which commits count, and by table a snapshot that counts whatever its time.

        :raises ConfigurationError: ``after`` is not a time, or is missing in a run that requires it
        """
        run = context["dag_run"]
        if self.after:
            after = self.after
            if isinstance(after, str):
                try:
                    after = datetime.fromisoformat(after.strip().replace("Z", "+00:00"))
                except ValueError:
                    problem, remedy = f"{after!r} is not a time in ISO format", "write e.g. 2026-01-31T00:00:00+00:00"
                    raise ConfigurationError("after", problem, remedy) from None
            # A time without a zone is in UTC.
            return after if after.tzinfo else after.replace(tzinfo=timezone.utc), {}
        if run.run_type in ("scheduled", "backfill"):
            return run.run_after, {}
        tables = table_names(self.target)
        by_asset = context.get("triggering_asset_events") or {}
        events = [event for events in by_asset.values() for event in events]
        snapshots = snapshots_of(events, tables, self.lake_conn_id)
        missing = ", ".join(table for table in tables if table not in snapshots)
        if missing:
            problem = f"this run was not scheduled, and none of its asset events has a commit of {missing}"
            raise ConfigurationError("after", problem, _AFTER_THE_RUN)
        return run.run_after, snapshots
