"""APIs with a cursor in the body or in a header, or with the address of the next page."""

from __future__ import annotations

import json
from typing import Any

from public_api_cases import after, case, is_first, page_of, rows
from rest_api import Asked, Reply


@case(
    "Stripe: has_more is the end, also after a full page",
    "records: {path: data}",
    "paginator: {type: keyset, field: id, page_size: 10, send_as: {query: starting_after},",
    "  flag: {path: has_more}}",
    ids=list(range(1, 31)),
)
def _stripe(asked: Asked, url: str) -> Any:
    data = after(asked.query.get("starting_after"), 30)
    return {"object": "list", "data": data, "has_more": data[-1]["id"] < 30}


@case(
    "HubSpot's older lists: has-more has a dash, and the offset is there on the last page, too",
    "records: {path: contacts}",
    "paginator: {type: cursor, cursor: {path: vid-offset}, send_as: {query: vidOffset},",
    "  stop_when: 'not response[''has-more'']'}",
)
def _hubspot_lists(asked: Asked, url: str) -> Any:
    contacts = after(asked.query.get("vidOffset"), 25)
    return {"contacts": contacts, "has-more": contacts[-1]["id"] < 25, "vid-offset": contacts[-1]["id"]}


@case(
    "Airtable: an iterator that is not available any more is read again from the start",
    "records: {path: records}",
    "paginator: {type: cursor, cursor: {path: offset}, send_as: {query: offset}}",
    "error_handler: {rules: [{status: 422, text: LIST_RECORDS_ITERATOR_NOT_AVAILABLE, action: TOKEN_EXPIRED}]}",
    error=r"the page token is no longer accepted: 422 .*LIST_RECORDS_ITERATOR_NOT_AVAILABLE",
)
def _airtable_expired(asked: Asked, url: str) -> Any:
    if "offset" in asked.query:
        return Reply({"error": {"type": "LIST_RECORDS_ITERATOR_NOT_AVAILABLE"}}, 422)
    return {"records": rows(1, 10), "offset": "itr10"}


@case(
    "Google: a page in the middle has no items at all, but a nextPageToken",
    "records: {path: items, on_missing: empty}",
    "paginator: {type: cursor, cursor: {path: nextPageToken}, send_as: {query: pageToken}}",
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
    "request: {method: POST, path: /, json: {TableName: t}}",
    "records: {path: Items}",
    "paginator: {type: cursor, cursor: {path: LastEvaluatedKey}, send_as: {json: ExclusiveStartKey}}",
    ids=[*range(1, 11), *range(21, 26)],
)
def _dynamodb(asked: Asked, url: str) -> Any:
    start = int(asked.json.get("ExclusiveStartKey", {"id": {"N": "0"}})["id"]["N"])
    items = [] if start == 10 else after(start, 25)
    return {"Items": items, **({"LastEvaluatedKey": {"id": {"N": str(start + 10)}}} if start < 20 else {})}


@case(
    "Twitter's first version: next_cursor is 0 at the end, which stop_when has to say",
    "records: {path: users}",
    "paginator: {type: cursor, cursor: {path: next_cursor}, stop_when: response.next_cursor == 0}",
)
def _twitter(asked: Asked, url: str) -> Any:
    users = after(asked.query.get("cursor"), 25)
    return {"users": users, "next_cursor": users[-1]["id"] if users[-1]["id"] < 25 else 0}


@case(
    "GitLab: X-Next-Page is an empty header at the end",
    "records: {path: ''}",
    "paginator: {type: cursor, cursor: {header: X-Next-Page}, send_as: {query: page}}",
)
def _gitlab(asked: Asked, url: str) -> Any:
    return Reply(page_of(asked.page, 25), headers={"X-Next-Page": str(asked.page + 1) if asked.page < 3 else ""})


