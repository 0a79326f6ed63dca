"""APIs with numbers of pages or records, and keys."""

from __future__ import annotations

import re
from typing import Any

from public_api_cases import ALL_25, after, case, page_of
from rest_api import Asked, Reply


@case(
    "Jira: the server gives 5 where 10 were asked for, and total counts all",
    {
        "records": {"path": "issues"},
        "paginator": {
            "type": "offset",
            "page_size": 10,
            "send_as": {"query": "startAt"},
            "size_as": {"query": "maxResults"},
            "total": {"path": "total"},
        },
    },
    ids=ALL_25,
)
def _jira(asked: Asked, url: str) -> Any:
    start = int(asked.query["startAt"])
    return {"startAt": start, "maxResults": 5, "total": 25, "issues": after(start, 25, size=5)}


@case(
    "SCIM: the index starts at 1, and there are no Resources where nothing is left",
    {
        "records": {"path": "Resources", "on_missing": "empty"},
        "paginator": {
            "type": "offset",
            "start": 1,
            "page_size": 10,
            "send_as": {"query": "startIndex"},
            "size_as": {"query": "count"},
            "total": {"path": "totalResults"},
        },
        "partitions": {"type": "list", "field": "group", "values": ["a", "b"]},
        "request": {"path": "/{{ stream_slice.group }}/Users"},
    },
    ids=list(range(1, 31)),
)
def _scim(asked: Asked, url: str) -> Any:
    if asked.path.startswith("/b/"):
        return {"schemas": ["ListResponse"], "totalResults": 0}
    start = int(asked.query["startIndex"])
    return {"totalResults": 30, "startIndex": start, "itemsPerPage": 10, "Resources": after(start - 1, 30)}


@case(
    "WordPress: the number of pages is in a header, and the page beyond it is 400",
    {
        "records": {"path": ""},
        "paginator": {"type": "page_number", "total": {"header": "X-WP-TotalPages", "of": "pages"}},
    },
    ids=ALL_25,
)
def _wordpress(asked: Asked, url: str) -> Any:
    if asked.page > 3:
        return Reply({"code": "rest_post_invalid_page_number"}, 400)
    return Reply(page_of(asked.page, 25), headers={"X-WP-Total": "25", "X-WP-TotalPages": "3"})


@case(
    "WordPress: without the header the page beyond the last is an error, which a rule can call the end",
    {
        "records": {"path": ""},
        "paginator": {"type": "page_number", "page_size": 10},
        "error_handler": {
            "rules": [{"status": 400, "text": "rest_post_invalid_page_number", "action": "END"}],
        },
    },
    ids=list(range(1, 31)),
)
def _wordpress_end(asked: Asked, url: str) -> Any:
    return page_of(asked.page, 30) if asked.page <= 3 else Reply({"code": "rest_post_invalid_page_number"}, 400)


@case(
    "ServiceNow: no rows are 404 with an error of its own",
    {
        "records": {"path": "result"},
        "paginator": {"type": "offset", "page_size": 10, "send_as": {"query": "sysparm_offset"}},
        "error_handler": {"rules": [{"status": 404, "text": "No Record found", "action": "END"}]},
    },
    ids=list(range(1, 21)),
)
def _servicenow(asked: Asked, url: str) -> Any:
    result = after(asked.query["sysparm_offset"], 20)
    return {"result": result} if result else Reply({"error": {"message": "No Record found"}, "status": "failure"}, 404)


@case(
    "QuickBooks: the position is inside of a query, from 1, and an empty QueryResponse has no entity",
    {
        "request": {
            "path": "/query",
            "query": {"query": "select * from Customer startposition {{ token or 1 }} maxresults 10"},
        },
        "records": {"path": "QueryResponse.Customer", "on_missing": "empty"},
        "paginator": {"type": "offset", "start": 1, "page_size": 10, "send_as": {"header": "X-Start"}},
    },
    ids=list(range(1, 21)),
)
def _quickbooks(asked: Asked, url: str) -> Any:
    position = re.search(r"startposition (\d+)", asked.query["query"])
    assert position is not None
    customers = after(int(position[1]) - 1, 20)
    return {"QueryResponse": {"Customer": customers} if customers else {}, "time": "2026-01-01"}


@case(
    "Elasticsearch: a total that is capped at 20 (relation gte) does not end the table",
    {
        "records": {"path": "hits.hits.*._source"},
        "paginator": {
            "type": "offset",
            "page_size": 10,
            "send_as": {"query": "from"},
            "total": {"path": "hits.total.value"},
        },
    },
    ids=ALL_25,
)
def _elastic_total(asked: Asked, url: str) -> Any:
    hits = [{"_source": record} for record in after(asked.query["from"], 25)]
    return {"hits": {"total": {"value": 20, "relation": "gte"}, "hits": hits}}


