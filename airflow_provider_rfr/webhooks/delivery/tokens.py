"""Tokens that a receiver hands out for a password: fetched when needed, kept, and fetched again once at 401."""

from __future__ import annotations

import json
import threading
from typing import Any

from airflow_provider_rfr.webhooks.configuration.preset_base import TokenStep
from airflow_provider_rfr.webhooks.delivery.address_guard import AddressGuard
from airflow_provider_rfr.webhooks.delivery.deadline import Deadline
from airflow_provider_rfr.webhooks.delivery.http import Answer, Client, NoAnswer, Request, host_of


class TokenKeeper:
    """One endpoint's token, for all threads that call it. It has no repr that would show it."""

    def __init__(self, step: TokenStep, guard: AddressGuard, verify: bool | str = True) -> None:
        self._step = step
        self._guard = guard
        self._verify = verify
        self._lock = threading.Lock()
        self._token: str | None = None

    def __repr__(self) -> str:
        return "TokenKeeper()"

    def token(self, client: Client, deadline: Deadline, refused: str | None = None) -> str | NoAnswer:
        """A token, fetched within the attempt's time where none is known.

        :param refused: the token that was answered with 401; another thread may have replaced it already
        """
        # Who waits here waits no longer than its own attempt may take.
        if not self._lock.acquire(timeout=deadline.left()):
            return NoAnswer("token", f"{host_of(self._step.url)} gave no token in time")
        try:
            if self._token is None or self._token == refused:
                found = self._fetch(client, deadline)
                if isinstance(found, NoAnswer):
                    self._token = None
                    return found
                self._token = found
            return self._token
        finally:
            self._lock.release()

    def header(self, token: str) -> dict[str, str]:
        """The header that carries it."""
        return {self._step.header: self._step.value.replace("{}", token)}

    def _fetch(self, client: Client, deadline: Deadline) -> str | NoAnswer:
        body = json.dumps(dict(self._step.body)).encode()
        host = host_of(self._step.url)
        request = Request("POST", self._step.url, {"Accept": "application/json"}, body, self._verify)
        answer = client.send(request, deadline, self._guard)
        if isinstance(answer, NoAnswer):
            return NoAnswer("token", f"no token: {answer.detail}", answer.permanent)
        token = _at(answer, self._step.pointer)
        if token is not None and 200 <= answer.status < 300:
            return token
        permanent = 400 <= answer.status < 500 and answer.status not in (408, 429)
        return NoAnswer("token", f"{host} gave no token: HTTP {answer.status}", permanent)


def _at(answer: Answer, pointer: str) -> str | None:
    try:
        value: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    for part in pointer.split("/")[1:]:
        value = value.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
    # What a header can't carry is no token, and would be told by an error that shows it.
    usable = isinstance(value, str) and value.isascii() and value.isprintable() and value.strip() == value
    return value if usable and value else None