@case(
    "Monday: a GraphQL cursor of a nested list, and an error with status 200 in words of its own",
    "request: {method: POST, path: /v2, json: {query: q, variables: {}}}",
    "records: {path: data.boards.*.items_page.items}",
    "paginator: {type: cursor, cursor: {path: data.boards.0.items_page.cursor},",
    "  send_as: {json: variables.cursor}}",
    "error_handler: {rules: [{predicate: response.error_code == 'ComplexityException', action: RATE_LIMITED}]}",
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
    "request: {method: POST, path: /graphql.json, json: {query: q, variables: {}}}",
    "records: {path: data.products.edges.*.node}",
    "paginator: {type: cursor, cursor: {path: data.products.pageInfo.endCursor},",
    "  send_as: {json: variables.after}, stop_when: not response.data.products.pageInfo.hasNextPage}",
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
    "Salesforce's bulk results: CSV, and a locator that is the text null at the end",
    "records: {format: csv}",
    "paginator: {type: cursor, cursor: {header: Sforce-Locator}, send_as: {query: locator},",
    "  stop_when: 'headers[''Sforce-Locator''] == ''null'''}",
    ids=[str(number) for number in range(1, 26)],
)
def _salesforce_bulk(asked: Asked, url: str) -> Any:
    records = after(asked.query.get("locator"), 25)
    last = records[-1]["id"]
    body = '"id","name"\n' + "".join(f'"{record["id"]}","x"\n' for record in records)
    headers = {"Content-Type": "text/csv", "Sforce-Locator": str(last) if last < 25 else "null"}
    return Reply(body.encode(), headers=headers)


@case(
    "Amazon's selling partners: the token excludes the other parameters, which a template leaves out",
    "request: {path: /orders, query: {CreatedAfter: '{{ none if token else ''2026-01-01'' }}'}}",
    "records: {path: payload.Orders}",
    "paginator: {type: cursor, cursor: {path: payload.NextToken}, send_as: {query: NextToken}}",
)
def _selling_partner(asked: Asked, url: str) -> Any:
    if ("CreatedAfter" in asked.query) == ("NextToken" in asked.query):
        return Reply({"errors": [{"code": "InvalidInput"}]}, 400)
    orders = after(asked.query.get("NextToken"), 25)
    last = orders[-1]["id"]
    return {"payload": {"Orders": orders, **({"NextToken": str(last)} if last < 25 else {})}}


@case(
    "PHP: an empty list stands for an empty object, as the body and as a cursor",
    "records: {path: data, on_missing: empty}",
    "request: {path: '/{{ stream_slice.day }}'}",
    "partitions: {type: list, field: day, values: [some, none]}",
    "paginator: {type: cursor, cursor: {path: paging.next}}",
    ids=[1, 2, 3],
)
def _php_empty(asked: Asked, url: str) -> Any:
    return [] if asked.path.startswith("/none") else {"data": rows(1, 3), "paging": {"next": []}}


@case(
    "A cursor that is a decimal number keeps its digits",
    "records: {path: data}",
    "paginator: {type: cursor, cursor: {path: next_ts}}",
)
def _decimal_cursor(asked: Asked, url: str) -> Any:
    start = int((asked.query.get("cursor") or "1700000000.1234567890000").rpartition("1234567890")[2])
    data = after(start, 25)
    following = f"1700000000.1234567890{data[-1]['id']:03d}" if data[-1]["id"] < 25 else "null"
    return Reply(f'{{"data": {json.dumps(data)}, "next_ts": {following}}}'.encode())


@case(
    "OData (Dynamics, Microsoft Graph): @odata.nextLink has a dot in its name",
    "records: {path: value}",
    "paginator: {type: next_url, url: {path: ['@odata.nextLink']}}",
)
def _odata(asked: Asked, url: str) -> Any:
    value = after(asked.query.get("$skiptoken"), 25)
    last = value[-1]["id"]
    more = {"@odata.nextLink": f"{url}/items?$skiptoken={last}"} if last < 25 else {}
    return {"@odata.context": f"{url}/$metadata", "value": value, **more}


@case(
    "JSON:API: links.next as an object is an error where a text was declared",
    "records: {path: data}",
    "paginator: {type: next_url, url: {path: links.next}}",
    error=r"the next page's address is an object with the keys href",
)
def _json_api_undeclared(asked: Asked, url: str) -> Any:
    return {"data": rows(1, 10), "links": {"next": {"href": f"{url}/items?page=2"}}}


@case(
    "HAL: _embedded is not there where there are no records",
    "records: {path: _embedded.orders, on_missing: empty}",
    "paginator: {type: next_url, url: {path: _links.next.href}}",
)
def _hal(asked: Asked, url: str) -> Any:
    if asked.page == 4:
        return {"_links": {"self": {"href": asked.path}}}
    links = {"self": {"href": asked.path}, "next": {"href": f"/items?page={asked.page + 1}"}}
    return {"_embedded": {"orders": page_of(asked.page, 25)}, "_links": links}