@case(
    "Elasticsearch: search_after is the list of the last hit's sort values",
    {
        "request": {"method": "POST", "path": "/_search", "json": {"size": 10, "sort": ["at", "id"]}},
        "records": {"path": "hits.hits"},
        "paginator": {
            "type": "cursor",
            "cursor": {"expression": "last_record.sort"},
            "send_as": {"json": "search_after"},
        },
        "transformations": [{"type": "add", "fields": {"id": "{{ record.sort[1] }}"}}],
    },
    ids=ALL_25,
)
def _elastic(asked: Asked, url: str) -> Any:
    records = after(asked.json.get("search_after", [0, 0])[1], 25)
    return {"hits": {"hits": [{"_id": f"d{record['id']}", "sort": [0, record["id"]]} for record in records]}}


@case(
    "PostgREST: pages are 206, and Content-Range is no count",
    {
        "records": {"path": ""},
        "paginator": {"type": "offset", "page_size": 10, "size_as": {"query": "limit"}},
    },
    ids=ALL_25,
)
def _postgrest(asked: Asked, url: str) -> Any:
    start = int(asked.query["offset"])
    return Reply(after(start, 25), 206 if start < 20 else 200, {"Content-Range": f"{start}-{start + 9}/25"})


@case(
    "PostgREST: Content-Range as a total is an error that shows it",
    {
        "records": {"path": ""},
        "paginator": {"type": "offset", "page_size": 10, "total": {"header": "Content-Range"}},
    },
    error=r"paginator.total is '0-9/25', not a count",
)
def _postgrest_total(asked: Asked, url: str) -> Any:
    return Reply(after(asked.query["offset"], 25), 206, {"Content-Range": "0-9/25"})


@case(
    "Magento: the page beyond the last is the last one again",
    {
        "records": {"path": "items"},
        "paginator": {
            "type": "page_number",
            "page_size": 10,
            "send_as": {"query": "page"},
            "total": {"path": "total_count"},
        },
    },
    ids=ALL_25,
)
def _magento(asked: Asked, url: str) -> Any:
    return {"items": page_of(min(asked.page, 3), 25), "total_count": 25}


@case(
    "Magento: without the total the last page comes for ever, which is an error",
    {"records": {"path": "items"}, "paginator": {"type": "page_number", "page_size": 10}},
    error="same|again|repeat",
)
def _magento_undeclared(asked: Asked, url: str) -> Any:
    return {"items": page_of(min(asked.page, 3), 25), "total_count": 25}


@case(
    "Discord: before is the id of the last record, and ids fall",
    {
        "records": {"path": ""},
        "paginator": {
            "type": "keyset",
            "field": "id",
            "page_size": 10,
            "send_as": {"query": "before"},
            "stop": "short",
        },
    },
    ids=list(range(25, 0, -1)),
)
def _discord(asked: Asked, url: str) -> Any:
    first = int(asked.query.get("before", 26)) - 1
    return [{"id": number} for number in range(first, max(0, first - 10), -1)]


@case(
    "Spring: pages start at 0, and last is true on the last one",
    {
        "records": {"path": "content"},
        "paginator": {"type": "page_number", "start": 0, "page_size": 10, "flag": {"path": "last", "stop_when": True}},
    },
    ids=list(range(1, 31)),
)
def _spring(asked: Asked, url: str) -> Any:
    number = int(asked.query["page"])
    return {"content": page_of(number + 1, 30), "number": number, "totalPages": 3, "last": number == 2}


@case(
    "Offsets: the server gives 20 where 10 were asked for",
    {
        "records": {"path": "data"},
        "paginator": {"type": "offset", "page_size": 10, "size_as": {"query": "limit"}, "total": {"path": "total"}},
    },
    ids=list(range(1, 56)),
)
def _large_pages(asked: Asked, url: str) -> Any:
    return {"data": after(asked.query["offset"], 55, size=20), "total": 55}


@case(
    "Offsets: the same without a total",
    {"records": {"path": "data"}, "paginator": {"type": "offset", "page_size": 10, "size_as": {"query": "limit"}}},
    ids=list(range(1, 56)),
)
def _large_pages_without_total(asked: Asked, url: str) -> Any:
    return {"data": after(asked.query["offset"], 55, size=20)}


@case(
    "Page numbers: the server gives 20 where 10 were asked for, and counts records",
    {
        "records": {"path": "data"},
        "paginator": {"type": "page_number", "page_size": 10, "total": {"path": "total"}},
    },
    ids=list(range(1, 56)),
)
def _large_numbered_pages(asked: Asked, url: str) -> Any:
    return {"data": page_of(asked.page, 55, size=20), "total": 55}
