"""Signatures, checked by an implementation that is not ours."""

from __future__ import annotations

import base64
import json
import os
import time

import pytest
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from airflow_provider_rfr.webhooks._fields import signing_key
from airflow_provider_rfr.webhooks.calls import webhook_headers


def new_secret(size: int = 32) -> str:
    return "whsec_" + base64.b64encode(os.urandom(size)).decode()


def keys(*secrets: str) -> list[bytes]:
    return [signing_key(SecretStr(secret)) for secret in secrets]


@pytest.mark.parametrize("size", [24, 32, 64])
def test_an_independent_verifier_accepts_the_signature(size: int) -> None:
    secret, body = new_secret(size), json.dumps({"collections": ["a", "ü", "😀"]}).encode()
    headers = webhook_headers(keys(secret), "a" * 32, int(time.time()), body)
    assert Webhook(secret).verify(body, headers) == json.loads(body)


def test_each_of_several_secrets_signs_so_that_one_can_be_replaced() -> None:
    old, new = new_secret(), new_secret()
    headers = webhook_headers(keys(new, old), "id", int(time.time()), b"{}")
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        Webhook(secret).verify(b"{}", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(b"{}", headers)


@pytest.mark.parametrize("change", ["body", "webhook-id", "webhook-timestamp"])
def test_what_is_changed_on_the_way_is_not_accepted(change: str) -> None:
    secret, body, now = new_secret(), b'{"a":1}', int(time.time())
    headers = webhook_headers(keys(secret), "id", now, body)
    if change == "body":
        body = b'{"a":2}'
    else:
        headers[change] = {"webhook-id": "other", "webhook-timestamp": str(now + 1)}[change]
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body, headers)


def test_without_secrets_there_is_an_id_and_a_time_all_the_same() -> None:
    assert webhook_headers((), "id", 1_700_000_000, b"{}") == {"webhook-id": "id", "webhook-timestamp": "1700000000"}
