"""APIs with a cursor in the body or in a header."""

from __future__ import annotations

import json
from typing import Any

from public_api_cases import ALL_25, after, case, is_first, page_of, rows
from rest_api import QUICK, Asked, Reply


@case(
    "Stripe: has_more is the end, also after a full page",
    {
        "records": {"path": "data"},
        "paginator": {
            "type": "keyset",
            "field": "id",
            "page_size": 10,
            "send_as": {"query": "starting_after"},
            "flag": {"path": "has_more"},
        },
    },
    ids=list(range(1, 31)),
)
def _stripe(asked: Asked, url: str) -> Any:
    data = after(asked.query.get("starting_after"), 30)
    return {"object": "list", "data": data, "has_more": data[-1]["id"] < 30}


@case(
    "HubSpot: paging is not there on the last page",
    {"records": {"path": "results"}, "paginator": {"type": "cursor", "cursor": {"path": "paging.next.after"}}},
    ids=ALL_25,
)
def _hubspot(asked: Asked, url: str) -> Any:
    results = after(asked.query.get("cursor"), 25)
    last = results[-1]["id"]
    return {"results": results, **({"paging": {"next": {"after": str(last)}}} if last < 25 else {})}


@case(
    "HubSpot's older lists: has-more has a dash, and the offset is there on the last page, too",
    {
        "records": {"path": "contacts"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "vid-offset"},
            "send_as": {"query": "vidOffset"},
            "stop_when": "not response['has-more']",
        },
    },
    ids=ALL_25,
)
def _hubspot_lists(asked: Asked, url: str) -> Any:
    contacts = after(asked.query.get("vidOffset"), 25)
    return {"contacts": contacts, "has-more": contacts[-1]["id"] < 25, "vid-offset": contacts[-1]["id"]}


@case(
    "HubSpot's search: no more than so many results, then 400",
    {
        "request": {"method": "POST", "path": "/search", "json": {"limit": 10}},
        "records": {"path": "results"},
        "paginator": {"type": "cursor", "cursor": {"path": "paging.next.after"}, "send_as": {"json": "after"}},
    },
    error=r"400 Bad Request.*the limit of 20 results",
)
def _hubspot_search(asked: Asked, url: str) -> Any:
    start = int(asked.json.get("after", 0))
    if start >= 20:
        return Reply({"status": "error", "message": "beyond the limit of 20 results"}, 400)
    results = after(start, 60)
    return {"total": 60, "results": results, "paging": {"next": {"after": str(results[-1]["id"])}}}


@case(
    "Notion: the cursor goes into the body of a POST, and next_cursor is null at the end",
    {
        "request": {"method": "POST", "path": "/v1/databases/x/query", "json": {"page_size": 10}},
        "records": {"path": "results"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "next_cursor"},
            "send_as": {"json": "start_cursor"},
            "stop_when": "not response.has_more",
        },
    },
    ids=ALL_25,
)
def _notion(asked: Asked, url: str) -> Any:
    results = after(asked.json.get("start_cursor"), 25)
    more = results[-1]["id"] < 25
    return {
        "object": "list",
        "results": results,
        "has_more": more,
        "next_cursor": str(results[-1]["id"]) if more else None,
    }


@case(
    "Airtable: the offset is a cursor, and is not there on the last page",
    {
        "records": {"path": "records"},
        "paginator": {"type": "cursor", "cursor": {"path": "offset"}, "send_as": {"query": "offset"}},
    },
    ids=ALL_25,
)
def _airtable(asked: Asked, url: str) -> Any:
    records = after((asked.query.get("offset") or "itr0").removeprefix("itr"), 25)
    last = records[-1]["id"]
    return {"records": records, **({"offset": f"itr{last}"} if last < 25 else {})}


@case(
    "Airtable: an iterator that is not available any more is read again from the start",
    {
        "records": {"path": "records"},
        "paginator": {"type": "cursor", "cursor": {"path": "offset"}, "send_as": {"query": "offset"}},
        "error_handler": {
            "rules": [{"status": 422, "text": "LIST_RECORDS_ITERATOR_NOT_AVAILABLE", "action": "TOKEN_EXPIRED"}]
        },
    },
    error=r"the page token is no longer accepted: 422 .*LIST_RECORDS_ITERATOR_NOT_AVAILABLE",
)
def _airtable_expired(asked: Asked, url: str) -> Any:
    if "offset" in asked.query:
        return Reply({"error": {"type": "LIST_RECORDS_ITERATOR_NOT_AVAILABLE"}}, 422)
    return {"records": rows(1, 10), "offset": "itr10"}


