"""Replies as bytes, encoded once and sent many times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson


class BadRequest(Exception):
    """Status 400: a parameter is invalid."""


class NotFound(Exception):
    """Status 404: the resource does not exist."""


@dataclass(frozen=True, slots=True)
class EncodedReply:
    """One encoded reply.

    :ivar head: status line and headers, with the blank line
    :ivar page: name of the page; None if the reply is not a page
    """

    status: int
    head: bytes
    body: bytes
    page: str | None = None
    records: int = 0


def json_reply(
    value: Any,
    *,
    status: int = 200,
    page: str | None = None,
    records: int = 0,
    headers: Mapping[str, str] | None = None,
) -> EncodedReply:
    return raw_reply(orjson.dumps(value), status=status, page=page, records=records, headers=headers)


def raw_reply(
    body: bytes,
    *,
    status: int = 200,
    page: str | None = None,
    records: int = 0,
    headers: Mapping[str, str] | None = None,
) -> EncodedReply:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {text}" for name, text in (headers or {}).items()),
    ]
    return EncodedReply(status, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body, page, records)


def error_reply(status: int, message: str, headers: Mapping[str, str] | None = None) -> EncodedReply:
    return json_reply({"error": message}, status=status, headers=headers)
