"""The operator for what people do with deliveries: try, replay, cancel, pause, resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.http_settings import http_settings
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.pending import is_pending
from airflow_provider_rfr.hooks.webhooks import check_triggers, configured_hosts

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.store.deliveries import Selection
    from airflow_provider_rfr.store.engine import ControlStore

ACTIONS = ("replay", "cancel", "pause", "resume", "test_fire")
_NAMED = "name target and trigger"


class WebhookOperationOperator(BaseOperator):
    """Do with deliveries what ``airflow rfr triggers`` does; arguments are templated, for forms.

    Returns the ids of the deliveries (``replay``, ``cancel``), how many endpoints there were (``pause``, ``resume``),
    or the endpoint's answer, masked (``test_fire``).

    :param action: ``replay``, ``cancel``, ``pause``, ``resume`` or ``test_fire``
    :param target: a table
    :param trigger: name of an endpoint, or ``block/trigger`` where several blocks have it
    :param delivery_ids: ids of deliveries, for ``replay`` and ``cancel``
    :param endpoint: for ``test_fire``: the endpoint's fields, or a text that renders to them, as ``{{ params }}`` does
        in a DAG with ``render_template_as_native_obj``. The fields themselves are not rendered: what looks like
        Airflow's templates in them is the webhook's. What is given to a form is stored by Airflow in plain text, so use
        ``connection`` rather than ``url`` and ``headers``
    :raises AirflowFailException: the tried endpoint does not take the event
    """

    template_fields: Sequence[str] = (
        "action",
        "target",
        "trigger",
        "delivery_ids",
        "endpoint_text",
        "lake_conn_id",
        "control_store_conn_id",
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
        """Do it."""
        _check_action(self.action)
        if self.action == "test_fire":
            return self._test_fire()
        store = ControlStoreHook(self.control_store_conn_id).get_store()
        lake = LakeHook(self.lake_conn_id).get_lake_document().name
        if self.action in ("pause", "resume"):
            return self._switch(store, lake)
        return self._change(store, lake)

    def _change(self, store: ControlStore, lake: str) -> list[str]:
        from airflow_provider_rfr.store.deliveries import Selection
        from airflow_provider_rfr.store.endpoints import parts_of
        from airflow_provider_rfr.webhooks import operations

        ids = [self.delivery_ids] if isinstance(self.delivery_ids, str) else list(self.delivery_ids)
        if not (ids or self.target or self.trigger):
            raise ConfigurationError("delivery_ids", "nothing is named", "give delivery_ids, target or trigger")
        work: Callable[[ControlStore, Selection], list[str]] = getattr(operations, self.action)
        trigger, block = parts_of(self.trigger) if self.trigger else (None, None)
        return work(store, Selection(lake=lake, table=self.target, trigger=trigger, block=block, ids=ids))

    def _switch(self, store: ControlStore, lake: str) -> int:
        from airflow_provider_rfr.webhooks import operations

        if not self.target or not self.trigger:
            raise ConfigurationError("trigger", "no endpoint is named", _NAMED)
        work = operations.pause if self.action == "pause" else operations.resume
        return work(store, [operations.endpoint_named(store, lake, self.target, self.trigger)])

    def _test_fire(self) -> dict[str, Any]:
        from airflow_provider_rfr.webhooks import operations
        from airflow_provider_rfr.webhooks.configuration.placeholders import placeholder_events

        fields: Any = self.endpoint_text if self._endpoint is None else self._endpoint
        if not isinstance(fields, Mapping):
            raise ConfigurationError("endpoint", "is no mapping", "give the fields of an endpoint")
        given = {name: value for name, value in fields.items() if value not in (None, "", {}, [])}
        block = check_triggers({"config": {self.trigger or "test": given}})
        event = replace(placeholder_events()[0], committed_at=datetime.now(timezone.utc))
        (endpoint,) = block.endpoints
        answer = operations.test_fire(endpoint, event, connections=http_settings, allowed_hosts=configured_hosts())
        if not answer.delivered:
            raise AirflowFailException(f"not delivered: {answer.detail}")
        return asdict(answer)


def _check_action(action: str) -> None:
    if action not in ACTIONS:
        raise ConfigurationError("action", f"{action!r} is unknown", f"one of {', '.join(ACTIONS)}")
