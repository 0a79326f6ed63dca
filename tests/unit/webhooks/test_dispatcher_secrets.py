"""Canaries: values that must be nowhere but in the requests themselves."""

from __future__ import annotations

import base64
import logging
import sqlite3
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.calls import ConnectionSettings, resolve
from airflow_provider_rfr.webhooks.operations import DeadLetter
from airflow_provider_rfr.webhooks.outbox import endpoints_of, enqueue
from tests.unit.messages import raises
from tests.webhook_receiver import (
    LAKE,
    LOOPBACK,
    TABLE,
    FakeClock,
    Received,
    Receiver,
    Reply,
    events,
    loopback_dispatcher,
)

HEADER = "canary-header-7f3a"
PATH = "canary-path-91bc"
QUERY = "canary-query/+55d0"
TOKEN = "canary-token-aa01"
ROUTING = "canary-routing-c4c4"
PASSWORD = "canary-password-0e0e"
SIGNING = "whsec_" + base64.b64encode(b"canary-signing-secret-0123").decode()
CANARIES = (HEADER, PATH, QUERY, quote(QUERY, safe=""), TOKEN, ROUTING, PASSWORD, SIGNING, SIGNING[6:])


def document(url: str) -> dict[str, Any]:
    address = f"{url}/{PATH}/x?sig={quote(QUERY, safe='')}"
    allowed = {"timeout": "1s", "maxAttempts": 2}
    signing = {"signing": {"secrets": [SIGNING]}}
    plain = {"headers": {"X-Key": HEADER, "Authorization": f"Bearer {HEADER}"}, "exposeHeaders": ["X-Key"]}
    return {
        "config": {
            "plain": {"url": address, "payload": {"h": "{{headers.X-Key}}"}, **signing, **plain, **allowed},
            "broken": {"url": address, "payload": {"h": "{{headers.X-Key}}", "x": "{{nope}}"}, **plain, **allowed},
            "nojson": {"url": address, "payloadTemplate": '{"a": {{{headers.X-Key}}}', **plain, **allowed},
            "pager": {"url": f"{url}/{PATH}", "preset": "pagerduty", "with": {"routingKey": ROUTING}, **allowed},
            "token": {"url": f"{url}/{PATH}", "preset": "databricks", "with": {"jobId": 1, "token": TOKEN}, **allowed},
            "login": {"connection": "c", "preset": "airflow-dag-run", "with": {"dagId": "d"}, **allowed},
            "basic": {"connection": "c", "payload": {}, **allowed},
        }
    }


def echo(status: int) -> Callable[[Received], Reply]:
    def answer(request: Received) -> Reply:
        text = f"{request.path}\n{request.headers}\n".encode() + request.body
        location = f"http://{request.headers.get('x-key', 'other')}.example/{PATH}?{QUERY}"
        return Reply(status, text, {"Location": location})

    return answer


def close(sock: Any) -> None:
    sock.close()


def drip(sock: Any) -> None:
    for byte in b"HTTP/1.1 200 OK\r\n" * 2:
        sock.sendall(bytes([byte]))
        time.sleep(0.2)


ANSWERS: dict[str, Callable[[Received], Reply]] = {
    **{str(status): echo(status) for status in (200, 302, 401, 410, 500)},
    "closed": lambda request: Reply(raw=close),
    "dripping": lambda request: Reply(raw=drip),
}