@case(
    "Intercom: pages.next is an object with the cursor, and null at the end",
    {
        "records": {"path": "data"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "pages.next.starting_after"},
            "send_as": {"query": "starting_after"},
        },
    },
    ids=ALL_25,
)
def _intercom(asked: Asked, url: str) -> Any:
    data = after(asked.query.get("starting_after"), 25)
    last = data[-1]["id"]
    return {"data": data, "pages": {"next": {"starting_after": str(last)} if last < 25 else None}}


@case(
    "Square: no cursor at the end, and an empty object where there are no records",
    {
        "records": {"path": "payments", "on_missing": "empty"},
        "paginator": {"type": "cursor", "cursor": {"path": "cursor"}},
        "partitions": {"type": "list", "field": "location", "values": ["a", "b"]},
        "request": {"path": "/payments", "query": {"location": "{{ stream_slice.location }}"}},
    },
    ids=ALL_25,
)
def _square(asked: Asked, url: str) -> Any:
    if asked.query["location"] == "b":
        return {}
    payments = after(asked.query.get("cursor"), 25)
    return {"payments": payments, **({"cursor": str(payments[-1]["id"])} if payments[-1]["id"] < 25 else {})}


@case(
    "Square: an empty object without records is an error where nobody said that it may come",
    {"records": {"path": "payments"}},
    error=r"records.path 'payments' leads to nothing: it is an empty object",
)
def _square_undeclared(asked: Asked, url: str) -> Any:
    return {}


@case(
    "Slack: next_cursor is an empty text at the end",
    {
        "records": {"path": "members"},
        "paginator": {"type": "cursor", "cursor": {"path": "response_metadata.next_cursor"}},
    },
    ids=ALL_25,
)
def _slack(asked: Asked, url: str) -> Any:
    members = after((asked.query.get("cursor") or "u0").removeprefix("u"), 25)
    last = members[-1]["id"]
    return {"ok": True, "members": members, "response_metadata": {"next_cursor": f"u{last}" if last < 25 else ""}}


@case(
    "Slack: an error with status 200 and without a list says what it is",
    {"records": {"path": "members"}, "error_handler": {**QUICK, "max_retries": 1}},
    error=r"no records and an error, in error: .*invalid_auth",
)
def _slack_error(asked: Asked, url: str) -> Any:
    return {"ok": False, "error": "invalid_auth"}


@case(
    "Google: a page in the middle has no items at all, but a nextPageToken",
    {
        "records": {"path": "items", "on_missing": "empty"},
        "paginator": {"type": "cursor", "cursor": {"path": "nextPageToken"}, "send_as": {"query": "pageToken"}},
    },
    ids=ALL_25,
)
def _google(asked: Asked, url: str) -> Any:
    token = asked.query.get("pageToken", "0")
    if token == "10":
        return {"kind": "calendar#events", "nextPageToken": "10b"}
    items = after(token.removesuffix("b"), 25)
    last = items[-1]["id"]
    return {"kind": "calendar#events", "items": items, **({"nextPageToken": str(last)} if last < 25 else {})}


@case(
    "DynamoDB: the cursor is an object, and a filtered page is empty",
    {
        "request": {"method": "POST", "path": "/", "json": {"TableName": "t"}},
        "records": {"path": "Items"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "LastEvaluatedKey"},
            "send_as": {"json": "ExclusiveStartKey"},
        },
    },
    ids=[*range(1, 11), *range(21, 26)],
)
def _dynamodb(asked: Asked, url: str) -> Any:
    start = int(asked.json.get("ExclusiveStartKey", {"id": {"N": "0"}})["id"]["N"])
    items = [] if start == 10 else after(start, 25)
    return {"Items": items, **({"LastEvaluatedKey": {"id": {"N": str(start + 10)}}} if start < 20 else {})}


@case(
    "Chargebee: next_offset is a list in a text, and each record is inside of an object with others",
    {
        "records": {"path": "list.*.customer"},
        "paginator": {"type": "cursor", "cursor": {"path": "next_offset"}, "send_as": {"query": "offset"}},
    },
    ids=ALL_25,
)
def _chargebee(asked: Asked, url: str) -> Any:
    hits = after(json.loads(asked.query.get("offset", '["0"]'))[0], 25)
    last = hits[-1]["id"]
    body = {"list": [{"customer": record, "card": {"id": f"c{record['id']}"}} for record in hits]}
    return {**body, **({"next_offset": json.dumps([str(last), "x"])} if last < 25 else {})}


@case(
    "Twitter's first version: next_cursor is 0 at the end, which stop_when has to say",
    {
        "records": {"path": "users"},
        "paginator": {"type": "cursor", "cursor": {"path": "next_cursor"}, "stop_when": "response.next_cursor == 0"},
    },
    ids=ALL_25,
)
def _twitter(asked: Asked, url: str) -> Any:
    users = after(asked.query.get("cursor"), 25)
    return {"users": users, "next_cursor": users[-1]["id"] if users[-1]["id"] < 25 else 0}


