from __future__ import annotations

import inspect
import json
import logging
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import DAG
from airflow.sdk.execution_time.comms import ConnectionResult, GetConnection
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms, set_supervisor_comms

from airflow_provider_rfr.compat import AirflowRescheduleException
from airflow_provider_rfr.exceptions import ConfigurationError, DeliveryError, TriggerConfigError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.operators import CommitWebhookOperator, webhooks
from airflow_provider_rfr.store.tables import DELIVERIES
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.outbox import delivery_id
from demo.webhook_receiver import Received, Receiver
from tests.unit.messages import raises
from tests.unit.triggers.lake import Lake

pytestmark = pytest.mark.usefixtures("webhooks_on_loopback")

CANARY = "canary-7f3a9c"


@pytest.fixture
def commit(lake: Lake) -> str:
    """Return the id of the first commit of ``raw.orders``."""
    return lake.publish("raw.orders")


def block(receiver: Receiver, **more: Any) -> dict[str, Any]:
    endpoint = {
        "url": f"{receiver.url}/hook?token={CANARY}",
        "headers": {"Authorization": f"Bearer {CANARY}"},
        "payload": {"table": "{{materialization_name}}", "documents": "{{totals.documents}}", "id": "{{delivery_id}}"},
        **more,
    }
    return {"name": "shop", "config": {"hook": endpoint}}


def operator(triggers: Any, **arguments: Any) -> CommitWebhookOperator:
    return CommitWebhookOperator(
        task_id="deliver", triggers=triggers, lake_conn_id="lake", **{"target": "raw.orders", **arguments}
    )


def counts(**some: int) -> dict[str, int]:
    return {**dict.fromkeys(("enqueued", "delivered", "failed", "dead", "pending"), 0), **some}


def test_the_newest_commit_is_delivered_once_and_only_once(lake: Lake, receiver: Receiver) -> None:
    lake.publish("raw.orders", 3)
    commit = lake.publish("raw.orders", 5)
    assert operator(block(receiver)).execute({}) == counts(enqueued=1, delivered=1)
    assert operator(block(receiver)).execute({}) == counts()
    (request,) = receiver.requests
    assert request.json == {"table": "raw.orders", "documents": 5, "id": delivery_id(commit, "shop/hook")}
    assert request.delivery_id == delivery_id(commit, "shop/hook")
    assert request.headers["authorization"] == f"Bearer {CANARY}"


def test_from_the_earliest_commit_on_if_wished(lake: Lake, receiver: Receiver) -> None:
    commits = [lake.publish("raw.orders") for _ in range(3)]
    assert operator(block(receiver), start_from="earliest").execute({})["delivered"] == 3
    ids = {delivery_id(commit, "shop/hook") for commit in commits}
    assert {request.delivery_id for request in receiver.requests} == ids


def test_all_tables_are_those_that_a_refresh_has_published_to(lake: Lake, receiver: Receiver) -> None:
    lake.publish("raw.orders")
    lake.publish("raw.items")
    lake.commit("raw.somebody_elses")
    assert operator(block(receiver), target=None).execute({})["delivered"] == 2
    assert sorted(request.json["table"] for request in receiver.requests) == ["raw.items", "raw.orders"]


