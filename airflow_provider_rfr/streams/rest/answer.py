"""What became of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson

from airflow_provider_rfr.streams.json_numbers import loads
from airflow_provider_rfr.streams.rest.bad_bodies import format_of, read_leniently
from airflow_provider_rfr.streams.rest.redaction import Redactor

_UNREAD: Final = object()
_EXCERPT: Final = 200


class NotJson(ValueError):
    """The body isn't JSON; the text says what it is, without its content."""


class AnotherFormat(NotJson):
    """The body is in another format; asking again can't help."""


class NearlyJson(NotJson):
    """The body is JSON but for some values; asking again can't help."""


@dataclass(slots=True)
class Answer:
    """A complete HTTP response.

    :ivar request: method and address without credentials
    :ivar url: the address that answered, credentials included
    :ivar lenient: values that make the body nearly JSON are replaced, see ``bad_bodies``
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    request: str
    url: str = field(repr=False)
    lenient: bool = False
    _json: Any = field(default=_UNREAD, repr=False)

    @property
    def ok(self) -> bool:
        """2xx."""
        return 200 <= self.status < 300

    @property
    def has_content(self) -> bool:
        """Whether the status lets expect a body."""
        return self.status not in (204, 205)

    def json(self) -> Any:
        """The body as JSON, parsed once; None where there is no content.

        :raises NotJson: it isn't any
        """
        if self._json is _UNREAD:
            self._json = _parse(self.body, self.headers, self.lenient) if self.has_content else None
        return self._json

    def text(self) -> str:
        """The body as text; what isn't UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")

    def describe(self, redactor: Redactor) -> str:
        """Status and the beginning of the body, for messages."""
        shown = excerpt(self.text(), redactor)
        return f"{self.status} {self.reason}".strip() + (f": {shown}" if shown else "")


def excerpt(text: str, redactor: Redactor) -> str:
    """The beginning of a text on one line, without secrets."""
    text = " ".join(redactor.text(text).split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer, or none that can be used.

    :ivar permanent: asking again can't help
    """

    message: str
    request: str
    permanent: bool = False


Outcome: TypeAlias = Answer | Failure


def _parse(body: bytes, headers: Mapping[str, str], lenient: bool) -> Any:
    if body.startswith(b"\xef\xbb\xbf"):
        body = body[3:]
    content_type = headers.get("Content-Type", "")
    charset = content_type.lower().partition("charset=")[2].partition(";")[0].strip(" \"'")
    try:
        plain = not charset or charset in ("utf-8", "utf8", "us-ascii", "ascii")
        return loads(body if plain else body.decode(charset).encode())
    except (orjson.JSONDecodeError, UnicodeError, LookupError) as error:
        problem = type(error).__name__ if not isinstance(error, orjson.JSONDecodeError) else error.msg
    if not body.strip():
        raise NotJson("the answer's body is empty")
    media_type = content_type.partition(";")[0].strip()
    return _read_refused(body, "utf-8" if plain else charset, media_type, problem, lenient)


def _read_refused(body: bytes, charset: str, media_type: str, problem: str, lenient: bool) -> Any:
    """The value of a body that a strict reader refuses, if it may be read leniently."""
    shown = f"{media_type or 'no content type'}, {len(body)} bytes"
    try:
        value, found = read_leniently(body, charset)
    except (ValueError, LookupError, RecursionError):
        pass
    else:
        if lenient:
            return value
        raise NearlyJson(f"the answer is not strict JSON ({', '.join(found) or problem}; {shown})")
    form = format_of(body, media_type)
    if form == "HTML":
        raise NotJson(f"the answer is HTML, not JSON ({shown}): a login page?")
    if form is not None:
        raise AnotherFormat(
            f"the answer is {form}, which is not supported ({shown}): ask the API for JSON, e.g. by request.headers:"
            " {Accept: application/json}, or read the stream by a Python class"
        )
    raise NotJson(f"the answer is not JSON ({problem}; {shown})")