@case(
    "Twitter's first version: without that it starts again at the first page, and is an error",
    {"records": {"path": "users"}, "paginator": {"type": "cursor", "cursor": {"path": "next_cursor"}}},
    error=r"token .* came twice",
)
def _twitter_undeclared(asked: Asked, url: str) -> Any:
    users = after(asked.query.get("cursor"), 25)
    return {"users": users, "next_cursor": users[-1]["id"] if users[-1]["id"] < 25 else 0}


@case(
    "Asana: next_page is null at the end",
    {"records": {"path": "data"}, "paginator": {"type": "cursor", "cursor": {"path": "next_page.offset"}}},
    ids=ALL_25,
)
def _asana(asked: Asked, url: str) -> Any:
    data = after((asked.query.get("cursor") or "0"), 25)
    last = data[-1]["id"]
    following = {"offset": str(last), "path": f"/tasks?offset={last}", "uri": f"{url}/tasks?offset={last}"}
    return {"data": data, "next_page": following if last < 25 else None}


@case(
    "Jira's new search: the token is not there on the last page, and isLast says it as well",
    {
        "request": {"method": "POST", "path": "/search/jql", "json": {"jql": "order by id"}},
        "records": {"path": "issues"},
        "paginator": {"type": "cursor", "cursor": {"path": "nextPageToken"}, "send_as": {"json": "nextPageToken"}},
    },
    ids=ALL_25,
)
def _jira_search(asked: Asked, url: str) -> Any:
    issues = after(asked.json.get("nextPageToken"), 25)
    last = issues[-1]["id"]
    return {"issues": issues, "isLast": last == 25, **({"nextPageToken": str(last)} if last < 25 else {})}


@case(
    "GitLab: X-Next-Page is an empty header at the end",
    {
        "records": {"path": ""},
        "paginator": {"type": "cursor", "cursor": {"header": "X-Next-Page"}, "send_as": {"query": "page"}},
    },
    ids=ALL_25,
)
def _gitlab(asked: Asked, url: str) -> Any:
    return Reply(page_of(asked.page, 25), headers={"X-Next-Page": str(asked.page + 1) if asked.page < 3 else ""})


@case(
    "Monday: a GraphQL cursor of a nested list, and an error with status 200 in words of its own",
    {
        "request": {"method": "POST", "path": "/v2", "json": {"query": "q", "variables": {}}},
        "records": {"path": "data.boards.*.items_page.items"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "data.boards.0.items_page.cursor"},
            "send_as": {"json": "variables.cursor"},
        },
        "error_handler": {
            "rules": [
                {
                    "predicate": "response.error_code == 'ComplexityException'",
                    "action": "RATE_LIMITED",
                    "backoff": [{"type": "constant", "seconds": 0.01}],
                }
            ]
        },
    },
    ids=ALL_25,
)
def _monday(asked: Asked, url: str) -> Any:
    cursor = asked.json["variables"].get("cursor")
    if cursor == "20" and is_first("monday", url):
        return {"error_code": "ComplexityException", "error_message": "Complexity budget exhausted", "status_code": 200}
    items = after(cursor, 25)
    last = items[-1]["id"]
    return {"data": {"boards": [{"items_page": {"cursor": str(last) if last < 25 else None, "items": items}}]}}


@case(
    "Shopify's GraphQL: THROTTLED has no data, and is asked for again without any rule",
    {
        "request": {"method": "POST", "path": "/graphql.json", "json": {"query": "q", "variables": {}}},
        "records": {"path": "data.products.edges.*.node"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "data.products.pageInfo.endCursor"},
            "send_as": {"json": "variables.after"},
            "stop_when": "not response.data.products.pageInfo.hasNextPage",
        },
    },
    ids=ALL_25,
)
def _shopify_graphql(asked: Asked, url: str) -> Any:
    cursor = asked.json["variables"].get("after")
    if cursor == "10" and is_first("shopify", url):
        return {"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}], "data": None}
    nodes = after(cursor, 25)
    last = nodes[-1]["id"]
    edges = [{"cursor": str(node["id"]), "node": node} for node in nodes]
    return {"data": {"products": {"edges": edges, "pageInfo": {"hasNextPage": last < 25, "endCursor": str(last)}}}}


@case(
    "Pipedrive: data is null where there are no records, and next_start is missing",
    {
        "records": {"path": "data", "on_missing": "empty"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "additional_data.pagination.next_start"},
            "send_as": {"query": "start"},
        },
        "partitions": {"type": "list", "field": "user", "values": [1, 2]},
        "request": {"path": "/deals", "query": {"user": "{{ stream_slice.user }}"}},
    },
    ids=ALL_25,
)
def _pipedrive(asked: Asked, url: str) -> Any:
    if asked.query["user"] == "2":
        return {"success": True, "data": None, "additional_data": {"pagination": {"more_items_in_collection": False}}}
    data = after(asked.query.get("start"), 25)
    more = data[-1]["id"] < 25
    pagination = {"more_items_in_collection": more, **({"next_start": data[-1]["id"]} if more else {})}
    return {"success": True, "data": data, "additional_data": {"pagination": pagination}}