def test_a_table_whose_metadata_is_lost_holds_up_no_other(
    lake: Lake, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    lake.publish("raw.orders")
    lake.commit("raw.somebody_elses")
    lake.lose_metadata("raw.somebody_elses")
    assert operator(block(receiver), target=None).execute({})["delivered"] == 1
    assert "raw.somebody_elses" in caplog.text


class Upstream:
    """What ``refresh.output`` is until Airflow has rendered it."""

    def resolve(self, context: Any) -> None: ...


@pytest.mark.parametrize("several", [False, True])
def test_a_refresh_that_returned_nothing_is_not_every_table_of_the_lake(
    several: bool, lake: Lake, receiver: Receiver
) -> None:
    lake.publish("raw.orders")
    operator(block(receiver)).execute({})
    lake.publish("raw.orders")
    lake.publish("raw.items")
    task: Any = operator(block(receiver), target=[Upstream(), Upstream()] if several else Upstream())
    task.target = [None, None] if several else None
    assert task.execute({})["delivered"] == 1
    assert [request.json["table"] for request in receiver.requests] == ["raw.orders", "raw.orders"]


def test_of_several_refreshes_those_that_returned_something_are_the_target(lake: Lake, receiver: Receiver) -> None:
    lake.publish("raw.items")
    lake.publish("raw.orders")
    task: Any = operator(block(receiver), target=[Upstream(), Upstream()])
    task.target = [None, {"target": "raw.orders"}]
    assert task.execute({})["delivered"] == 1
    assert [request.json["table"] for request in receiver.requests] == ["raw.orders"]


def failing(times: int) -> Any:
    answers = iter([503] * times)
    return lambda request: (next(answers, 200), b"busy " + CANARY.encode())


def test_retries_are_waited_for(commit: str, receiver: Receiver) -> None:
    receiver.answer = failing(1)
    assert operator(block(receiver)).execute({}) == counts(enqueued=1, delivered=1, failed=1)
    assert len({request.delivery_id for request in receiver.requests}) == 1


def test_not_waiting_leaves_retries_to_the_next_run(commit: str, receiver: Receiver) -> None:
    receiver.answer = failing(1)
    task = operator(block(receiver), wait=False, slot_seconds=0)
    assert task.execute({}) == counts(enqueued=1, failed=1, pending=1)


def test_between_attempts_the_slot_is_free_and_the_counts_go_on(commit: str, receiver: Receiver) -> None:
    receiver.answer = failing(1)
    task = operator(block(receiver), deferrable=True, slot_seconds=0.1)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({})
    trigger, kwargs = deferred.value.trigger, deferred.value.kwargs
    assert isinstance(trigger, DateTimeTrigger)
    assert trigger.moment - datetime.now(timezone.utc) < timedelta(seconds=10)
    assert CANARY not in json.dumps(kwargs)
    assert kwargs is not None
    while datetime.now(timezone.utc) < trigger.moment:
        pass
    resumed = getattr(task, deferred.value.method_name)({}, event=None, **kwargs)
    assert resumed == counts(enqueued=1, delivered=1, failed=1)


def test_without_a_triggerer_the_slot_is_free_between_attempts_too(commit: str, receiver: Receiver) -> None:
    receiver.answer = failing(1)
    task = operator(block(receiver), slot_seconds=0.1)
    with pytest.raises(AirflowRescheduleException) as rescheduled:
        task.execute({})
    moment = rescheduled.value.reschedule_date
    assert moment - datetime.now(timezone.utc) < timedelta(seconds=10)
    while datetime.now(timezone.utc) < moment:
        pass
    assert task.execute({})["delivered"] == 1


def test_a_task_that_is_killed_claims_nothing_more(commit: str, receiver: Receiver) -> None:
    task = operator(block(receiver, maxAttempts=50))

    def answer(request: Received) -> tuple[int, bytes]:
        task.on_kill()
        return 503, b""

    receiver.answer = answer
    assert task.execute({}) == counts(enqueued=1, failed=1, pending=1)
    assert len(receiver.requests) == 1


def test_what_is_given_up_lets_data_flow_and_is_told(commit: str, receiver: Receiver) -> None:
    receiver.answer = lambda request: (400, b"no")
    told: list[Any] = []
    made = operator(block(receiver), on_dead=told.append).execute({})
    assert (made["dead"], made["pending"]) == (1, 0)
    assert [(letter.id, letter.status) for letter in told] == [(delivery_id(commit, "shop/hook"), 400)]


def test_with_fail_on_dead_a_delivery_that_is_given_up_turns_the_task_red_once(lake: Lake, receiver: Receiver) -> None:
    lake.publish("raw.orders")
    triggers = block(receiver)
    triggers["config"]["quiet"] = block(receiver, onFailure="ignore")["config"]["hook"]
    receiver.answer = lambda request: (401, b"")
    told: list[Any] = []
    red = operator(triggers, fail_on_dead=True, on_dead=told.append)
    with raises(AirflowFailException):
        red.execute({})
    assert [letter.key.trigger for letter in told] == ["hook"]
    assert red.execute({})["dead"] == 0, "it was told; the next run is red for what is new"
    receiver.answer = lambda request: (200, b"")
    lake.publish("raw.orders")
    assert red.execute({})["delivered"] == 2


def test_with_fail_on_dead_the_task_does_not_wait_for_what_is_pending_before_it_turns_red(
    commit: str, receiver: Receiver
) -> None:
    triggers = block(receiver)
    triggers["config"]["slow"] = block(receiver, retry={"schedule": "standard"})["config"]["hook"]
    receiver.answer = lambda request: (401 if len(receiver.requests) == 1 else 503, b"")
    task = operator(triggers, fail_on_dead=True, deferrable=True, slot_seconds=0)
    with pytest.raises(AirflowFailException, match="HTTP 401. The data is published"):
        task.execute({})


def test_an_on_dead_that_raises_fails_the_task_and_is_called_again(commit: str, receiver: Receiver) -> None:
    receiver.answer = lambda request: (400, b"")

    def broken(dead: Any) -> None:
        raise KeyError(CANARY)

    for _ in range(2):
        with raises(DeliveryError) as red:
            operator(block(receiver), on_dead=broken).execute({})
        assert CANARY not in str(red.value)
    told: list[Any] = []
    assert operator(block(receiver), on_dead=told.append).execute({})["dead"] == 0
    assert len(told) == 1


def test_a_connection_that_is_not_there_fails_the_task_at_once_and_loses_nothing(
    commit: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    triggers = {"config": {"hook": {"connection": "gone", "payload": {"n": 1}, "maxAttempts": 5}}}
    task = operator(triggers, deferrable=True, slot_seconds=0)
    with raises(AirflowFailException):
        task.execute({})
    monkeypatch.setenv("AIRFLOW_CONN_GONE", json.dumps({"conn_type": "http", "host": receiver.url}))
    assert operator(triggers).execute({})["delivered"] == 1


def test_what_the_refresh_itself_gave_up_right_after_its_publish_is_told_by_the_operator(
    lake: Lake, receiver: Receiver
) -> None:
    lake.publish("raw.orders")
    receiver.answer = lambda request: (400, b"")
    webhooks.deliver(operator(block(receiver)), block(receiver), "lake", ["raw.orders"])
    told: list[Any] = []
    with raises(AirflowFailException):
        operator(block(receiver), fail_on_dead=True, on_dead=told.append).execute({})
    assert [letter.detail for letter in told] == ["HTTP 400"]
    assert len(receiver.requests) == 1


def test_a_table_that_can_t_be_read_keeps_nothing_from_the_others_and_fails_the_task(
    lake: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    tables = ["raw.broken", "raw.orders"]
    for table in tables:
        lake.publish(table)
    location = lake.catalog.load_table("raw.broken").metadata_location
    Path(location.removeprefix("file://")).write_text("no metadata")
    with raises(DeliveryError):
        operator(block(receiver), target=tables).execute({})
    assert [request.json["table"] for request in receiver.requests] == ["raw.orders"]


def test_an_event_that_nobody_can_read_hides_no_commit_around_it(lake: Lake, receiver: Receiver) -> None:
    lake.publish("raw.orders")
    event = {"commit_id": "c", "lake": "rfr", "target_name": "m", "run_id": "r"}
    lake.commit("raw.orders", rfr_event=json.dumps({**event, "bindings": [["raw.orders", "c", float("inf"), 1]]}))
    lake.publish("raw.orders")
    assert operator(block(receiver), start_from="earliest").execute({})["delivered"] == 2


def test_an_endpoint_that_blocks_fails_the_task_without_secrets_once_the_others_have_been_served(
    lake: Lake, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    triggers = block(receiver, onFailure="block")
    triggers["config"]["other"] = block(receiver)["config"]["hook"]
    refused = delivery_id(lake.publish("raw.orders"), "shop/hook")
    receiver.answer = lambda request: (400 if request.json["id"] == refused else 200, f"you sent {CANARY}".encode())
    caplog.set_level(logging.DEBUG)
    with raises(AirflowFailException) as failed:
        operator(triggers).execute({})
    assert len(receiver.requests) == 2
    assert CANARY not in str(failed.value) + caplog.text


def test_a_corrected_file_is_used_by_the_next_attempt(commit: str, receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "triggers.json"
    file.write_text(json.dumps(block(receiver, headers={"X": "wrong"})))
    receiver.answer = lambda request: (200 if request.headers.get("x") == "right" else 500, b"")
    task = operator(str(file), wait=False, slot_seconds=0)
    assert task.execute({})["failed"] == 1
    file.write_text(json.dumps(block(receiver, headers={"X": "right"}, maxAttempts=9)))
    while task.execute({})["delivered"] == 0:
        pass
    assert receiver.requests[-1].headers["x"] == "right"


def in_dag(dag_id: str, triggers: Any, **arguments: Any) -> CommitWebhookOperator:
    with DAG(dag_id, schedule=None):
        return operator(triggers, **arguments)


def unnamed(receiver: Receiver, path: str) -> list[Any]:
    """A block in the form of a list, which names nothing: its trigger is ``trigger0``."""
    endpoint = block(receiver)["config"]["hook"]
    return [{**endpoint, "url": f"{receiver.url}/{path}", "maxAttempts": 1}]


def heard(receiver: Receiver, path: str) -> list[str]:
    return [request.delivery_id for request in receiver.requests if request.path == f"/{path}"]


def test_two_blocks_on_one_table_both_hear_every_commit(
    lake: Lake, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    teams = [in_dag(team, unnamed(receiver, team)) for team in ("team_a", "team_b")]
    for _ in range(4):
        lake.publish("raw.orders")
        for task in teams:
            assert task.execute({})["delivered"] == 1
    ids = [heard(receiver, team) for team in ("team_a", "team_b")]
    assert [len(team_ids) for team_ids in ids] == [4, 4]
    assert len({*ids[0], *ids[1]}) == 8
    assert "not in the configuration" not in caplog.text


def test_an_endpoint_that_is_gone_disables_no_other_block_s(lake: Lake, receiver: Receiver) -> None:
    receiver.answer = lambda request: (410 if request.path == "/team_a" else 200, b"")
    for _ in range(2):
        lake.publish("raw.orders")
        for team in ("team_a", "team_b"):
            in_dag(team, unnamed(receiver, team)).execute({})
    assert (len(heard(receiver, "team_a")), len(heard(receiver, "team_b"))) == (1, 2)


def test_what_another_block_is_owed_is_no_trigger_that_was_removed(
    lake: Lake, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = lambda request: (503 if "slow" in request.path else 200, b"")
    lake.publish("raw.orders")
    slow = {"name": "slow", "config": {"later": {**unnamed(receiver, "slow")[0], "maxAttempts": 5}}}
    assert in_dag("team_a", slow, wait=False, slot_seconds=0).execute({})["pending"] == 1
    in_dag("team_b", unnamed(receiver, "team_b")).execute({})
    assert "not in the configuration" not in caplog.text


def test_one_file_is_one_block_in_every_dag_and_wherever_it_lies(
    commit: str, receiver: Receiver, tmp_path: Path
) -> None:
    for number, dag_id in enumerate(("one", "two")):
        file = tmp_path / str(number) / "triggers.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"config": unnamed(receiver, "hook")}))
        assert in_dag(dag_id, str(file)).execute({})["delivered"] == (number == 0)
    assert len(receiver.requests) == 1


def test_two_blocks_that_can_t_be_told_apart_are_refused_naming_both_places(lake: Lake, receiver: Receiver) -> None:
    lake.publish("raw.orders")
    teams = [{"name": "hooks", "config": unnamed(receiver, team)} for team in ("a", "b")]
    in_dag("team_a", teams[0]).execute({})
    lake.publish("raw.orders")
    with pytest.raises(AirflowFailException) as refused:
        in_dag("team_b", teams[1]).execute({})
    places = "task deliver of DAG team_b and task deliver of DAG team_a both have a block hooks"
    assert [text for text in (places, "trigger0", "name: ") if text not in str(refused.value)] == []
    assert CANARY not in str(refused.value)
    assert not heard(receiver, "b")
    assert in_dag("team_b", {**teams[1], "name": "others"}).execute({})["delivered"] == 1
    assert in_dag("team_a", teams[0]).execute({})["delivered"] == 1


@pytest.mark.parametrize("is_after_refresh", [False, True])
def test_workers_ask_airflow_for_their_connections_one_after_another(
    is_after_refresh: bool, commit: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``airflow dags test`` has no lock and, while it answers a thread, no connection for another one."""

    class Supervisor:
        def _handle_request(self, message: Any, *arguments: Any) -> None:
            if isinstance(message, GetConnection):
                time.sleep(0.2)
                rest = dict.fromkeys(("schema", "login", "password", "port", "extra"))
                host = f"{receiver.url}/{message.conn_id}"
                answer = ConnectionResult(conn_id=message.conn_id, conn_type="rfr_http", host=host, **rest)
            comms.messages.append(answer if isinstance(message, GetConnection) else None)

    send: Any = inspect.unwrap(InProcessSupervisorComms.send)
    monkeypatch.setattr(InProcessSupervisorComms, "send", send)
    supervisor: Any = Supervisor()
    comms = InProcessSupervisorComms(supervisor=supervisor)
    endpoints = {name: {"connection": name, "payload": {"to": "{{trigger_name}}"}} for name in ("a", "b")}
    task = operator({"config": endpoints})
    with set_supervisor_comms(comms):
        if is_after_refresh:
            webhooks.deliver(task, {"config": endpoints}, "lake", ["raw.orders"])
        else:
            assert task.execute({}) == counts(enqueued=2, delivered=2)
    heard = sorted((request.path, request.json["to"]) for request in receiver.requests)
    assert heard == [("/a", "a"), ("/b", "b")]
    # A thread may outlive the dispatcher, and then asks beside the task itself.
    assert InProcessSupervisorComms.send is not send


def test_an_address_that_is_edited_goes_on_with_what_is_pending(lake: Lake, receiver: Receiver) -> None:
    receiver.answer = lambda request: (500 if request.path == "/old" else 200, b"")
    lake.publish("raw.orders")
    old, new = ([{**unnamed(receiver, path)[0], "maxAttempts": 5}] for path in ("old", "new"))
    assert in_dag("shop", old, wait=False, slot_seconds=0).execute({})["pending"] == 1
    assert in_dag("shop", new).execute({})["delivered"] == 1
    assert heard(receiver, "old")[0] == heard(receiver, "new")[0]


def test_a_relative_file_lies_beside_the_dags_file(receiver: Receiver) -> None:
    file = Path(__file__).parent / "webhook_triggers_of_a_test.json"
    file.write_text(json.dumps(block(receiver)))
    try:
        with DAG("webhooks", schedule=None):
            operator(file.name)
    finally:
        file.unlink()


def test_all_mistakes_of_a_block_are_told_while_the_dag_is_parsed(receiver: Receiver) -> None:
    wrong = block(receiver, payload={"a": "{{nope}}"}, timeout="0s")
    with pytest.raises(TriggerConfigError) as refused:
        operator(wrong)
    problems = ("trigger hook", "timeout must be greater than 0", "nope")
    assert [text for text in problems if text not in str(refused.value)] == []
    assert CANARY not in str(refused.value)


def test_a_file_that_is_not_there_and_a_start_that_is_unknown_are_told_while_the_dag_is_parsed(
    receiver: Receiver,
) -> None:
    with raises(TriggerConfigError):
        operator("nowhere.yaml")
    with raises(ConfigurationError):
        operator(block(receiver), start_from="now")


def test_a_block_can_t_open_what_the_installation_does_not(
    lake: Lake, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish("raw.orders")
    monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "")
    with raises(AirflowFailException):
        operator(block(receiver, allowedHosts=["127.0.0.1", "0.0.0.0/0"])).execute({})
    lake.publish("raw.orders")
    ignored = operator(block(receiver, allowedHosts=["127.0.0.1"], onFailure="ignore")).execute({})
    assert ignored["dead"] == 1
    assert receiver.requests == []


def test_each_run_deletes_what_ended_long_ago(commit: str, receiver: Receiver) -> None:
    assert operator(block(receiver)).execute({})["delivered"] == 1
    store = ControlStoreHook().get_store()
    month = 30 * 86_400_000
    for age, left in ((month - 3_600_000, 1), (month + 1, 0)):
        ended = store.run(lambda connection, age=age: store.now(connection) - age)  # type: ignore[misc]
        store.run(lambda connection, ended=ended: connection.execute(DELIVERIES.update().values(ended_at=ended)))  # type: ignore[misc]
        assert operator(block(receiver)).execute({})["delivered"] == 0
        assert sum(operations.counts(store).values()) == left
    assert len(receiver.requests) == 1, "what was deleted is not delivered again"
    store.close()


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_retention_that_is_no_number_of_days_is_refused_before_anything_is_sent(
    commit: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_RETENTION_DAYS", text)
    with raises(AirflowFailException):
        operator(block(receiver)).execute({})
    assert receiver.requests == []


def test_a_task_that_dies_after_a_delivery_was_given_up_is_red_in_its_next_try(
    commit: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answer = lambda request: (401, b"")
    task = operator(block(receiver), fail_on_dead=True)
    with monkeypatch.context() as patched:
        # What comes between the delivery and the end of the task.
        patched.setattr("airflow_provider_rfr.webhooks.operations.record_deliveries", _dies)
        with pytest.raises(KeyboardInterrupt):
            task.execute({})
    with raises(AirflowFailException):
        task.execute({})
    assert len(receiver.requests) == 1


def _dies(*arguments: Any) -> None:
    raise KeyboardInterrupt
