"""APIs with numbers of pages or records, with keys, and with answers of other shapes, waits and partitions."""

from __future__ import annotations

import re
from typing import Any

from public_api_cases import after, case, is_first, page_of, rows
from rest_api import Asked, Reply


@case(
    "Jira: the server gives 5 where 10 were asked for, and total counts all",
    "records: {path: issues}",
    "paginator: {type: offset, page_size: 10, send_as: {query: startAt}, size_as: {query: maxResults},",
    "  total: {path: total}}",
)
def _jira(asked: Asked, url: str) -> Any:
    start = int(asked.query["startAt"])
    return {"startAt": start, "maxResults": 5, "total": 25, "issues": after(start, 25, size=5)}


@case(
    "SCIM: the index starts at 1, and there are no Resources where nothing is left",
    "records: {path: Resources, on_missing: empty}",
    "paginator: {type: offset, start: 1, page_size: 10, send_as: {query: startIndex}, size_as: {query: count},",
    "  total: {path: totalResults}}",
    "partitions: {type: list, field: group, values: [a, b]}",
    "request: {path: '/{{ stream_slice.group }}/Users'}",
    ids=list(range(1, 31)),
)
def _scim(asked: Asked, url: str) -> Any:
    if asked.path.startswith("/b/"):
        return {"schemas": ["ListResponse"], "totalResults": 0}
    start = int(asked.query["startIndex"])
    return {"totalResults": 30, "startIndex": start, "itemsPerPage": 10, "Resources": after(start - 1, 30)}


@case(
    "WordPress: the number of pages is in a header, and the page beyond it is 400",
    "records: {path: ''}",
    "paginator: {type: page_number, total: {header: X-WP-TotalPages, of: pages}}",
)
def _wordpress(asked: Asked, url: str) -> Any:
    if asked.page > 3:
        return Reply({"code": "rest_post_invalid_page_number"}, 400)
    return Reply(page_of(asked.page, 25), headers={"X-WP-Total": "25", "X-WP-TotalPages": "3"})


@case(
    "WordPress: without the header the page beyond the last is an error, which a rule can call the end",
    "records: {path: ''}",
    "paginator: {type: page_number, page_size: 10}",
    "error_handler: {rules: [{status: 400, text: rest_post_invalid_page_number, action: END}]}",
    ids=list(range(1, 31)),
)
def _wordpress_end(asked: Asked, url: str) -> Any:
    return page_of(asked.page, 30) if asked.page <= 3 else Reply({"code": "rest_post_invalid_page_number"}, 400)


@case(
    "QuickBooks: the position is inside of a query, from 1, and an empty QueryResponse has no entity",
    "request: {path: /query,",
    "  query: {query: 'select * from Customer startposition {{ token or 1 }} maxresults 10'}}",
    "records: {path: QueryResponse.Customer, on_missing: empty}",
    "paginator: {type: offset, start: 1, page_size: 10, send_as: {header: X-Start}}",
    ids=list(range(1, 21)),
)
def _quickbooks(asked: Asked, url: str) -> Any:
    position = re.search(r"startposition (\d+)", asked.query["query"])
    assert position is not None
    customers = after(int(position[1]) - 1, 20)
    return {"QueryResponse": {"Customer": customers} if customers else {}, "time": "2026-01-01"}


@case(
    "Elasticsearch: search_after is the list of the last hit's sort values",
    "request: {method: POST, path: /_search, json: {size: 10, sort: [at, id]}}",
    "records: {path: hits.hits}",
    "paginator: {type: cursor, cursor: {expression: last_record.sort}, send_as: {json: search_after}}",
    "transformations: [{type: add, fields: {id: '{{ record.sort[1] }}'}}]",
)
def _elastic(asked: Asked, url: str) -> Any:
    records = after(asked.json.get("search_after", [0, 0])[1], 25)
    return {"hits": {"hits": [{"_id": f"d{record['id']}", "sort": [0, record["id"]]} for record in records]}}


@case(
    "PostgREST: pages are 206, and Content-Range is no count",
    "records: {path: ''}",
    "paginator: {type: offset, page_size: 10, size_as: {query: limit}}",
)
def _postgrest(asked: Asked, url: str) -> Any:
    start = int(asked.query["offset"])
    return Reply(after(start, 25), 206 if start < 20 else 200, {"Content-Range": f"{start}-{start + 9}/25"})


@case(
    "Magento: without the total the last page comes for ever, which is an error",
    "records: {path: items}",
    "paginator: {type: page_number, page_size: 10}",
    error="same|again|repeat",
)
def _magento_undeclared(asked: Asked, url: str) -> Any:
    return {"items": page_of(min(asked.page, 3), 25), "total_count": 25}


