"""Credentials of a refresh on Spark: the driver obtains each token, for the driver prefetch and for all tasks."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.integration.conftest import Lake, Runner
from tests.webhook_receiver import Received, Receiver, Reply

PAGES, PARTITIONS, ROWS = 6, 6, 10
FAILED = 1


class Api:
    """Each token ends the one before, a refresh token works once, and after ``pages`` pages one token is revoked.

    :ivar redeemed: refresh tokens, or logins, in their order
    :ivar premature: how many of them replaced a token that was still good
    """

    def __init__(self, server: Receiver) -> None:
        self.url = f"http://127.0.0.1:{server.port}"
        self.redeemed: list[str] = []
        self.premature = 0
        self.pages: int | None = None
        self._valid = ""
        self._lock = threading.Lock()
        server.answers_by(self._reply)

    def _reply(self, request: Received) -> Reply:
        with self._lock:
            status, body = self._answer(request)
        return Reply(status, json.dumps(body).encode())

    def _answer(self, request: Received) -> tuple[int, Any]:
        url, issued = urlsplit(request.path), len(self.redeemed)
        if url.path == "/token":
            refresh_token = dict(parse_qsl(request.body.decode())).get("refresh_token", "login")
            self.redeemed.append(refresh_token)
            self.premature += self._valid != ""
            if refresh_token not in ("login", f"refresh-canary-{issued}"):
                return 400, {"error": "invalid_grant"}
            self._valid = f"access-canary-{issued}"
            return 200, {"access_token": self._valid, "refresh_token": f"refresh-canary-{issued + 1}"}
        if self.pages == 0:
            self._valid, self.pages = "", None
        sent = request.headers.get("authorization") or request.headers.get("x-session") or ""
        if sent.removeprefix("Bearer ") != self._valid:
            return 401, {"error": "token expired"}
        if self.pages is not None:
            self.pages -= 1
        query = dict(parse_qsl(url.query))
        page, first = int(query.get("page", "1")), 1000 * int(query["parent"])
        rows = range((page - 1) * ROWS, page * ROWS) if page <= PAGES else ()
        return 200, {"data": [{"id": first + number} for number in rows]}


@pytest.fixture
def tokens(server: Receiver) -> Api:
    return Api(server)


ROTATING = {
    "type": "oauth2",
    "grant": "refresh_token",
    "token_url": "/token",
    "refresh_token": "{{ config.refresh_token }}",
}
SESSION = {
    "type": "session_token",
    "login": {"url": "/token", "json": {"password": "{{ config.refresh_token }}"}},
    "token": {"path": "access_token"},
    "send_as": {"header": "X-Session"},
}


def source_of(api: Api, authenticator: dict[str, Any]) -> dict[str, Any]:
    items = {
        "request": {"path": "/items", "query": {"parent": "{{ stream_slice.parent }}"}},
        "records": {"path": "data"},
        "paginator": {"type": "page_number"},
        "partitions": {"type": "list", "field": "parent", "values": list(range(PARTITIONS))},
    }
    return {
        "definition": {"base_url": api.url, "authenticator": authenticator, "streams": {"items": items}},
        "secrets": {"refresh_token": "refresh-canary-0"},
    }


@pytest.mark.parametrize("authenticator", [ROTATING, SESSION], ids=["rotating refresh token", "session"])
@pytest.mark.parametrize("head_start", [True, False])
def test_all_tasks_read_with_the_tokens_that_the_driver_obtains(
    authenticator: dict[str, Any], head_start: bool, tokens: Api, lake: Lake, runner: Runner, tmp_path: Path
) -> None:
    tokens.pages = PAGES * PARTITIONS // 2
    options = {"concurrency": 8, "head_start": head_start, "round_seconds": 2}
    store = f"sqlite:///{tmp_path}/control.db"
    config = runner.config(source=source_of(tokens, authenticator), streams=["items"], options=options, store=store)
    outcome = runner.run(config)
    assert lake.rows("raw.items").num_rows == PAGES * PARTITIONS * ROWS
    # Tasks that read at the same time are refused together, and ask for one new token.
    expected = ["login"] * 2 if authenticator is SESSION else ["refresh-canary-0", "refresh-canary-1"]
    assert (tokens.redeemed, tokens.premature) == (expected, 0)
    assert "canary" not in outcome.output


def test_the_next_run_redeems_the_refresh_token_that_the_last_one_got(
    tokens: Api, lake: Lake, runner: Runner, tmp_path: Path
) -> None:
    more = {"options": {"concurrency": 4}, "store": f"sqlite:///{tmp_path}/control.db"}
    for _ in range(2):
        # The connection still has the first one.
        runner.run(runner.config(source=source_of(tokens, ROTATING), streams=["items"], **more))
    assert tokens.redeemed == ["refresh-canary-0", "refresh-canary-1"]
    del more["store"]
    outcome = runner.run(runner.config(source=source_of(tokens, ROTATING), streams=["items"], **more), expect=FAILED)
    assert "no token could be obtained: 400 Bad Request" in outcome.figures["error"]["message"]
    assert "canary" not in outcome.output
