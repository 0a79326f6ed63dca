"""Operators of webhooks: deliver the webhooks of commits, and try, replay, cancel, pause or resume by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, conf
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseOperator

from airflow_provider_rfr.compat import AirflowRescheduleException
from airflow_provider_rfr.exceptions import ConfigurationError, DeliveryError, RfrError
from airflow_provider_rfr.hooks.api import http_settings
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.dag_arguments import calling_folder, file_folders, has_result, is_pending, table_names
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.webhooks import Triggers, WebhookHook, check_triggers, configured_hosts
from airflow_provider_rfr.operators._outcome import final_errors

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_provider_rfr.store.engine import ControlStore
    from airflow_provider_rfr.webhooks.operations import DeadLetter, DeliverySummary, FailedDelivery


log = logging.getLogger(__name__)

_LONGEST_PAUSE = timedelta(minutes=15)
"""The longest pause between attempts: deliveries that were replayed or resumed meanwhile do not wait for longer."""
_COUNTED = ("delivered", "failed", "dead")
_MOST_SHOWN = 10


class CommitWebhookOperator(BaseOperator):
    """Deliver the webhooks of tables: enqueue deliveries for new commits, and send until nothing is pending.

    Every published commit is delivered at least once to every endpoint, whatever process dies, under the same id each
    time. Any number of these tasks may run at once. Returns the counts of deliveries: enqueued, delivered, failed
    (attempts that were repeated), dead, pending.

    Once all due deliveries have been sent, the task fails, without a retry, if a delivery was given up whose endpoint
    says ``onFailure: block``, if a setting is wrong (a private address, a connection that is not there), and with
    ``fail_on_dead`` if any delivery was given up. The data is published all the same, and deliveries that wait for
    their next attempt are left to the next run.

    A block in the DAG's file is not a template, but the file is stored in Airflow's database and shown under *Code*,
    addresses and headers included. Secrets belong into connections (``connection:``) or a sealed file.

    :param triggers: a triggers block, or the path of a file with one, next to the DAG's file if relative (a path is
        templated)
    :param target: a table, several, or what a refresh returned, e.g. ``refresh.output``; None for every table that
        a refresh has published to (templated). Where that refresh failed, and so returned nothing, the tables are
        those that the block's endpoints know from earlier runs
    :param lake_conn_id: connection of type ``rfr_lake`` (templated)
    :param control_store_conn_id: connection of the control store; None for the default (templated)
    :param start_from: for an endpoint that is new to a table: ``latest`` begins with its newest commit, ``earliest``
        with the oldest that there is
    :param wait: wait for retries and intervals until nothing is pending; else deliveries that are not made within
        ``slot_seconds`` are left to the next run
    :param deferrable: wait in the triggerer; else the task is rescheduled for the next attempt, and its counts begin
        at 0 again. No worker slot is held between attempts either way
    :param slot_seconds: seconds to wait for quick retries in the slot
    :param on_dead: called for each delivery that is given up, at least once; if it raises, the task fails, and it is
        called for that delivery again
    :param fail_on_dead: fail the task for each delivery that is given up, those of ``onFailure: ignore`` excepted; also
        for deliveries that a refresh gave up right after its publish
    :raises TriggerConfigError: every problem of the block, while the DAG is parsed
    :raises AirflowFailException: a delivery was given up or refused, as above
    :raises DeliveryError: commits of a table could not be read, or ``on_dead`` raised; the rest was delivered before
    """

    template_fields: Sequence[str] = ("triggers_file", "target", "lake_conn_id", "control_store_conn_id", "start_from")
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
        on_dead: Callable[[DeadLetter], None] | None = None,
        fail_on_dead: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.triggers_file = str(triggers) if isinstance(triggers, (str, Path)) else None
        self._block = None if isinstance(triggers, (str, Path)) else triggers
        self.target = target
        # A refresh that failed has returned None, which must not be taken for "every table of the lake".
        self._is_of_upstream = not isinstance(target, str) and is_pending(target)
        self.lake_conn_id = lake_conn_id
        self.control_store_conn_id = control_store_conn_id
        self.start_from = start_from
        self.wait = wait
        self.deferrable = deferrable
        self.slot_seconds = slot_seconds
        self.on_dead = on_dead
        self.fail_on_dead = fail_on_dead
        self._is_killed = False
        self._hook: WebhookHook | None = None
        self._calling_folder = calling_folder()
        if not (isinstance(triggers, str) and is_pending(triggers)):
            check_triggers(triggers, file_folders(self))
        if target is not None and not is_pending(target):
            table_names(target)
        if not is_pending(start_from):
            _check_start(start_from)

    def execute(self, context: Context) -> dict[str, int]:
        return self._deliver(dict.fromkeys(("enqueued", *_COUNTED), 0))

    def resume(self, context: Context, event: Any, counts: Mapping[str, int]) -> dict[str, int]:
        """Continue after a pause between attempts."""
        return self._deliver(counts)

    def on_kill(self) -> None:
        """Claim no more deliveries, and give back those that are claimed and not sent."""
        self._is_killed = True
        if self._hook is not None:
            self._hook.stop()

    def _deliver(self, before: Mapping[str, int]) -> dict[str, int]:
        with final_errors(self.log.error):
            hook, counts, summary = self._send(before)
        if self.wait and summary.next_due is not None and not self._is_killed:
            self._pause_until(summary.next_due, counts)
        hook.raise_unread()
        return {**counts, "pending": summary.pending}

    def _send(self, before: Mapping[str, int]) -> tuple[WebhookHook, dict[str, int], DeliverySummary]:
        """Enqueue, send all due deliveries, and notify; return the counts, those before a pause included."""
        _check_start(self.start_from)
        triggers = self._block or self.triggers_file or ""
        hook = self._hook = WebhookHook(triggers, self.lake_conn_id, self.control_store_conn_id, task=self)
        if self._is_of_upstream and not has_result(self.target):
            self.log.info("What target refers to has returned nothing, so only what earlier runs left is delivered")
            tables = hook.known_tables()
        else:
            tables = hook.all_tables() if self.target is None else table_names(self.target)
        enqueued = hook.enqueue(tables, "earliest" if self.start_from == "earliest" else "latest")
        notifies = self.fail_on_dead or self.on_dead is not None
        summary = hook.deliver(tables, patience=self.slot_seconds, notify_later=notifies)
        counts = {name: before[name] + getattr(summary, name) for name in _COUNTED}
        counts["enqueued"] = before["enqueued"] + enqueued
        for problem in summary.problems:
            self.log.error("Not delivered: %s", problem)
        # Notified last, and marked in the store one by one: if this process dies before, the next attempt notifies.
        dead: list[DeadLetter] = []

        def notify(letter: DeadLetter) -> None:
            if self.on_dead is not None:
                self.on_dead(letter)
            dead.append(letter)

        errors = hook.notify(tables, notify) if notifies else []
        self._raise_failed(summary.problems, dead)
        if errors:
            raise DeliveryError(f"on_dead raised {'; '.join(errors[:_MOST_SHOWN])}; it is called again")
        return hook, counts, summary

    def _raise_failed(self, problems: Sequence[FailedDelivery], dead: Sequence[DeadLetter]) -> None:
        """Fail for blocking deliveries, for wrong settings, and with ``fail_on_dead`` for dead letters."""
        failing = [
            problem
            for problem in problems
            if problem.on_failure == "block" or (problem.is_refusal and problem.on_failure != "ignore")
        ]
        texts = [str(delivery) for delivery in failing]
        if self.fail_on_dead:
            known = {delivery.detail for delivery in failing}
            texts += [f"{delivery.key}: {delivery.detail}" for delivery in dead if delivery.detail not in known]
        if not texts:
            return
        different = list(dict.fromkeys(texts))
        more = f"; and {len(different) - _MOST_SHOWN} more" if len(different) > _MOST_SHOWN else ""
        is_blocked = any(delivery.on_failure == "block" for delivery in failing)
        blocks = "the next refresh of the table waits until then; " if is_blocked else ""
        raise AirflowFailException(
            f"{'; '.join(different[:_MOST_SHOWN])}{more}. The data is published; {blocks}once the cause is removed,"
            " what was given up has to be replayed or cancelled (airflow rfr triggers replay | cancel)"
        )

    def _pause_until(self, moment: datetime, counts: Mapping[str, int]) -> None:
        latest = datetime.now(timezone.utc) + _LONGEST_PAUSE
        self.log.info("The next attempt is due at %s; the slot is free until then", moment.isoformat())
        if not self.deferrable:
            raise AirflowRescheduleException(min(moment, latest))  # type: ignore[no-untyped-call]
        self.defer(
            trigger=DateTimeTrigger(moment=min(moment, latest)), method_name="resume", kwargs={"counts": dict(counts)}
        )


def _check_start(start_from: str) -> None:
    if start_from not in ("latest", "earliest"):
        raise ConfigurationError("start_from", f"{start_from!r} is unknown", "write latest or earliest")


_ACTIONS = ("replay", "cancel", "pause", "resume", "test_fire")


class WebhookOperationOperator(BaseOperator):
    """Run an operation of ``airflow rfr triggers`` on deliveries; arguments are templated, for forms.

    Returns the ids of the deliveries (``replay``, ``cancel``), how many endpoints there were (``pause``, ``resume``),
    or the endpoint's answer, masked (``test_fire``).

    :param action: ``replay``, ``cancel``, ``pause``, ``resume`` or ``test_fire``
    :param target: a table
    :param trigger: name of an endpoint, or ``block/trigger`` where several blocks have it
    :param delivery_ids: ids of deliveries, for ``replay`` and ``cancel``
    :param endpoint: for ``test_fire``: the endpoint's fields, or a text that renders to them, as ``{{ params }}`` does
        in a DAG with ``render_template_as_native_obj``. Airflow does not render the fields themselves: templates in
        them are the webhook's. Airflow stores values of a form in plain text, so use ``connection`` rather than ``url``
        and ``headers``
    :raises AirflowFailException: the tried endpoint does not take the event; no delivery was ever due to the named
        table or endpoint; or a delivery that is named by its id can't be changed, while the others were
    """

    template_fields: Sequence[str] = (
        *("action", "target", "trigger", "delivery_ids", "endpoint_text", "lake_conn_id", "control_store_conn_id"),
    )
    template_fields_renderers = {"endpoint_text": "json"}  # noqa: RUF012
    ui_color = "#dbeee8"

    def __init__(
        self,
        *,
        action: str,
        target: str | None = None,
        trigger: str | None = None,
        delivery_ids: Sequence[str] | str = (),
        endpoint: Mapping[str, Any] | str | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.action = action
        self.target = target
        self.trigger = trigger
        self.delivery_ids = delivery_ids
        is_fields = isinstance(endpoint, Mapping)
        self.endpoint_text = None if is_fields else endpoint
        self._endpoint = endpoint if is_fields else None
        self.lake_conn_id = lake_conn_id
        self.control_store_conn_id = control_store_conn_id
        if not is_pending(action):
            _check_action(action)

    def execute(self, context: Context) -> Any:
        with final_errors(self.log.error):
            return self._operate()

    def _operate(self) -> Any:
        from airflow_provider_rfr.webhooks import operations

        _check_action(self.action)
        if self.action == "test_fire":
            return self._test_fire()
        store = ControlStoreHook(self.control_store_conn_id).get_store()
        lake = LakeHook(self.lake_conn_id).get_lake_settings().name
        if self.action in ("pause", "resume"):
            if not self.target or not self.trigger:
                raise ConfigurationError("trigger", "no endpoint is named", "name target and trigger")
            switch = operations.pause if self.action == "pause" else operations.resume
            return switch(store, [operations.endpoint_named(store, lake, self.target, self.trigger)])
        return self._change(store, lake)

    def _change(self, store: ControlStore, lake: str) -> list[str]:
        """Replay or cancel the deliveries that are named, and return their ids."""
        from airflow_provider_rfr.store.deliveries import Selection, parts_of
        from airflow_provider_rfr.webhooks import operations

        ids = [self.delivery_ids] if isinstance(self.delivery_ids, str) else list(self.delivery_ids)
        if not (ids or self.target or self.trigger):
            raise ConfigurationError("delivery_ids", "nothing is named", "give delivery_ids, target or trigger")
        operations.known_endpoints(store, lake, self.target or None, self.trigger or None)
        change: Callable[[ControlStore, Selection], list[str]]
        change = operations.replay if self.action == "replay" else operations.cancel
        trigger, block = parts_of(self.trigger) if self.trigger else (None, None)
        tables = (self.target,) if self.target else ()
        changed = change(store, Selection(lake=lake, tables=tables, trigger=trigger, block=block, ids=ids))
        left = [delivery_id for delivery_id in ids if delivery_id not in changed]
        refused = operations.why_not_changed(store, lake, left, is_replay=self.action == "replay")
        if refused:
            self.log.info("%s: done for %s", self.action, ", ".join(changed) or "none")
            raise ConfigurationError("delivery_ids", "; ".join(f"{name}: {reason}" for name, reason in refused.items()))
        return changed

    def _test_fire(self) -> dict[str, Any]:
        from airflow_provider_rfr.webhooks import operations
        from airflow_provider_rfr.webhooks.validation import placeholder_events

        fields: Any = self.endpoint_text if self._endpoint is None else self._endpoint
        if not isinstance(fields, Mapping):
            raise ConfigurationError("endpoint", "is not a mapping", "give the fields of an endpoint")
        settings = {name: value for name, value in fields.items() if value not in (None, "", {}, [])}
        block = check_triggers({"config": {self.trigger or "test": settings}})
        event = replace(placeholder_events()[0], committed_at=datetime.now(timezone.utc))
        (endpoint,) = block.endpoints
        answer = operations.test_fire(endpoint, event, connections=http_settings, allowed_hosts=configured_hosts())
        if not answer.delivered:
            raise AirflowFailException(f"not delivered: {answer.detail}")
        return asdict(answer)


def _check_action(action: str) -> None:
    if action not in _ACTIONS:
        raise ConfigurationError("action", f"{action!r} is unknown", f"one of {', '.join(_ACTIONS)}")


_QUICK_SECONDS = 60.0
"""Seconds to wait for retries after a publish; later retries are left to the next delivery."""
BLOCKED_SECONDS = 60.0
"""Seconds between two checks whether a table is still blocked."""


def blocked(lake: str, tables: Collection[str]) -> str | None:
    """Return the reason why the tables must not be refreshed now; None if they may be.

    The reason is a delivery that was given up and whose endpoint says ``onFailure: block``. A missing control store is
    not created.
    """
    hook = ControlStoreHook()
    if not hook.is_there():
        return None
    from airflow_provider_rfr.webhooks.operations import blocked_reason

    with closing(hook.get_store()) as store:
        reasons = (blocked_reason(store, lake, table) for table in tables)
        return next((reason for reason in reasons if reason is not None), None)


def deliver(task: BaseOperator, triggers: Triggers, lake_conn_id: str, tables: Sequence[str]) -> None:
    """Deliver the webhooks of tables that were just published. Log errors and raise none: the data is published."""
    try:
        hook = WebhookHook(triggers, lake_conn_id, task=task)
        hook.enqueue(tables)
        summary = hook.deliver(tables, patience=_QUICK_SECONDS, notify_later=True)
    except Exception as error:  # noqa: BLE001 - a store or a catalog that is away; its text may hold secrets
        problem = str(error) if isinstance(error, RfrError) else type(error).__name__
        log.error(
            "The webhooks could not be delivered now (%s). The next delivery makes them from the commits", problem
        )
        return
    for failure in summary.problems:
        log.error("Not delivered: %s", failure)
    if summary.pending:
        log.warning("%s webhooks are pending until the next delivery", summary.pending)