@case(
    "Azure DevOps: the token is in a header",
    {
        "records": {"path": "value"},
        "paginator": {
            "type": "cursor",
            "cursor": {"header": "x-ms-continuationtoken"},
            "send_as": {"query": "continuationToken"},
        },
    },
    ids=ALL_25,
)
def _azure(asked: Asked, url: str) -> Any:
    value = after(asked.query.get("continuationToken"), 25)
    last = value[-1]["id"]
    return Reply({"count": 10, "value": value}, headers={"X-MS-ContinuationToken": str(last)} if last < 25 else {})


@case(
    "Salesforce's bulk results: CSV, and a locator that is the text null at the end",
    {
        "records": {"format": "csv"},
        "paginator": {
            "type": "cursor",
            "cursor": {"header": "Sforce-Locator"},
            "send_as": {"query": "locator"},
            "stop_when": "headers['Sforce-Locator'] == 'null'",
        },
    },
    ids=[str(number) for number in ALL_25],
)
def _salesforce_bulk(asked: Asked, url: str) -> Any:
    records = after(asked.query.get("locator"), 25)
    last = records[-1]["id"]
    body = '"id","name"\n' + "".join(f'"{record["id"]}","x"\n' for record in records)
    headers = {"Content-Type": "text/csv", "Sforce-Locator": str(last) if last < 25 else "null"}
    return Reply(body.encode(), headers=headers)


@case(
    "Marketo: a rate limit with status 200 has no result, and a rule finds it",
    {
        "records": {"path": "result", "on_missing": "empty"},
        "paginator": {
            "type": "cursor",
            "cursor": {"path": "nextPageToken"},
            "send_as": {"query": "nextPageToken"},
            "stop_when": "not response.moreResult",
        },
        "error_handler": {
            "max_retries": 0,
            "rules": [
                {
                    "predicate": "response.errors[0].code == '606'",
                    "action": "RATE_LIMITED",
                    "backoff": [{"type": "constant", "seconds": 0.01}],
                }
            ],
        },
    },
    ids=ALL_25,
)
def _marketo(asked: Asked, url: str) -> Any:
    token = asked.query.get("nextPageToken")
    if token == "10" and is_first("marketo", url):
        return {"success": False, "errors": [{"code": "606", "message": "Max rate limit exceeded"}]}
    result = after(token, 25)
    last = result[-1]["id"]
    return {"success": True, "result": result, "moreResult": last < 25, "nextPageToken": str(last)}


@case(
    "Amazon's selling partners: the token excludes the other parameters, which a template leaves out",
    {
        "request": {"path": "/orders", "query": {"CreatedAfter": "{{ none if token else '2026-01-01' }}"}},
        "records": {"path": "payload.Orders"},
        "paginator": {"type": "cursor", "cursor": {"path": "payload.NextToken"}, "send_as": {"query": "NextToken"}},
    },
    ids=ALL_25,
)
def _selling_partner(asked: Asked, url: str) -> Any:
    if ("CreatedAfter" in asked.query) == ("NextToken" in asked.query):
        return Reply({"errors": [{"code": "InvalidInput"}]}, 400)
    orders = after(asked.query.get("NextToken"), 25)
    last = orders[-1]["id"]
    return {"payload": {"Orders": orders, **({"NextToken": str(last)} if last < 25 else {})}}


@case(
    "PHP: an empty list stands for an empty object, as the body and as a cursor",
    {
        "records": {"path": "data", "on_missing": "empty"},
        "request": {"path": "/{{ stream_slice.day }}"},
        "partitions": {"type": "list", "field": "day", "values": ["some", "none"]},
        "paginator": {"type": "cursor", "cursor": {"path": "paging.next"}},
    },
    ids=[1, 2, 3],
)
def _php_empty(asked: Asked, url: str) -> Any:
    return [] if asked.path.startswith("/none") else {"data": rows(1, 3), "paging": {"next": []}}


@case(
    "A cursor that is a decimal number keeps its digits",
    {"records": {"path": "data"}, "paginator": {"type": "cursor", "cursor": {"path": "next_ts"}}},
    ids=ALL_25,
)
def _decimal_cursor(asked: Asked, url: str) -> Any:
    start = int((asked.query.get("cursor") or "1700000000.1234567890000").rpartition("1234567890")[2])
    data = after(start, 25)
    following = f"1700000000.1234567890{data[-1]['id']:03d}" if data[-1]["id"] < 25 else "null"
    return Reply(f'{{"data": {json.dumps(data)}, "next_ts": {following}}}'.encode())
