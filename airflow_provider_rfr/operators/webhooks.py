"""The operator that delivers commit webhooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.dag_folder import dag_folder
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.pending import is_pending
from airflow_provider_rfr.hooks.target_tables import table_names
from airflow_provider_rfr.hooks.webhooks import Triggers, WebhookHook, check_triggers

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.webhooks.delivery.tally import DeadDelivery

LONGEST_DEFERRAL = timedelta(minutes=15)
"""So that what was replayed, resumed or corrected meanwhile is not left waiting for the next long pause."""
_COUNTED = ("delivered", "failed", "dead")


class CommitWebhookOperator(BaseOperator):
    """Deliver what tables owe: notes the commits that nobody noted yet, and sends until nothing is pending.

    Every published commit is delivered at least once to every endpoint, whatever dies when, under the same id each
    time. Any number of these may run at once. Returns the counts of deliveries: noted, delivered, failed (attempts
    that were repeated), dead, pending.

    The block is no template, and neither stored nor shown by Airflow, so it may hold secrets; connections
    (``connection:``) and sealed files are the better place for them.

    :param triggers: a triggers block, or the path of a file with one, beside the DAG's file if relative (a path is
        templated)
    :param target: a table, several, or what a refresh returned, e.g. ``refresh.output``; None for every table that
        a refresh has published to (templated)
    :param lake_conn_id: connection of type ``rfr_lake`` (templated)
    :param control_store_conn_id: connection of the control store; None for the usual one (templated)
    :param start_from: for an endpoint that is new to a table: ``latest`` begins with its newest commit, ``earliest``
        with the oldest that there is
    :param wait: wait for retries and intervals until nothing is pending; else what is not delivered at once is left to
        the next run
    :param deferrable: wait in the triggerer, so that no worker slot is held between attempts
    :param slot_seconds: with ``deferrable``: seconds for which quick retries are waited for in the slot
    :param on_dead: called for each delivery that is given up, at least once
    :raises TriggerConfigError: every problem of the block, while the DAG is parsed
    :raises AirflowFailException: a delivery was given up whose endpoint says ``onFailure: block``
    :raises DeliveryError: commits of a table could not be read; what the others owe was delivered before
    """

    template_fields: Sequence[str] = (
        "triggers_file",
        "target",
        "lake_conn_id",
        "control_store_conn_id",
        "start_from",
    )
    ui_color = "#dbeee8"

    def __init__(
        self,
        *,
        triggers: Triggers,
        target: str | Sequence[str] | Mapping[str, Any] | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        start_from: str = "latest",
        wait: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        slot_seconds: float = 30.0,
        on_dead: Callable[[DeadDelivery], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.triggers_file = str(triggers) if isinstance(triggers, (str, Path)) else None
        self._block = None if isinstance(triggers, (str, Path)) else triggers
        self.target = target
        self.lake_conn_id = lake_conn_id
        self.control_store_conn_id = control_store_conn_id
        self.start_from = start_from
        self.wait = wait
        self.deferrable = deferrable
        self.slot_seconds = slot_seconds
        self.on_dead = on_dead
        self._hook: WebhookHook | None = None
        if not (isinstance(triggers, str) and is_pending(triggers)):
            check_triggers(triggers, dag_folder(self))
        if target is not None and not is_pending(target):
            table_names(target)
        if not is_pending(start_from):
            _check_start(start_from)

    def execute(self, context: Context) -> dict[str, int]:
        """Note and deliver."""
        return self._go(dict.fromkeys(("noted", *_COUNTED), 0), [])

    def resume(
        self, context: Context, event: Any, counts: Mapping[str, int], blocking: Sequence[str]
    ) -> dict[str, int]:
        """Go on after a pause between attempts."""
        return self._go(counts, blocking)

    def on_kill(self) -> None:
        """Claim nothing more; what is claimed and not sent goes back."""
        if self._hook is not None:
            self._hook.stop()

    def _go(self, before: Mapping[str, int], blocking: Sequence[str]) -> dict[str, int]:
        _check_start(self.start_from)
        hook = self._hook = self._new_hook()
        tables = hook.all_tables() if self.target is None else table_names(self.target)
        noted = hook.enrol(tables, "earliest" if self.start_from == "earliest" else "latest")
        tally = hook.deliver(tables, patience=self._patience(), on_dead=self.on_dead)
        counts = {name: before[name] + getattr(tally, name) for name in _COUNTED}
        counts["noted"] = before["noted"] + noted
        for failure in tally.failures:
            self.log.error("Given up: %s", failure)
        blocking = [*blocking, *(str(failure) for failure in tally.failures if failure.on_failure == "block")]
        if self.wait and self.deferrable and tally.next_due is not None:
            self._defer_until(tally.next_due, {"counts": counts, "blocking": blocking})
        if blocking:
            raise AirflowFailException(
                f"{'; '.join(blocking)}; the next refresh of the table waits until the delivery is replayed or"
                " cancelled (airflow rfr triggers replay | cancel)"
            )
        hook.raise_unread()
        return {**counts, "pending": tally.pending}

    def _new_hook(self) -> WebhookHook:
        return WebhookHook(
            self._block or self.triggers_file or "",
            self.lake_conn_id,
            self.control_store_conn_id,
            folder=dag_folder(self),
        )

    def _patience(self) -> float | None:
        if not self.wait:
            return 0.0
        return self.slot_seconds if self.deferrable else None

    def _defer_until(self, moment: datetime, state: Mapping[str, Any]) -> None:
        latest = datetime.now(timezone.utc) + LONGEST_DEFERRAL
        self.log.info("The next attempt is due at %s; the slot is free until then", moment.isoformat())
        self.defer(trigger=DateTimeTrigger(moment=min(moment, latest)), method_name="resume", kwargs=dict(state))


def _check_start(start_from: str) -> None:
    if start_from not in ("latest", "earliest"):
        raise ConfigurationError("start_from", f"{start_from!r} is unknown", "write latest or earliest")
