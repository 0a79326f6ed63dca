"""Errors with status 200, other formats and shapes, waits, partitions."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from public_api_cases import case, is_first, page_of, rows
from rest_api import QUICK, Asked, Reply


@case(
    "Mixpanel: an export is JSON Lines in a gzip file",
    {"records": {"format": "jsonl"}},
    ids=[1, 2, 3],
)
def _mixpanel(asked: Asked, url: str) -> Any:
    lines = "".join(json.dumps(record) + "\n" for record in rows(1, 3))
    return Reply(gzip.compress(lines.encode()), headers={"Content-Type": "application/gzip"})


@case(
    "Amplitude: an export is a ZIP file, which the error names",
    {"records": {"format": "jsonl"}},
    error=r"the answer is a ZIP file, not JSON Lines",
)
def _amplitude(asked: Asked, url: str) -> Any:
    return Reply(base64.b64decode("UEsDBBQAAAAIAA=="), headers={"Content-Type": "application/zip"})


@case(
    "SAP behind a converter of XML: one record is an object, none is an empty text",
    {
        "records": {"path": "orders.order", "on_missing": "empty"},
        "request": {"path": "/{{ stream_slice.day }}"},
        "partitions": {"type": "list", "field": "day", "values": ["many", "one", "none"]},
    },
    ids=[1, 2, 3],
)
def _one_or_many(asked: Asked, url: str) -> Any:
    return {
        "/many": {"orders": {"order": rows(1, 2)}},
        "/one": {"orders": {"order": {"id": 3}}},
        "/none": {"orders": ""},
    }[asked.path]


@case(
    "PHP: records are an object by id, and an empty list where there are none",
    {
        "records": {"path": "data.*"},
        "request": {"path": "/{{ stream_slice.day }}"},
        "partitions": {"type": "list", "field": "day", "values": ["some", "none"]},
    },
    ids=[1, 2, 3],
)
def _by_id(asked: Asked, url: str) -> Any:
    return {"data": {str(record["id"]): record for record in rows(1, 3)} if asked.path == "/some" else []}


@case(
    "Mixed types: an id is a number, a text or a number in a text, and each record stays one",
    {"records": {"path": "data"}},
    ids=[1, "2", "x3"],
)
def _mixed(asked: Asked, url: str) -> Any:
    return {"data": [{"id": 1}, {"id": "2"}, {"id": "x3"}]}


@case(
    "An error with status 200 on a later page of page numbers is no end, whatever its list is",
    {
        "records": {"path": "data"},
        "paginator": {"type": "page_number", "page_size": 10},
        "error_handler": {**QUICK, "max_retries": 1},
    },
    error=r"no records and an error, in errors: .*shard",
)
def _late_error(asked: Asked, url: str) -> Any:
    return (
        {"data": page_of(asked.page, 90)} if asked.page < 3 else {"data": [], "errors": [{"title": "a shard is down"}]}
    )


@case(
    "An ignored error with status 200 leaves out its page, is counted and is named",
    {
        "records": {"path": "data"},
        "paginator": {"type": "page_number", "page_size": 10},
        "error_handler": {"rules": [{"predicate": "response.error == 'deleted'", "action": "IGNORE"}]},
    },
    ids=[*range(1, 11), *range(21, 26)],
    skipped=1,
    warning=r"the first is page 2 of partition {}: 200 OK.*deleted",
)
def _ignored_page(asked: Asked, url: str) -> Any:
    return {"data": [], "error": "deleted"} if asked.page == 2 else {"data": page_of(asked.page, 25)}


@case(
    "An ignored first page of a cursor is an empty partition, is counted and is named",
    {
        "records": {"path": "data"},
        "request": {"path": "/{{ stream_slice.day }}"},
        "partitions": {"type": "list", "field": "day", "values": ["some", "gone"]},
        "paginator": {"type": "cursor", "cursor": {"path": "next"}},
        "error_handler": {"rules": [{"text": "deleted", "action": "IGNORE"}]},
    },
    ids=[1, 2, 3],
    skipped=1,
    warning=r'the first is page 1 of partition {"day":"gone"}: 200 OK.*deleted',
)
def _ignored_partition(asked: Asked, url: str) -> Any:
    return {"data": rows(1, 3), "next": None} if asked.path == "/some" else {"data": [], "error": "deleted"}


PARENTS = {"type": "substream", "parent": "parents", "parent_key": "id", "field": "parent"}


@case(
    "Parents whose list has an ignored page: the others are read, and a warning says so",
    {"records": {"path": "data"}, "request": {"path": "/children/{{ stream_slice.parent }}"}, "partitions": PARENTS},
    parents={
        "records": {"path": "data"},
        "paginator": {"type": "page_number", "page_size": 2},
        "error_handler": {"rules": [{"predicate": "response.error == 'deleted'", "action": "IGNORE"}]},
    },
    ids=[10, 20, 50],
    warning="parents: an ignored page has no children: 200 OK.*deleted",
)
def _ignored_parents(asked: Asked, url: str) -> Any:
    if asked.path.startswith("/parents"):
        return {"data": [], "error": "deleted"} if asked.page == 2 else {"data": page_of(asked.page, 5, size=2)}
    return {"data": [{"id": int(asked.path.rpartition("/")[2]) * 10}]}


@case(
    "Parents without an id (drafts, anonymous users) are left out by the parent's filter",
    {"records": {"path": "data"}, "request": {"path": "/children/{{ stream_slice.parent }}"}, "partitions": PARENTS},
    parents={"records": {"path": "data", "filter": "record.id"}},
    ids=[10, 20],
)
def _drafts(asked: Asked, url: str) -> Any:
    if asked.path == "/parents":
        return {"data": [{"id": 1}, {"id": None}, {"title": "draft"}, {"id": 2}]}
    return {"data": [{"id": int(asked.path.rpartition("/")[2]) * 10}]}


@case(
    "Parents without an id are an error without that filter, which the error proposes",
    {"records": {"path": "data"}, "request": {"path": "/children/{{ stream_slice.parent }}"}, "partitions": PARENTS},
    parents={"records": {"path": "data"}},
    error=r"record 2 of the page of parents .*partitions.parent_key 'id' is null.*filter: record.id is defined",
)
def _drafts_undeclared(asked: Asked, url: str) -> Any:
    return {"data": [{"id": 1}, {"id": None}]} if asked.path == "/parents" else {"data": []}


@case(
    "GitHub's GraphQL: what may not be seen is a null among the nodes, which a star leaves out",
    {"records": {"path": "data.nodes.*", "on_missing": "empty"}},
    ids=[1, 3],
)
def _null_nodes(asked: Asked, url: str) -> Any:
    return {"data": {"nodes": [{"id": 1}, None, {"id": 3}]}}


@case(
    "GitHub's GraphQL: without a star the null is an error that proposes it",
    {"records": {"path": "data.nodes"}},
    error=r"has null as item 2.*path: data\.nodes\.\*, on_missing: empty",
)
def _null_nodes_undeclared(asked: Asked, url: str) -> Any:
    return {"data": {"nodes": [{"id": 1}, None]}}


@case(
    "A report that is not ready is 202 with Retry-After, and is waited for",
    {"records": {"path": "rows", "on_missing": "empty"}, "error_handler": {"max_retries": 0}},
    ids=[1, 2, 3],
)
def _report(asked: Asked, url: str) -> Any:
    if is_first("report", url):
        return Reply({"status": "IN_PROGRESS"}, 202, {"Retry-After": "0.05"})
    return {"rows": rows(1, 3)}


@case(
    "GitHub's statistics: 202 without Retry-After, which a rule asks again",
    {
        "records": {"path": ""},
        "error_handler": {**QUICK, "rules": [{"status": 202, "action": "RETRY"}]},
    },
    ids=[1, 2, 3],
)
def _statistics(asked: Asked, url: str) -> Any:
    return Reply({}, 202) if is_first("statistics", url) else rows(1, 3)


@case(
    "JSend: status is error and data is empty, on a later page",
    {
        "records": {"path": "data"},
        "paginator": {"type": "page_number", "page_size": 10},
        "error_handler": {**QUICK, "max_retries": 1},
    },
    error=r"no records and an error, in status: .*the shard is down",
)
def _jsend(asked: Asked, url: str) -> Any:
    if asked.page == 3:
        return {"status": "error", "message": "the shard is down", "data": []}
    return {"status": "success", "data": page_of(asked.page, 45)}


@case(
    "Cloudflare: success is false, and errors is empty",
    {
        "records": {"path": "result", "on_missing": "empty"},
        "paginator": {"type": "page_number", "page_size": 10},
        "error_handler": {**QUICK, "max_retries": 1},
    },
    error=r"no records and an error, in success: .*try later",
)
def _cloudflare(asked: Asked, url: str) -> Any:
    if asked.page == 2:
        return {"success": False, "errors": [], "messages": ["try later"], "result": None}
    return {"success": True, "errors": [], "messages": [], "result": page_of(asked.page, 45)}
