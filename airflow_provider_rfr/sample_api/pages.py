"""The resources and their ways of paging, as replies that are encoded once and sent many times."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from airflow_provider_rfr.sample_api.dataset import Collection, Dataset


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


_NUMBERED = re.compile(r"/customers|/partitions/\d+/items")
_CHILDREN = re.compile(r"/customers/\d+/orders")
_LARGEST_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Tweak:
    """The changes that faults make to the content of one page."""

    leave_out: int = 0
    repeat_cursor: bool = False
    repeat_page: bool = False


PLAIN = Tweak()


def page_of(dataset: Dataset, path: str, query: Mapping[str, str], origin: str, tweak: Tweak = PLAIN) -> EncodedReply:
    """Return one page of a resource.

    :param origin: scheme and host as the client wrote them, for links
    :raises NotFound: the resource does not exist
    :raises BadRequest: a parameter can't be read
    """
    if path == "/partitions":
        partitions = [{"id": number} for number in range(dataset.sizes.partitions)]
        return json_reply({"data": partitions}, page=path, records=len(partitions))
    collection = dataset.collection(path)
    if collection is None:
        raise NotFound(f"nothing exists at {path}")
    if _NUMBERED.fullmatch(path):
        return _numbered(collection, query, tweak)
    if _CHILDREN.fullmatch(path):
        return _by_cursor(collection, query, tweak)
    if path == "/orders":
        return _by_offset(collection, query, tweak)
    return _linked(collection, query, origin, tweak)


def _numbered(collection: Collection, query: Mapping[str, str], tweak: Tweak) -> EncodedReply:
    number, size = _integer(query, "page", 1, 1), _size(query, "page_size")
    total = len(collection.numbers)
    start = (number - 1) * size
    body = {"page": number, "page_size": size, "pages": -(-total // size), "total": total}
    return _reply(collection, start, size, body, tweak)


def _by_offset(collection: Collection, query: Mapping[str, str], tweak: Tweak) -> EncodedReply:
    start, size = _integer(query, "offset", 0, 0), _size(query, "limit")
    body = {"offset": start, "limit": size, "total": len(collection.numbers)}
    return _reply(collection, start, size, body, tweak)


def _by_cursor(collection: Collection, query: Mapping[str, str], tweak: Tweak) -> EncodedReply:
    size = _size(query, "limit")
    after = _decoded(query["cursor"], collection) if query.get("cursor") else 0
    start = collection.after(after) if after else 0
    stop = min(start + size, len(collection.numbers))
    following: str | None = None
    if tweak.repeat_cursor:
        following = query.get("cursor") or _encoded(collection, after)
    elif stop < len(collection.numbers):
        following = _encoded(collection, collection.numbers[stop - 1])
    return _reply(collection, start, size, {"next_cursor": following}, tweak, place=f"after {after}")


def _linked(collection: Collection, query: Mapping[str, str], origin: str, tweak: Tweak) -> EncodedReply:
    number, size = _integer(query, "page", 1, 1), _size(query, "per_page")
    start, last = (number - 1) * size, max(-(-len(collection.numbers) // size), 1)
    base = f"{origin}{collection.path}?per_page={size}&page="
    following = number if tweak.repeat_cursor else number + 1
    links = [f'<{base}{following}>; rel="next"'] if following <= last else []
    links.append(f'<{base}{last}>; rel="last"')
    return _reply(collection, start, size, None, tweak, headers={"Link": ", ".join(links)})


def _reply(
    collection: Collection,
    start: int,
    size: int,
    envelope: dict[str, Any] | None,
    tweak: Tweak,
    *,
    place: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> EncodedReply:
    shown = max(start - size, 0) if tweak.repeat_page else start
    records = collection.part(shown, shown + size)
    if tweak.leave_out:
        records = records[: -tweak.leave_out]
    page = f"{collection.path} {place or f'at {start}'} size {size}"
    value = records if envelope is None else {"data": records, **envelope}
    return json_reply(value, page=page, records=len(records), headers=headers)


def _size(query: Mapping[str, str], name: str) -> int:
    return min(_integer(query, name, 100, 1), _LARGEST_PAGE)


def _integer(query: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < least:
        raise BadRequest(f"{name} must be an integer from {least}, got {text!r}")
    return int(text)


def _encoded(collection: Collection, after: int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([collection.path, after])).decode().rstrip("=")


def _decoded(cursor: str, collection: Collection) -> int:
    try:
        path, after = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if path != collection.path:
            raise ValueError("a cursor of another collection")
        return int(after)
    except (ValueError, TypeError, binascii.Error) as error:
        raise BadRequest(f"cursor {cursor!r} can't be read") from error
