"""A stream of a manifest, read by the CDK one page at a time, and the JSON form of its slices and page tokens.

Both are stored, and read by another process, so they must come back as they were. The CDK evaluates what a template
gives as a Python literal, so a token ``1,2`` is a tuple; JSON would make a list of it, and another request.
"""

from __future__ import annotations

import ast
import logging
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final, TypeVar

from requests import Response

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    ConfigurationError,
    RateLimitedError,
    ReadInterrupted,
    RfrError,
    SourceError,
)
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.airbyte import _cdk
from airflow_provider_rfr.streams.airbyte._cdk import Interpreted, OnePage, Paging
from airflow_provider_rfr.streams.airbyte._guard import (
    Hosts,
    StreamWork,
    redacted_message,
    without_secret_arguments,
    working_for,
)
from airflow_provider_rfr.streams.airbyte.spec import ManifestLimits, custom_classes, warnings_of
from airflow_provider_rfr.streams.core import Page, ReadContext, canonical_json, unique_slices
from airflow_provider_rfr.streams.paged import PagedStream

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_REFUSED: Final = frozenset({401, 403})
_TOO_MANY: Final = 429
_OF_CODE: Final = (AttributeError, ImportError, NameError, TypeError)


class ManifestStream(PagedStream):
    """A stream of a manifest, read as the CDK does. Stateless: any page of any slice, on any thread.

    A slice is JSON of three parts, which are left out where they are empty: ``partition``, ``cursor_slice`` and
    ``extra_fields``. The first two are its key: other fields of a parent's record may change between two attempts.

    :ivar paging: whether it is read by page or by slice, and why
    :param paging: as far as code of the connector lets it be known
    :param hosts: where requests may go
    :param limits: the rates at which the API may be asked, by the manifest
    :param rebuild: gives a function and its arguments that make the stream again in another process; they hold
        secrets, which therefore are no attribute
    :param hint: added to errors of components that were written for an older CDK
    """

    paces_itself = True
    casts = True  # as Airbyte's destinations do: schemas of manifests are guessed from a few records

    def __init__(
        self,
        interpreted: Interpreted,
        *,
        paging: Paging,
        redactor: Redactor,
        hosts: Hosts,
        limits: ManifestLimits,
        fingerprint: Mapping[str, Any],
        rebuild: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]],
        hint: str = "",
    ) -> None:
        self.name = interpreted.name
        self.primary_key = interpreted.primary_key
        self.paging = paging
        self.page_size = self.paging.page_size
        self.addressable = self.paging.step is not None
        self.requests_per_second = limits.requests_per_second
        self.max_concurrency = limits.concurrency
        self._limits = limits
        self._interpreted = interpreted
        self._is_left_half_way = False
        self._redactor = redactor
        self._hosts = hosts
        self._fingerprint = fingerprint
        self._rebuild = rebuild
        self._hint = hint

    @cached_property
    def json_schema(self) -> Mapping[str, Any] | None:  # type: ignore[override]  # some streams ask the API for it
        schema = self._working(lambda work: self._interpreted.schema)
        return schema if schema.get("properties") else None

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        """Yield the partitions; a parent stream is read for them. Slices are made once, when the refresh opens."""
        if not self.paging.by_page:
            _log.warning("%s: can't be resumed within a slice: %s", self.name, self.paging.why)
        elif custom_classes(self._interpreted.definition):
            _log.warning("%s: resumed by page: %s; else set components_keep_state", self.name, self.paging.why)
        for warning in warnings_of(self._interpreted.definition, self._limits):
            _log.warning("%s: %s", self.name, warning)
        slices = self._interpreted.slices()

        def following(work: StreamWork) -> Any:
            stream_slice = next(slices, None)
            if work.ignored is not None:
                _log.warning("%s: partitions may be missing: the manifest ignores %s", self.name, work.ignored)
            return stream_slice

        listed = map(slice_to_json, iter(lambda: self._working(following), None))
        return (stream_slice.partition for stream_slice in unique_slices(self, listed))

    def partition_key(self, stream_slice: Mapping[str, Any]) -> str:
        key = {name: part for name, part in stream_slice.items() if name != "extra_fields"}
        return canonical_json(key, field="stream_slices")

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        if token is not None and not self.paging.by_page:
            problem = f"page token {token!r}, but {self.paging.why}"
            raise ConfigurationError(f"{self.name}.state", problem, "start again with force_restart")
        return self._working(lambda work: self._page(stream_slice, token, work))

    def _page(self, stream_slice: Mapping[str, Any], token: Any | None, work: StreamWork) -> Page:
        page = OnePage(from_json(token)) if self.paging.by_page else None
        if page is not None:
            records = self._interpreted.read(slice_parts(stream_slice), page)
        else:
            records = self._whole_slice(stream_slice)
        following = None if page is None else without_secret_arguments(page.following, self._redactor)
        skipped = None
        if work.ignored is not None:
            is_last = page is not None and following is None
            skipped = f"the manifest ignores {work.ignored}" + (", which ends the slice" if is_last else "")
        received = None if page is None else page.received
        following = to_json(following, "page token")
        return Page(records, following, None, work.request, work.status, skipped=skipped, received=received)

    def _whole_slice(self, stream_slice: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Read a slice whole, by objects that keep nothing of a slice that was left half way.

        A slice whose read was interrupted is read again, often by this process.
        """
        if self.paging.keeps_state or self._is_left_half_way:
            build, arguments = self._rebuild()
            again: ManifestStream = build(*arguments)
            self._interpreted, self._is_left_half_way = again._interpreted, False
            # Not the attribute: another thread may have set it meanwhile, to what it reads with.
            interpreted = again._interpreted
        else:
            interpreted = self._interpreted
        try:
            return interpreted.read(slice_parts(stream_slice))
        except BaseException:
            self._is_left_half_way = bool(custom_classes(interpreted.definition))
            raise

    def source_for_executors(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        _, (own_source, _) = self._rebuild()
        return own_source  # type: ignore[no-any-return]  # of a tuple of any arguments

    def token_at(self, position: int) -> Any | None:
        if self.paging.step is None:
            return super().token_at(position)
        return None if position == 0 else self.paging.first + position * self.paging.step

    def fingerprint(self) -> Mapping[str, Any]:
        return self._fingerprint

    def _working(self, do: Callable[[StreamWork], _Result]) -> _Result:
        return with_own_errors(do, self._redactor, self.context, self._hosts, self._hint)

    def __reduce__(self) -> Any:
        return self._rebuild()

    def __repr__(self) -> str:
        return f"ManifestStream({self.name!r})"


def with_own_errors(
    do: Callable[[StreamWork], _Result], redactor: Redactor, context: ReadContext, hosts: Hosts | None, hint: str = ""
) -> _Result:
    """Return the result of ``do``, which this thread runs for the stream.

    :raises RfrError: instead of any error of the CDK or a component, in redacted words
    :raises ReadInterrupted: the reader was stopped
    """
    with working_for(redactor, context, hosts) as work:
        try:
            return do(work)
        except Exception as error:  # noqa: BLE001 - of the CDK, of components, of any library below them
            own = _own_error(error, work, hint)
    # Out here: the first error, whose text holds addresses and bodies, must not become the context.
    raise own


def _own_error(error: Exception, work: StreamWork, hint: str) -> Exception:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (RfrError, ReadInterrupted)):
            cause.__cause__ = cause.__context__ = None
            return cause
        cause = cause.__cause__ or cause.__context__
    # Of the CDK's own errors the message is for people; the internal one repeats bodies and headers.
    words = getattr(error, "message", None)
    words = words if isinstance(words, str) and words else f"{type(error).__name__}: {error}"
    words = words.removesuffix(" Please contact Airbyte Support.")
    # Where a component failed; of the CDK's own errors that says nothing.
    frames = () if hasattr(error, "internal_message") else traceback.extract_tb(error.__traceback__)
    place = f" (in {PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, AttributeError) and frames and frames[-1].filename == _cdk.__file__:
        place = f"{place}; this package is tested with airbyte-cdk {_cdk.TESTED}"
    message = redacted_message(f"{words}{place}", work.redactor)
    where: dict[str, Any] = {"status": work.status, "request": work.request}
    if work.status == _TOO_MANY:
        return RateLimitedError(message, retry_after=work.retry_after, **where)
    if work.status in _REFUSED:
        return AuthenticationError(f"the API does not accept the credentials: {message}", **where)
    return SourceError(f"{message}; {hint}" if hint and isinstance(error, _OF_CODE) else message, **where)


_LITERAL: Final = "__literal__"
_ANSWER: Final = "__answer__"
_PARTS: Final = ("partition", "cursor_slice", "extra_fields")


def to_json(value: Any, place: str) -> Any:
    """Return a value as JSON, from which :func:`from_json` makes an equal one of the same types.

    :param place: the field that an error names
    :raises ConfigurationError: it holds something that is neither JSON nor a Python literal
    """
    if isinstance(value, float) and math.isinf(value):
        # A cursor that counts ends there. JSON has no infinity, Python no literal but a number that is too large.
        return {_LITERAL: "1e999" if value > 0 else "-1e999"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [to_json(item, place) for item in value]
    if isinstance(value, Mapping):
        plain = dict(value.items())
        if not {_LITERAL, _ANSWER} & plain.keys() and all(isinstance(key, str) for key in plain):
            return {key: to_json(item, place) for key, item in plain.items()}
        return _literal(plain, place)
    if isinstance(value, Response):
        # A parent's record may hold its children's first page, of which the CDK makes an answer.
        return {_ANSWER: value.text}
    return _literal(value, place)


def from_json(value: Any) -> Any:
    """Return the value that :func:`to_json` was given; mappings of the CDK's own classes become plain ones."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {_LITERAL}:
        return ast.literal_eval(value[_LITERAL])
    if value.keys() == {_ANSWER}:
        answer = Response()
        answer.status_code, answer._content, answer.encoding = 200, value[_ANSWER].encode(), "utf-8"
        return answer
    return {key: from_json(item) for key, item in value.items()}


def slice_to_json(stream_slice: Any) -> dict[str, Any]:
    """Return a slice of the CDK as JSON; ``{}`` for a stream that isn't divided.

    :raises ConfigurationError: it holds something that is alive only in this process, such as a response
    """
    parts = {name: dict(getattr(stream_slice, name)) for name in _PARTS}
    return {name: to_json(part, "stream_slices") for name, part in parts.items() if part}


def slice_parts(stream_slice: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the arguments from which the CDK makes the slice again."""
    for name in _PARTS:
        yield name, from_json(stream_slice.get(name, {}))


def _literal(value: Any, place: str) -> dict[str, str]:
    text = repr(value)
    try:
        same = bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError):
        same = False
    if not same:
        problem = f"holds a {type(value).__name__}, which can't be stored"
        raise ConfigurationError(place, problem, "this stream of the manifest can't be resumed, nor read")
    return {_LITERAL: text}
