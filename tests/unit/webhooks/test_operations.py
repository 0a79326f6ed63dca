"""What people do with deliveries."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store.deliveries import Selection
from airflow_provider_rfr.store.engine import open_store
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.outbox import delivery_id
from tests.unit.messages import raises
from tests.webhook_receiver import LAKE, LOOPBACK, TABLE, Post, Receiver, Reply, endpoint, events, receiver


def states(post: Post) -> dict[str, str]:
    return {delivery.last_commit: delivery.state for delivery in operations.deliveries(post.store)}


def test_a_dead_delivery_blocks_the_table_s_next_refresh_until_it_is_replayed(post: Post, server: Receiver) -> None:
    server.answers(400)
    post.owe(server.url, 1, 2, onFailure="block")
    assert operations.blocked_reason(post.store, LAKE, TABLE) is None
    post.deliver()
    reason = operations.blocked_reason(post.store, LAKE, TABLE)
    assert reason.startswith("trigger hook of rfr.raw.orders: delivery ")
    assert "(HTTP 400), and 1 more; replay or cancel it" in reason
    assert operations.blocked_reason(post.store, LAKE, "raw.items") is None
    assert operations.blocked_reason(post.store, "other", TABLE) is None
    server.answers(200)
    assert len(operations.replay(post.store, Selection())) == 2
    assert operations.blocked_reason(post.store, LAKE, TABLE) is None
    post.deliver()
    assert set(states(post).values()) == {"delivered"}


@pytest.mark.parametrize("policy", ["block", "dead_letter", "ignore"])
def test_a_cancelled_delivery_and_other_policies_block_nothing(post: Post, server: Receiver, policy: str) -> None:
    server.answers(400)
    post.owe(server.url, 1, onFailure=policy)
    post.deliver()
    if policy == "block":
        operations.cancel(post.store, Selection(), detail="by hand")
        (row,) = operations.deliveries(post.store)
        assert (row.state, row.detail) == ("cancelled", "by hand")
    assert operations.blocked_reason(post.store, LAKE, TABLE) is None


def test_what_is_cancelled_is_not_sent_and_can_be_replayed(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1, 2)
    one = delivery_id("commit-1", "hook")
    assert operations.cancel(post.store, Selection(ids=[one])) == [one]
    post.deliver()
    assert states(post) == {"commit-1": "cancelled", "commit-2": "delivered"}
    assert operations.replay(post.store, Selection()) == [], "without states it is what is dead"
    assert operations.replay(post.store, Selection(ids=[one], states=["cancelled"])) == [one]
    post.deliver()
    assert states(post) == {"commit-1": "delivered", "commit-2": "delivered"}


def test_what_is_pending_or_merged_is_not_replayed(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1, 2, interval="60s")
    assert operations.replay(post.store, Selection(states=["pending", "merged"])) == []
    post.deliver()
    assert operations.replay(post.store, Selection(states=["merged"])) == []
    assert len(operations.replay(post.store, Selection(states=["delivered"]))) == 1
    post.deliver()
    assert len(server.ids) == 2
    assert len(set(server.ids)) == 1


def test_a_delivery_that_is_under_way_can_be_cancelled_and_its_end_says_nothing(
    post: Post, server: Receiver, tmp_path: Path
) -> None:
    begun, over = threading.Event(), threading.Event()

    def slow(request):
        begun.set()
        over.wait(20)
        return Reply(500)

    server.answers_by(slow)
    post.owe(server.url, 1)
    tallies = []
    thread = threading.Thread(target=lambda: tallies.append(post.deliver()))
    thread.start()
    assert begun.wait(20)
    assert len(operations.cancel(open_store(f"sqlite:///{tmp_path}/control.db"), Selection())) == 1
    over.set()
    thread.join(30)
    assert tallies[0].lost == 1
    assert states(post) == {"commit-1": "cancelled"}


def test_the_oldest_pending_delivery_says_how_late_things_are(post: Post, server: Receiver) -> None:
    assert operations.oldest_pending_seconds(post.store) == 0
    post.owe(server.url, 1)
    post.clock.sleep(100)
    post.owe(server.url, 2)
    assert operations.oldest_pending_seconds(post.store) == pytest.approx(100)
    assert operations.oldest_pending_seconds(post.store, LAKE, "raw.items") == 0
    post.deliver()
    assert operations.oldest_pending_seconds(post.store, LAKE, TABLE) == 0


def test_deliveries_are_counted_and_listed_by_what_one_looks_for(post: Post, server: Receiver) -> None:
    with receiver() as broken:
        broken.answers(400)
        post.owe(server.url, 1, 2)
        post.owe(broken.url, 1, name="bad")
        post.deliver()
    assert operations.counts(post.store) == {"pending": 0, "delivered": 2, "dead": 1, "cancelled": 0, "merged": 0}
    assert operations.counts(post.store, Selection(trigger="bad"))["dead"] == 1
    assert [delivery.key.trigger for delivery in operations.deliveries(post.store, Selection(reason="http"))] == ["bad"]
    assert len(operations.deliveries(post.store, Selection(commit_id="commit-1"))) == 2
    assert len(operations.deliveries(post.store, limit=1)) == 1


def test_what_ended_long_ago_is_forgotten(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1)
    post.deliver()
    post.clock.sleep(86400)
    post.owe(server.url, 2)
    assert operations.forget(post.store, 3600) == 1
    assert list(states(post)) == ["commit-2"]


def test_a_test_fire_calls_once_and_leaves_no_row(post: Post, server: Receiver) -> None:
    server.answers(Reply(500, b"no, hunter22hunter22"))
    hook = endpoint(server.url, headers={"X-Key": "hunter22hunter22"})
    answer = operations.test_fire(hook, events(1)[0], allowed_hosts=LOOPBACK)
    assert (answer.delivered, answer.status, answer.answer) == (False, 500, "no, ***")
    server.answers(200)
    again = operations.test_fire(hook, events(1)[0], allowed_hosts=LOOPBACK)
    assert again.delivered
    assert server.ids == [answer.delivery_id, again.delivery_id]
    assert operations.deliveries(post.store) == []


def test_a_test_fire_of_what_is_still_sealed_or_has_no_address_says_so() -> None:
    sealed = "ENC[AES256_GCM,data:abc,iv:def,tag:ghi,type:str]"
    document = {"config": {"a": {"url": sealed, "payload": {}}}, "sops": {"mac": "x"}}
    with raises(ConfigurationError):
        operations.test_fire(parse_triggers(document).config["a"], events(1)[0])
    block = parse_triggers({"config": {"a": {"connection": "c", "payload": {}}}})
    with raises(ConfigurationError):
        operations.test_fire(block.config["a"], events(1)[0])


class Catalog:
    name = "rfr"

    def table_exists(self, name: str) -> bool:
        return True


class AwayStore:
    def read(self) -> None:
        raise RuntimeError("no route to postgresql://rfr:hunter22@db")


def test_a_history_that_can_t_be_written_is_a_warning_without_what_the_database_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    operations.record_deliveries(AwayStore(), Catalog(), "rfr", {})  # type: ignore[arg-type]
    assert "can't be written (RuntimeError)" in caplog.text
    assert "hunter22" not in caplog.text
