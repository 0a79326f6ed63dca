"""An API whose records change, over HTTP, and a manifest of Airbyte for each way to ask it for changes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.loopback import LoopbackServer
from tests.soon import wait_until

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
_PAGE = 5


def moment(hours: float) -> str:
    return (START + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


class ChangingApi(LoopbackServer):
    """Collections of records by path: those with ``updated_at`` from ``since`` to ``until``, five a page.

    :ivar newest_first: whether the newest record comes first, as in a feed
    :ivar broken: paths of which every request is answered with 400
    :ivar asked: path and arguments of each request
    :ivar refused: path and page of requests that are answered by 403
    :ivar seconds: that an answer takes
    """

    def __init__(self) -> None:
        self.collections: dict[str, dict[Any, dict[str, Any]]] = {}
        self.newest_first = False
        self.broken: set[str] = set()
        self.asked: list[str] = []
        self.refused: set[tuple[str, str]] = set()
        self.seconds = 0.0
        super().__init__()

    def respond(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes, Mapping[str, str]]:
        self.asked.append(target)
        time.sleep(self.seconds)
        parts = urlsplit(target)
        arguments = dict(parse_qsl(parts.query))
        if parts.path in self.broken:
            return 400, b"{}", {"Content-Type": "application/json"}
        if (parts.path, arguments.get("page", "0")) in self.refused:
            return 403, b"{}", {"Content-Type": "application/json"}
        content = json.dumps({"data": self.page(parts.path, arguments)}).encode()
        return 200, content, {"Content-Type": "application/json"}

    def wait_for_requests(self, count: int) -> None:
        wait_until(lambda: len(self.asked) >= count)

    def taken(self) -> set[str]:
        """Return the requests since the last call, without the pages: ours may be read ahead."""
        asked = {re.sub(r"[?&]page=[0-9]+", "", path) for path in self.asked}
        self.asked.clear()
        return asked

    def change(self, path: str, numbers: Iterable[Any], hours: float, **fields: Any) -> None:
        """Add records, or change them; the n-th an hour after the one before."""
        records = self.collections.setdefault(path, {})
        for place, number in enumerate(numbers):
            at = moment(hours + place)
            records[number] = {"id": number, "updated_at": at, "seconds": _seconds(at), "value": f"{at}", **fields}

    def page(self, path: str, arguments: Mapping[str, str]) -> list[dict[str, Any]]:
        records = list(self.collections.get(path, {}).values())
        since, until = arguments.get("since", ""), arguments.get("until", "9")
        records = [record for record in records if since <= record["updated_at"] <= until]
        records.sort(key=lambda record: (record["updated_at"], str(record["id"])), reverse=self.newest_first)
        start = int(arguments.get("page", 0)) * _PAGE
        return records[start : start + _PAGE]


def _seconds(at: str) -> int:
    return int(datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp())


def _argument(name: str) -> dict[str, str]:
    return {"type": "RequestOption", "inject_into": "request_parameter", "field_name": name}


def datetime_cursor(**more: Any) -> dict[str, Any]:
    """A cursor that asks for changes since its value."""
    return {
        "type": "DatetimeBasedCursor",
        "cursor_field": "updated_at",
        "datetime_format": "%Y-%m-%dT%H:%M:%SZ",
        "start_datetime": moment(0),
        "start_time_option": _argument("since"),
        **more,
    }


BY_STEPS = {
    "end_datetime": "{{ config['end'] }}",
    "end_time_option": _argument("until"),
    "step": "P3D",
    "cursor_granularity": "PT1S",
    "lookback_window": "P1D",
}
UNASKED = {"start_time_option": None}
"""The API gives all records, and the manifest drops those that it has."""


def stream_of(path: str, cursor: Mapping[str, Any] | None, name: str = "orders", **retriever: Any) -> dict[str, Any]:
    stream = {
        "type": "DeclarativeStream",
        "name": name,
        "primary_key": ["id"],
        "schema_loader": {
            "type": "InlineSchemaLoader",
            "schema": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "updated_at": {"type": "string"},
                    "seconds": {"type": "number"},
                    "value": {"type": "string"},
                },
            },
        },
        "retriever": {
            "type": "SimpleRetriever",
            "requester": {"type": "HttpRequester", "url_base": "{{ config['url'] }}", "path": path},
            "record_selector": {
                "type": "RecordSelector",
                "extractor": {"type": "DpathExtractor", "field_path": ["data"]},
            },
            "paginator": {
                "type": "DefaultPaginator",
                "page_token_option": _argument("page"),
                "pagination_strategy": {"type": "PageIncrement", "page_size": _PAGE},
            },
            **retriever,
        },
    }
    if cursor is not None:
        stream["incremental_sync"] = {name: value for name, value in cursor.items() if value is not None}
    return stream


def children_of(parents: Mapping[str, Any], cursor: Mapping[str, Any], **dependency: Any) -> dict[str, Any]:
    """A stream with one collection for each record of another one."""
    parent = {
        "type": "ParentStreamConfig",
        "parent_key": "id",
        "partition_field": "shop",
        "stream": parents,
        **dependency,
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [parent]}
    return stream_of("/shops/{{ stream_partition.shop }}", cursor, partition_router=router)


def manifest_of(*streams: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "version": "7.20.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["orders"]},
        "streams": list(streams),
        "spec": {"type": "Spec", "connection_specification": {"type": "object", "properties": {}}},
    }


CURSORS = {
    "since a value": datetime_cursor(),
    "by steps": datetime_cursor(**BY_STEPS),
    "in a format that reads another moment": datetime_cursor(
        datetime_format="%Y-%m-%dT%H:%M:%S-12:00",
        cursor_datetime_formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%SZ"],
        start_datetime={"type": "MinMaxDatetime", "datetime": moment(0), "datetime_format": "%Y-%m-%dT%H:%M:%SZ"},
    ),
    "by numbers": datetime_cursor(
        **UNASKED,
        cursor_field="seconds",
        datetime_format="%s",
        start_datetime={"type": "MinMaxDatetime", "datetime": moment(0), "datetime_format": "%Y-%m-%dT%H:%M:%SZ"},
    ),
    "dropped by the manifest": datetime_cursor(**UNASKED, is_client_side_incremental=True),
    "a feed": datetime_cursor(**UNASKED, is_data_feed=True),
}
"""Every kind of cursor, by what is special about it."""
