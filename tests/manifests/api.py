"""An API made up from a manifest, on loopback: it answers as the extractor and the paginator of each stream expect.

A stream has three pages, or two where a page is large; the last one is short. Nothing is random, and no page depends on
what was asked before, so two readers that send the same requests get the same records.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tests.loopback import LoopbackServer
from tests.manifests.paging import MadeUpAnswer, MadeUpPaging, place, placed, places_of, rendered

TAG: Final = "X-Made-Up"
"""Header by which a request says which stream of the manifest sends it."""
FEW: Final = 3
NOW: Final = "2026-01-01T00:00:00+00:00"
_PROPERTIES: Final = 12
_DEPTH: Final = 2
_MOST_REQUESTS: Final = 300
_MINUTES: Final = 50


@dataclass(frozen=True, slots=True)
class SentRequest:
    tag: str
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class MadeUpEndpoint:
    """The answers to the requests of one stream of a manifest.

    :param node: the stream, without references
    :param wanted: paths in a record that other streams read
    :param most: records of a page; None for as many as the paginator asks for
    """

    def __init__(
        self,
        node: Mapping[str, Any],
        wanted: Sequence[Sequence[str]],
        config: Mapping[str, Any],
        most: int | None = None,
    ) -> None:
        self._node, self._config, self._most = node, config, most
        retriever = node["retriever"]
        self._parameters = {**node.get("$parameters", {}), **retriever.get("$parameters", {})}
        extractor = retriever.get("record_selector", {}).get("extractor", {})
        path = extractor.get("field_path") or []
        self._path = [
            str(rendered(part, self._parameters, config)) for part in ([path] if isinstance(path, str) else path)
        ]
        self._wanted = [*_keys(node.get("primary_key")), *wanted, *_read_by_templates(node, retriever)]
        self._decoder = retriever.get("decoder") or {"type": "JsonDecoder"}
        self._answers: dict[tuple[int, int, int], tuple[bytes, Mapping[str, str]]] = {}
        self._asked = threading.local()
        self._paginator = retriever.get("paginator") or {}

    @cached_property
    def _paging(self) -> MadeUpPaging:
        return MadeUpPaging.of(self._paginator, self._parameters, self._config, self._answer)

    def answer(self, request: SentRequest, url: str, changes: int = 0) -> tuple[bytes, Mapping[str, str]]:
        """Return the answer to a request.

        :param changes: how often records were changed: each time, half of them get a cursor value that is a day later,
            and each path has other values
        """
        minutes = zlib.crc32(urlsplit(request.url).path.encode()) % _MINUTES if changes else 0
        page = self._paging.page_of(request.url, request.headers, request.body)
        key = page, changes, minutes
        if key not in self._answers:
            self._asked.changes, self._asked.minutes = changes, minutes
            answer = self._paging.answer(page)
            content = json.dumps(answer.body).replace("{made-up}", url)
            headers = {name: value.replace("{made-up}", url) for name, value in answer.headers.items()}
            self._answers[key] = _encoded(json.loads(content), self._decoder), headers
        return self._answers[key]

    def _answer(self, page: int, count: int) -> MadeUpAnswer:
        count = min(count, self._most or count)
        records = [self._record(page * 10_000 + number) for number in range(1, count + 1)]
        body = _wrapped(self._path, records)
        if self._path[:1] == ["*"]:
            # Of a list the CDK looks into each item by itself.
            body = {f"item{number}": item for number, item in enumerate(body)}
        # Of a list the CDK's paginators see the first record alone.
        return MadeUpAnswer(body, (body[0] if body else {}) if isinstance(body, list) else body, records, {})

    def _record(self, number: int) -> dict[str, Any]:
        schema = self._schema()
        names = list(schema.get("properties", {}))[:_PROPERTIES]
        record = {name: _value(schema["properties"][name], name, number, _DEPTH) for name in names}
        for path in self._wanted:
            if not isinstance(placed(record, path), (str, int)):
                place(record, path, f"{path[-1]}-{number}")
        for path, value in self._cursors(number):
            place(record, path, value)
        return record

    def _schema(self) -> Mapping[str, Any]:
        loader = self._node.get("schema_loader") or {}
        loaders = loader if isinstance(loader, list) else [loader]
        properties: dict[str, Any] = {}
        for candidate in loaders:
            schema = candidate.get("schema") or {}
            properties.update(schema.get("properties") or {} if isinstance(schema, Mapping) else {})
        return {"properties": properties}

    def _cursors(self, number: int) -> Iterator[tuple[list[str], Any]]:
        """Return the cursor's field, with a time that lies in the time that is read."""
        from datetime import datetime, timedelta

        from airbyte_cdk.sources.declarative.datetime.datetime_parser import DatetimeParser

        cursor = self._node.get("incremental_sync") or {}
        if "datetime_format" in cursor and "cursor_field" in cursor:
            form = (cursor.get("cursor_datetime_formats") or [cursor["datetime_format"]])[0]
            changes, minutes = getattr(self._asked, "changes", 0), getattr(self._asked, "minutes", 0)
            moment = datetime.fromisoformat(NOW) - timedelta(hours=20)
            if changes:
                moment += timedelta(minutes=minutes + number % 7, days=changes - 1 if number % 2 else 0)
            value: Any = DatetimeParser().format(moment, form)
            field = str(rendered(cursor["cursor_field"], self._parameters, self._config))
            yield [field], value
            if "." in field:
                yield field.split("."), value


