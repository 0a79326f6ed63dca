"""Eight-byte marks of what a chain has had: a token or a page that comes twice means that it would never end."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from typing import Any


def token_mark(token: str) -> int:
    """Mark of a token's JSON text."""
    return _mark("t" + token)


def content_mark(checksum: str) -> int:
    """Mark of a page's records."""
    return _mark("c" + checksum)


def row_marks(
    *, page: int, token_in: str | None, token_out: str | None, record_count: int, checksum: str | None
) -> list[tuple[int, str]]:
    """The marks that one page leaves, each with the name that an error gives it."""
    marks = []
    if page == 1 and token_in is not None:
        marks.append((token_mark(token_in), f"the page token {token_in:.80}"))
    if token_out is not None:
        marks.append((token_mark(token_out), f"the page token {token_out:.80}"))
    if record_count and checksum is not None:
        marks.append((content_mark(checksum), "a page with the same records"))
    return marks


def marks_of_rows(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The marks of committed rows of one chain, as a task gets them."""
    names = ("page", "token_in", "token_out", "record_count", "checksum")
    marks = array("Q")
    for row in rows:
        marks.extend(mark for mark, _ in row_marks(**{name: row[name] for name in names}))
    return marks.tobytes()


def _mark(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
