"""A sensor that waits for a commit of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.commits import CommitsReader
from airflow_provider_rfr.hooks.common import read_connection
from airflow_provider_rfr.hooks.dag_arguments import dag_folder, is_pending, table_names
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.webhooks import Triggers, WebhookHook, check_triggers
from airflow_provider_rfr.triggers.commit import CommitReachedTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class CommitSensor(BaseSensorOperator):
    """Wait until tables are committed to, or until they have pending webhooks; no worker slot is held meanwhile.

    Returns the newest commit by table: snapshot id, sequence, time, and the refresh's own figures if it was one. With
    ``triggers`` it returns the number of pending deliveries.

    Airflow's scheduler may fail a sensor in mode ``reschedule`` that looks very often, so deferring is the default.

    :param target: a table, several, or what a refresh returned, e.g. ``refresh.output`` (templated)
    :param after: commits later than this count: a time in ISO format (templated). Default: the time from which the
        run is due, so that a scheduled run waits for a commit of its own period
    :param triggers: a triggers block, or the path of a file with one: wait until any of the tables has a delivery
        pending to one of its endpoints; ``after`` does not matter then
    :param lake_conn_id: connection of type ``rfr_lake`` (templated)
    :param control_store_conn_id: connection of the control store, for ``triggers``; None for the usual one
    :param deferrable: wait in the triggerer
    :param poke_interval: seconds between two checks
    :raises ConfigurationError: ``after`` is not a time, or the name of a table is invalid
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
        if triggers is not None:
            check_triggers(triggers, dag_folder(self))
        if not is_pending(target):
            table_names(target)

    def execute(self, context: Context) -> Any:
        """Check once; then wait in the triggerer, or here."""
        if not self.deferrable:
            return super().execute(context)
        if self._triggers is not None:
            # From here on the deadline is the whole wait's, whatever number of deferrals it takes.
            deadline = datetime.now(timezone.utc) + timedelta(seconds=self.timeout)
            return self.check_again(context, None, deadline.isoformat())
        found = self._newest_commits(context)
        if found is None:
            trigger = CommitReachedTrigger(
                table_names(self.target), self._after(context).isoformat(), self.lake_conn_id, self.poke_interval
            )
            timeout = timedelta(seconds=self.timeout)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)
        return found

    def check_again(self, context: Context, event: Any, deadline: str) -> Any:
        """The number of pending deliveries, or one more deferral."""
        pending = self._count_pending()
        if not pending:
            now = datetime.now(timezone.utc)
            if now >= datetime.fromisoformat(deadline):
                raise AirflowSensorTimeout(f"no delivery was pending within {self.timeout:.0f} seconds")
            # The block may hold secrets, and arguments of triggers are stored. So the task itself checks again.
            again = DateTimeTrigger(moment=now + timedelta(seconds=max(self.poke_interval, 1.0)))
            self.defer(trigger=again, method_name="check_again", kwargs={"deadline": deadline})
        return pending

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """The commits that the trigger found."""
        return event["commits"]

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether every table has a commit late enough."""
        found: Any = self._newest_commits(context) if self._triggers is None else self._count_pending()
        return PokeReturnValue(is_done=bool(found), xcom_value=found)

    def _count_pending(self) -> int:
        assert self._triggers is not None
        hook = WebhookHook(self._triggers, self.lake_conn_id, self.control_store_conn_id, task=self)
        return hook.count_pending(table_names(self.target))

    def _newest_commits(self, context: Context) -> dict[str, Any] | None:
        reader = CommitsReader(read_connection(self.lake_conn_id))
        return reader.newest_after(table_names(self.target), self._after(context))

    def _after(self, context: Context) -> datetime:
        wanted = self.after or context["dag_run"].run_after
        if isinstance(wanted, str):
            try:
                wanted = datetime.fromisoformat(wanted.strip().replace("Z", "+00:00"))
            except ValueError:
                raise ConfigurationError(
                    "after", f"{wanted!r} is not a time in ISO format", "write e.g. 2026-01-31T00:00:00+00:00"
                ) from None
        moment: datetime = wanted if wanted.tzinfo else wanted.replace(tzinfo=timezone.utc)
        return moment