def _keys(primary_key: Any) -> Iterator[list[str]]:
    for key in primary_key if isinstance(primary_key, list) else [primary_key]:
        if key:
            yield [str(part) for part in key] if isinstance(key, list) else [str(key)]


def _read_by_templates(node: Mapping[str, Any], retriever: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """List the paths in a record that transformations and filters read."""
    templates = list(_texts([node.get("transformations"), retriever.get("record_selector")]))
    for path in places_of([text for text in templates if "{{" in text], ("record",)):
        if all(isinstance(part, str) for part in path):
            yield path[1:]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _wrapped(path: Sequence[str], records: Any) -> Any:
    """Return an answer with the records where ``path`` leads to."""
    if not path:
        return records
    head, rest = path[0], path[1:]
    if head == "*":
        return [_wrapped(rest, record) for record in records]
    inner = _wrapped(rest, records)
    return [inner] * (int(head) + 1) if head.isdigit() else {head: inner}


def _value(schema: Any, name: str, number: int, depth: int) -> Any:
    """Return a value that fits a JSON schema."""
    schema = schema if isinstance(schema, Mapping) else {}
    kinds = schema.get("type") or "string"
    kind = next((option for option in ([kinds] if isinstance(kinds, str) else kinds) if option != "null"), "null")
    if kind == "object":
        properties = schema.get("properties") or {} if depth else {}
        return {inner: _value(properties[inner], inner, number, depth - 1) for inner in list(properties)[:_PROPERTIES]}
    if kind == "array":
        return [_value(schema.get("items"), name, number, depth - 1)] if depth else []
    times = {"date-time": NOW, "date": NOW[:10]}
    if kind == "string" and re.search(r"date|time|_at$|At$", name) and "format" not in schema:
        return NOW
    plain = {"integer": number, "number": number + 0.5, "boolean": number % 2 == 0, "null": None}
    return plain.get(kind, times.get(str(schema.get("format")), f"{name}-{number}"))


def _encoded(body: Any, decoder: Mapping[str, Any]) -> bytes:
    kind = decoder.get("type")
    inner = decoder.get("decoder") or decoder.get("parser") or {}
    if kind == "GzipDecoder":
        return gzip.compress(_encoded(body, inner), mtime=0)
    if kind == "ZipfileDecoder":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("made_up", _encoded(body, inner))
        return file.getvalue()
    rows = body if isinstance(body, list) else [body]
    if kind == "JsonlDecoder":
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    if kind == "CsvDecoder":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], delimiter=decoder.get("delimiter") or ",")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()
    return json.dumps(body).encode()


class MadeUpApi(LoopbackServer):
    """The server; ``endpoints`` are told to it by their tags, and whatever has none is asked for a credential.

    :param is_long: whether ten times as many requests may be sent
    :ivar changes: as of :meth:`MadeUpEndpoint.answer`
    """

    def __init__(self, is_long: bool = False) -> None:
        self.changes = 0
        self._most_requests = _MOST_REQUESTS * (10 if is_long else 1)
        self.endpoints: dict[str, MadeUpEndpoint] = {}
        self.credentials: dict[str, Any] = {"access_token": "made-up-token", "expires_in": 3600}
        self._asked: list[SentRequest] = []
        super().__init__()

    def respond(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes, Mapping[str, str]]:
        headers = {name.lower(): value for name, value in headers.items()}
        status, content, more = self.answer(SentRequest(headers.get(TAG.lower(), ""), method, target, headers, body))
        return status, content, {"Content-Type": "application/json", **more}

    def answer(self, request: SentRequest) -> tuple[int, bytes, Mapping[str, str]]:
        endpoint = self.endpoints.get(request.tag)
        if endpoint is None:
            return 200, json.dumps(self.credentials).encode(), {}
        self._asked.append(request)
        if len(self._asked) > self._most_requests:
            return 400, b'{"error": "the made-up API is read without end"}', {}
        return 200, *endpoint.answer(request, self.url, self.changes)

    def taken(self) -> list[tuple[str, str, str, str]]:
        """Return the requests of streams since the last call, in order."""
        requests, self._asked[:] = list(self._asked), []
        return [
            (request.tag, request.method, request.url, request.body.decode(errors="replace")) for request in requests
        ]


def values_of(url: str, headers: Mapping[str, str], body: bytes) -> dict[str, dict[str, str]]:
    """Return the arguments of a request, by their places and names."""
    parts = urlsplit(url)
    text = body.decode(errors="replace")
    try:
        leaves = dict(_leaves(json.loads(text), ()))
    except ValueError:
        leaves = {}
    return {
        "request_parameter": dict(parse_qsl(parts.query)),
        "header": dict(headers),
        "body_data": dict(parse_qsl(text)) if not leaves else {},
        "body_json": {".".join(path): value for path, value in leaves.items()},
        "path": {"": parts.path.rpartition("/")[2]},
    }


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in pairs:
            yield from _leaves(item, (*path, str(name)))
    else:
        yield path, str(value)
