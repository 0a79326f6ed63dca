"""Webhooks around a refresh: what blocks it, and what is delivered right after its publish."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.dag_folder import dag_folder
from airflow_provider_rfr.hooks.webhooks import Triggers, WebhookHook

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_provider_rfr.webhooks.delivery.tally import Tally

log = logging.getLogger(__name__)

QUICK_SECONDS = 60.0
"""For which retries are waited for after a publish; what takes longer is left to who delivers next."""
BLOCKED_SECONDS = 60.0
"""Between two looks whether a table is still blocked."""


def blocked(lake: str, tables: Collection[str]) -> str | None:
    """Why the tables must not be refreshed now: a delivery was given up whose endpoint says ``onFailure: block``.

    A machine that never had a control store does not get one by being asked.
    """
    hook = ControlStoreHook()
    if not hook.is_there():
        return None
    from airflow_provider_rfr.webhooks.operations import blocked_reason

    store = hook.get_store()
    try:
        reasons = (blocked_reason(store, lake, table) for table in tables)
        return next((reason for reason in reasons if reason is not None), None)
    finally:
        store.close()


def deliver(task: BaseOperator, triggers: Triggers, lake_conn_id: str, tables: Sequence[str]) -> None:
    """Deliver what the tables owe. The data is published: no webhook can make the refresh fail any more."""
    try:
        folder = dag_folder(task)
        hook = WebhookHook(triggers, lake_conn_id, folder=folder, dag_id=task.dag_id, task_id=task.task_id)
        hook.enrol(tables)
        _tell(hook.deliver(tables, patience=QUICK_SECONDS, leaves_telling=True))
    except RfrError as error:
        log.error("The webhooks could not be delivered now: %s. The commits keep what they owe", error)
    except Exception as error:  # noqa: BLE001 - a store or a catalog that is away; its text may name secrets
        log.error("The webhooks could not be delivered now (%s). The commits keep what they owe", type(error).__name__)


def _tell(tally: Tally) -> None:
    for problem in tally.problems:
        log.error("Not delivered: %s", problem)
    if tally.pending:
        log.warning("%s webhooks are pending; who delivers next goes on with them", tally.pending)
