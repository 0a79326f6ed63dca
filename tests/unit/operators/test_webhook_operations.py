from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators import CommitWebhookOperator, WebhookOperationOperator
from airflow_provider_rfr.webhooks.outbox import delivery_id
from demo.webhook_receiver import Receiver
from tests.unit.messages import raises
from tests.unit.triggers.lake import Lake

pytestmark = pytest.mark.usefixtures("webhooks_on_loopback")


def deliver(receiver: Receiver) -> dict[str, int]:
    endpoint = {"url": receiver.url, "payload": {"id": "{{delivery_id}}"}}
    triggers = {"name": "shop", "config": {"hook": endpoint}}
    task = CommitWebhookOperator(task_id="deliver", triggers=triggers, target="raw.orders", lake_conn_id="lake")
    return task.execute({})


def operate(action: str, **arguments: Any) -> Any:
    task = WebhookOperationOperator(task_id="operate", action=action, lake_conn_id="lake", **arguments)
    return task.execute({})


def test_a_dead_delivery_is_replayed_under_its_id_and_never_made_once_it_is_cancelled(
    lake: Lake, receiver: Receiver
) -> None:
    dead = delivery_id(lake.publish("raw.orders"), "shop/hook")
    receiver.answer = lambda request: (400, b"")
    assert deliver(receiver)["dead"] == 1
    receiver.answer = lambda request: (200, b"")
    assert operate("replay", target="raw.orders") == [dead]
    assert deliver(receiver)["delivered"] == 1
    assert {request.delivery_id for request in receiver.requests} == {dead}
    second = delivery_id(lake.publish("raw.orders"), "shop/hook")
    receiver.answer = lambda request: (400, b"")
    deliver(receiver)
    assert operate("cancel", delivery_ids=second) == [second]
    assert operate("replay", target="raw.orders") == []


def test_a_paused_endpoint_is_not_called_until_it_is_resumed(lake: Lake, receiver: Receiver) -> None:
    lake.publish("raw.orders")
    deliver(receiver)
    assert operate("pause", target="raw.orders", trigger="hook") == 1
    lake.publish("raw.orders")
    assert deliver(receiver)["pending"] == 1
    assert len(receiver.requests) == 1
    assert operate("resume", target="raw.orders", trigger="hook") == 1
    assert deliver(receiver)["delivered"] == 1


def test_an_endpoint_is_tried_with_an_invented_event(lake: Lake, receiver: Receiver) -> None:
    endpoint = {"url": receiver.url, "payload": {"rows": "{{totals.documents}}"}, "preset": None, "timeout": ""}
    answer = operate("test_fire", endpoint=endpoint)
    assert (answer["delivered"], answer["status"]) == (True, 200)
    assert isinstance(receiver.requests[0].json["rows"], int)
    receiver.answer = lambda request: (500, b"")
    with raises(AirflowFailException):
        operate("test_fire", endpoint=endpoint)


def test_templates_of_the_tried_webhook_are_left_to_it_and_those_of_a_form_are_rendered(
    lake: Lake, receiver: Receiver
) -> None:
    places = "{{#each collection_names}}{{@index}}{{#unless @last}}, {{/unless}}{{/each}}"
    body = '{"table": "{{materialization_name}}", "n": [' + places + "]}"
    endpoint = {"url": receiver.url, "payloadTemplate": body}
    written = WebhookOperationOperator(task_id="try", action="test_fire", endpoint=endpoint)
    with DAG("form", render_template_as_native_obj=True) as dag:
        filled_in = WebhookOperationOperator(task_id="try", action="test_fire", endpoint="{{ params.endpoint }}")
    for task in (written, filled_in):
        task.render_template_fields({"params": {"endpoint": endpoint}, "dag": dag})  # type: ignore[typeddict-item]
        task.execute({})
    assert [request.json["n"] for request in receiver.requests] == [[0], [0]]
    assert all(request.json["table"] for request in receiver.requests)


def test_the_fields_of_a_tried_endpoint_are_nothing_that_airflow_shows() -> None:
    secret = {"url": "https://h.example.com/hunter22", "payload": {}}
    task = WebhookOperationOperator(task_id="try", action="test_fire", endpoint=secret)
    assert "hunter22" not in str([getattr(task, name) for name in task.template_fields])


def test_an_endpoint_that_is_wrong_is_refused(lake: Lake) -> None:
    with raises(AirflowFailException):
        operate("test_fire", endpoint={"url": "ftp://x", "payload": {}})
    with raises(AirflowFailException):
        operate("test_fire")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"action": "replay"}, "give delivery_ids, target or trigger"),
        ({"action": "pause", "target": "raw.orders"}, "name target and trigger"),
        ({"action": "resume", "target": "raw.orders", "trigger": "nobody"}, "raw.orders has no endpoint yet"),
        ({"action": "replay", "target": "raw.typo"}, "raw.typo has no endpoint yet"),
        ({"action": "cancel", "trigger": "typo"}, "typo"),
        ({"action": "cancel", "delivery_ids": "typo"}, "typo: there is no such delivery"),
    ],
)
def test_what_is_not_named_is_not_done(lake: Lake, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(AirflowFailException, match=told):
        operate(**arguments)


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'fire' is unknown; one of replay"):
        operate("fire")


def test_deliveries_that_can_not_be_changed_fail_the_task_and_the_others_are_changed(
    lake: Lake, receiver: Receiver
) -> None:
    receiver.answer = lambda request: (400, b"")
    dead = delivery_id(lake.publish("raw.orders"), "shop/hook")
    deliver(receiver)
    with raises(AirflowFailException):
        operate("replay", delivery_ids=[dead, "typo"])
    receiver.answer = lambda request: (200, b"")
    assert deliver(receiver)["delivered"] == 1
    with raises(AirflowFailException):
        operate("cancel", delivery_ids=dead)