@case(
    "Discord: before is the id of the last record, and ids fall",
    "records: {path: ''}",
    "paginator: {type: keyset, field: id, page_size: 10, send_as: {query: before}, stop: short}",
    ids=list(range(25, 0, -1)),
)
def _discord(asked: Asked, url: str) -> Any:
    first = int(asked.query.get("before", 26)) - 1
    return [{"id": number} for number in range(first, max(0, first - 10), -1)]


@case(
    "Spring: pages start at 0, and last is true on the last one",
    "records: {path: content}",
    "paginator: {type: page_number, start: 0, page_size: 10, flag: {path: last, stop_when: true}}",
    ids=list(range(1, 31)),
)
def _spring(asked: Asked, url: str) -> Any:
    number = int(asked.query["page"])
    return {"content": page_of(number + 1, 30), "number": number, "totalPages": 3, "last": number == 2}


@case(
    "Offsets: the server gives 20 where 10 were asked for",
    "records: {path: data}",
    "paginator: {type: offset, page_size: 10, size_as: {query: limit}, total: {path: total}}",
    ids=list(range(1, 56)),
)
def _large_pages(asked: Asked, url: str) -> Any:
    return {"data": after(asked.query["offset"], 55, size=20), "total": 55}


@case(
    "Offsets: the same without a total",
    "records: {path: data}",
    "paginator: {type: offset, page_size: 10, size_as: {query: limit}}",
    ids=list(range(1, 56)),
)
def _large_pages_without_total(asked: Asked, url: str) -> Any:
    return {"data": after(asked.query["offset"], 55, size=20)}


@case(
    "Page numbers: the server gives 20 where 10 were asked for, and counts records",
    "records: {path: data}",
    "paginator: {type: page_number, page_size: 10, total: {path: total}}",
    ids=list(range(1, 56)),
)
def _large_numbered_pages(asked: Asked, url: str) -> Any:
    return {"data": page_of(asked.page, 55, size=20), "total": 55}


@case(
    "SAP behind a converter of XML: one record is an object, none is an empty text",
    "records: {path: orders.order, on_missing: empty}",
    "request: {path: '/{{ stream_slice.day }}'}",
    "partitions: {type: list, field: day, values: [many, one, none]}",
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
    "records: {path: data.*}",
    "request: {path: '/{{ stream_slice.day }}'}",
    "partitions: {type: list, field: day, values: [some, none]}",
    ids=[1, 2, 3],
)
def _by_id(asked: Asked, url: str) -> Any:
    return {"data": {str(record["id"]): record for record in rows(1, 3)} if asked.path == "/some" else []}


@case(
    "Mixed types: an id is a number, a text or a number in a text, and each record stays one",
    "records: {path: data}",
    ids=[1, "2", "x3"],
)
def _mixed(asked: Asked, url: str) -> Any:
    return {"data": [{"id": 1}, {"id": "2"}, {"id": "x3"}]}


@case(
    "An ignored error with status 200 leaves out its page, is counted and is named",
    "records: {path: data}",
    "paginator: {type: page_number, page_size: 10}",
    "error_handler: {rules: [{predicate: 'response.error == ''deleted''', action: IGNORE}]}",
    ids=[*range(1, 11), *range(21, 26)],
    skipped=1,
    warning=r"the first is page 2: 200 OK.*deleted",
)
def _ignored_page(asked: Asked, url: str) -> Any:
    return {"data": [], "error": "deleted"} if asked.page == 2 else {"data": page_of(asked.page, 25)}


@case(
    "An ignored first page of a cursor is an empty partition, is counted and is named",
    "records: {path: data}",
    "request: {path: '/{{ stream_slice.day }}'}",
    "partitions: {type: list, field: day, values: [some, gone]}",
    "paginator: {type: cursor, cursor: {path: next}}",
    "error_handler: {rules: [{text: deleted, action: IGNORE}]}",
    ids=[1, 2, 3],
    skipped=1,
    warning=r'the first is partition {"day":"gone"}, page 1: 200 OK.*deleted',
)
def _ignored_partition(asked: Asked, url: str) -> Any:
    return {"data": rows(1, 3), "next": None} if asked.path == "/some" else {"data": [], "error": "deleted"}


@case(
    "Parents whose list has an ignored page: the others are read, and a warning says so",
    "records: {path: data}",
    "request: {path: '/children/{{ stream_slice.parent }}'}",
    "partitions: {type: substream, parent: parents, parent_key: id, field: parent}",
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
    "GitHub's statistics: 202 without Retry-After, which a rule asks again",
    "records: {path: ''}",
    "error_handler: {rules: [{status: 202, action: RETRY}]}",
    ids=[1, 2, 3],
)
def _statistics(asked: Asked, url: str) -> Any:
    return Reply({}, 202) if is_first("statistics", url) else rows(1, 3)