@pytest.mark.parametrize("kind", [*ANSWERS, "refused", "refused address", "tls"])
def test_no_secret_is_told_anywhere(
    kind: str, server: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server.answers_by(ANSWERS.get(kind, echo(200)))
    base = {"refused": "http://127.0.0.1:1", "tls": f"https://127.0.0.1:{server.port}"}.get(
        kind, f"http://127.0.0.1:{server.port}"
    )
    written = document(base)
    if kind == "refused address":
        for endpoint in written["config"].values():
            endpoint["allowedHosts"] = ["10.0.0.1"]
    told: list[DeadLetter] = []
    with caplog.at_level(logging.DEBUG):
        shown = run(tmp_path, parse_triggers(written), base, told)
    records = "\n".join(logging.Formatter("%(message)s %(args)s").format(record) for record in caplog.records)
    everything = "\n".join([records, shown, repr(told), *capfd.readouterr(), stored(tmp_path)])
    assert len(caplog.records) > 5
    for canary in CANARIES:
        assert canary not in everything, canary
    if kind == "500":
        assert "***" in stored(tmp_path), "the answers were kept, and masked"


def run(folder: Path, block: Any, base: str, told: list[DeadLetter]) -> str:
    """Deliver by all endpoints; returns all that could be shown of it."""
    clock = FakeClock()
    store = open_store(f"sqlite:///{folder}/control.db", clock=clock)
    endpoints = endpoints_of(LAKE, TABLE, block)
    enqueue(store, events(1, 2), endpoints)

    def connections(name: str) -> ConnectionSettings:
        return ConnectionSettings(f"{base}/{PATH}", "robot", PASSWORD, {"X-Key": HEADER})

    dispatcher = loopback_dispatcher(store, endpoints, connections=connections, on_dead=told.append)
    tally = dispatcher.deliver_due(until_empty=True, patience=300)
    shown = [repr(dispatcher), repr(tally), repr(endpoints), repr(store)]
    error = tally.error()
    if error is not None:
        shown += traceback.format_exception(error)
    calls = [resolve(endpoint, connections, LOOPBACK) for endpoint in endpoints.values()]
    shown += [repr(call) + repr(call.masker) for call in calls]
    rows = operations.deliveries(store, limit=None)
    shown += [repr(connections("c")), repr(rows), *(repr(operations.history(store, row.id)) for row in rows)]
    for endpoint in endpoints.values():
        answer = operations.test_fire(endpoint, events(3)[0], connections=connections, allowed_hosts=LOOPBACK)
        shown.append(repr(answer))
    return "\n".join(shown)


def stored(folder: Path) -> str:
    texts = [path.read_bytes().decode("latin-1") for path in folder.glob("control.db*")]
    with sqlite3.connect(folder / "control.db") as connection:
        texts += connection.iterdump()
    return "\n".join(texts)


def test_a_body_with_a_secret_has_no_digest_by_which_it_could_be_guessed(server: Receiver, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/control.db")
    written = document(server.url)["config"]
    block = parse_triggers({"config": {name: written[name] for name in ("plain", "pager", "token")}})
    endpoints = endpoints_of(LAKE, TABLE, block)
    enqueue(store, events(1), endpoints)
    assert loopback_dispatcher(store, endpoints).deliver_due().delivered == 3
    rows = operations.deliveries(store)
    digests = {row.key.trigger: operations.history(store, row.id)[0].body_sha256 for row in rows}
    assert [name for name, digest in digests.items() if digest is not None] == ["token"]


def test_no_error_that_is_raised_holds_one(server: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"sqlite:///{tmp_path}/control.db")
    endpoints = endpoints_of(LAKE, TABLE, parse_triggers(document(server.url)))
    enqueue(store, events(1), endpoints)
    real, calls = ControlStore.run, []

    def failing(self: ControlStore, work: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            return real(self, lambda connection: connection.exec_driver_sql("SELECT a FROM nowhere"))
        return real(self, work, **options)

    monkeypatch.setattr(ControlStore, "run", failing)
    nowhere = ConnectionSettings("nowhere", "a", PASSWORD)
    with raises(Exception) as caught:
        loopback_dispatcher(store, endpoints, connections=lambda name: nowhere).deliver_due()
    text = "".join(traceback.format_exception(caught.value))
    login = endpoints[next(key for key in endpoints if key.trigger == "login")]
    with pytest.raises(ConfigurationError) as sealed:
        resolve(login, lambda name: ConnectionSettings(f"ftp://{PATH}", "a", PASSWORD))
    text += "".join(traceback.format_exception(sealed.value))
    for canary in CANARIES:
        assert canary not in text, canary