@case(
    "Zendesk: links.next is there on the last page, too, and meta.has_more is false",
    "records: {path: tickets}",
    "paginator: {type: next_url, url: {path: links.next}, stop_when: not response.meta.has_more}",
)
def _zendesk(asked: Asked, url: str) -> Any:
    tickets = after(asked.query.get("page[after]"), 25)
    last = tickets[-1]["id"]
    return {"tickets": tickets, "meta": {"has_more": last < 25}, "links": {"next": f"{url}/items?page[after]={last}"}}


@case(
    "Klaviyo: the query of the next link has brackets, and those of the request are in it, too",
    "request: {path: /profiles, query: {'page[size]': 10, sort: id}}",
    "records: {path: data}",
    "paginator: {type: next_url, url: {path: links.next}}",
)
def _klaviyo(asked: Asked, url: str) -> Any:
    assert asked.query["page[size]"] == "10" and asked.query["sort"] == "id"
    data = after(asked.query.get("page[cursor]"), 25)
    last = data[-1]["id"]
    following = f"{url}/profiles?page%5Bcursor%5D={last}&page%5Bsize%5D=10&sort=id" if last < 25 else None
    return {"data": data, "links": {"next": following, "prev": None}}


@case(
    "GitHub: one page has no Link header, and a repository without commits is 204",
    "records: {path: ''}",
    "request: {path: '/repos/{{ stream_slice.repo }}/contributors'}",
    "partitions: {type: list, field: repo, values: [a, b]}",
    "paginator: {type: link_header, page_size: 10, size_as: {query: per_page}}",
    ids=[1, 2, 3],
)
def _github_empty(asked: Asked, url: str) -> Any:
    return Reply(None, 204) if "/b/" in asked.path else rows(1, 3)


@case(
    "Shopify: page_info excludes the other parameters, and one Link header names both directions",
    "request: {path: /orders.json, query: {status: any, limit: 10}}",
    "records: {path: orders}",
    "paginator: {type: link_header}",
)
def _shopify(asked: Asked, url: str) -> Any:
    if "page_info" in asked.query and "status" in asked.query:
        return Reply({"errors": {"status": "status cannot be passed when page_info is present"}}, 400)
    orders = after(asked.query.get("page_info"), 25)
    last = orders[-1]["id"]
    links = [f'<{url}/orders.json?limit=10&page_info=0>; rel="previous"'] if last > 10 else []
    links += [f'<{url}/orders.json?limit=10&page_info={last}>; rel="next"'] if last < 25 else []
    return Reply({"orders": orders}, headers={"Link": ", ".join(links)})


@case("Okta: each link has a Link header of its own", "records: {path: ''}", "paginator: {type: link_header}")
def _okta(asked: Asked, url: str) -> Any:
    users = after(asked.query.get("after"), 25)
    last = users[-1]["id"]
    lines = [f'link: <{url}/items>; rel="self"']
    lines += [f'link: <{url}/items?after={last}>; rel="next"'] if last < 25 else []
    body = json.dumps(users).encode()
    head = "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: application/json", *lines, f"Content-Length: {len(body)}"])
    return Reply(raw=lambda out: out.write(f"{head}\r\n\r\n".encode() + body))


@case("A Link header may write the relation in capitals", "records: {path: ''}", "paginator: {type: link_header}")
def _link_in_capitals(asked: Asked, url: str) -> Any:
    headers = {"Link": f'<{url}/items?page={asked.page + 1}>; rel="Next"'} if asked.page < 3 else {}
    return Reply(page_of(asked.page, 25), headers=headers)


@case(
    "A Link header may have semicolons and commas in its address",
    "records: {path: ''}",
    "paginator: {type: link_header}",
)
def _link_with_semicolons(asked: Asked, url: str) -> Any:
    number = int(asked.path.partition("page=")[2] or 1)
    headers = {"Link": f'<{url}/items?in=a,b;page={number + 1}>; rel="next"'} if number < 3 else {}
    return Reply(page_of(number, 25), headers=headers)


@case(
    "FHIR: the next link is the second of a list, and is not there on the last page",
    "records: {path: entry.*.resource}",
    "paginator: {type: next_url, url: {path: link.1.url}, stop_when: 'response.link | length < 2'}",
)
def _fhir(asked: Asked, url: str) -> Any:
    links = [{"relation": "self", "url": asked.path}]
    links += [{"relation": "next", "url": f"{url}/items?page={asked.page + 1}"}] if asked.page < 3 else []
    entries = [{"fullUrl": "x", "resource": record} for record in page_of(asked.page, 25)]
    return {"resourceType": "Bundle", "link": links, "entry": entries}
