"""Standard Webhooks: who sent this, when, and whether it has been seen before (standardwebhooks.com).

``webhook-id`` is the delivery's id, the same on every copy; ``webhook-timestamp`` is the attempt's time in seconds;
``webhook-signature`` has one signature for each secret, so that a secret can be replaced while both are accepted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

ID_HEADER, TIME_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"


def signature(key: bytes, delivery_id: str, timestamp: int, body: bytes) -> str:
    """One signature, version 1: HMAC with SHA-256 over id, time and body."""
    content = f"{delivery_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode("ascii")


def webhook_headers(keys: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt.

    :param keys: secrets, the newest first; without any there is no signature, and the other headers all the same
    """
    headers = {ID_HEADER: delivery_id, TIME_HEADER: str(timestamp)}
    if keys:
        headers[SIGNATURE_HEADER] = " ".join(signature(key, delivery_id, timestamp, body) for key in keys)
    return headers
