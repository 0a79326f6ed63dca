"""Batches as POST requests; an answer of 2xx acknowledges a batch.

The body is a JSON object: ``sink``, ``batch_id``, ``from_snapshot`` and ``to_snapshot`` (texts: they exceed what
JavaScript can count), ``part``, ``last``, ``resend`` (above 0: rows that were sent before are sent anew) and ``rows``.
The header ``Idempotency-Key`` is the batch's id: a receiver that keeps the ids it has seen takes every row once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from airflow_provider_rfr.builtins.sinks.payload import dumps, rows_of
from airflow_provider_rfr.builtins.sinks.targets import Batch, HttpTarget
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.exceptions.sinks import SinkDeliveryError

_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT: Final = 30.0
_BACKOFF: Final = wait_random_exponential(multiplier=0.2, max=_LONGEST_WAIT)


class _TryAgainError(Exception):
    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


class HttpSender:
    """Posts to one address."""

    def __init__(self, sink: str, settings: Mapping[str, Any], target: HttpTarget) -> None:
        self._sink = sink
        self._target = target
        self._url = "/".join((target.url.rstrip("/"), str(settings.get("path", "")).lstrip("/"))).rstrip("/")
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            remedy = "a host, and http or https as its schema"
            raise ConfigurationError("sink.settings.connection", "its address is no HTTP address", remedy)
        self._host = parts.hostname
        self._session = requests.Session()
        # Otherwise a password in ~/.netrc would take the place of the headers.
        self._session.auth = lambda request: request

    def send(self, batch: Batch) -> None:
        """Post the batch, several times where that may help."""
        body = dumps(_body(batch))
        retrying = Retrying(
            retry=retry_if_exception_type(_TryAgainError),
            stop=stop_after_delay(self._target.patience),
            wait=_wait,
            reraise=True,
        )
        try:
            retrying(self._post, batch.id, body)
        except _TryAgainError as error:
            raise SinkDeliveryError(self._sink, f"{self._host} did not take batch {batch.id}: {error}") from None

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _post(self, batch_id: str, body: bytes) -> None:
        headers = {**self._target.headers, "Content-Type": "application/json", "Idempotency-Key": batch_id}
        timeout, verify = self._target.timeout, self._target.verify
        try:
            answer = self._session.post(
                self._url,
                data=body,
                headers=headers,
                timeout=timeout,
                verify=verify,
                allow_redirects=False,
                stream=True,
            )
        except requests.exceptions.RequestException as error:
            # The library's own words hold the address, and that may hold a secret.
            raise _TryAgainError(type(error).__name__) from None
        with answer:
            self._judge(batch_id, answer)

    def _judge(self, batch_id: str, answer: requests.Response) -> None:
        if 200 <= answer.status_code < 300:
            return
        if answer.status_code in _AGAIN:
            after = answer.headers.get("Retry-After", "")
            wait = min(float(after), _LONGEST_WAIT) if after.isascii() and after.isdigit() else None
            raise _TryAgainError(f"HTTP {answer.status_code}", wait)
        problem = f"{self._host} refused batch {batch_id} with HTTP {answer.status_code}"
        raise SinkDeliveryError(self._sink, problem, "see the receiver's log; the batch is sent again by the next run")


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.wait if isinstance(error, _TryAgainError) else None
    return _BACKOFF(state) if asked is None else asked


def _body(batch: Batch) -> dict[str, Any]:
    window = batch.window
    return {
        "sink": batch.sink,
        "batch_id": batch.id,
        "from_snapshot": None if window.before is None else str(window.before),
        "to_snapshot": str(window.after),
        "part": window.part,
        "last": batch.last,
        "resend": batch.again,
        "rows": list(rows_of(batch.rows, window.keys)),
    }
