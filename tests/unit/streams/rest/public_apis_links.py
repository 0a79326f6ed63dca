"""APIs that give the next page's address in the body or in a Link header."""

from __future__ import annotations

import json
from typing import Any

from public_api_cases import ALL_25, after, case, is_first, page_of, rows
from rest_api import Asked, Reply


@case(
    "Salesforce: nextRecordsUrl is a path, and is not there once done is true",
    {
        "request": {"path": "/services/data/v60.0/query", "query": {"q": "SELECT Id FROM Account"}},
        "records": {"path": "records"},
        "paginator": {"type": "next_url", "url": {"path": "nextRecordsUrl"}},
    },
    ids=ALL_25,
)
def _salesforce(asked: Asked, url: str) -> Any:
    start = 0 if "q" in asked.query else int(asked.path.rpartition("-")[2])
    records = after(start, 25)
    last = records[-1]["id"]
    more = {"nextRecordsUrl": f"/services/data/v60.0/query/01gx-{last}"} if last < 25 else {}
    return {"totalSize": 25, "done": last == 25, "records": records, **more}


@case(
    "OData (Dynamics, Microsoft Graph): @odata.nextLink has a dot in its name",
    {"records": {"path": "value"}, "paginator": {"type": "next_url", "url": {"path": ["@odata.nextLink"]}}},
    ids=ALL_25,
)
def _odata(asked: Asked, url: str) -> Any:
    value = after(asked.query.get("$skiptoken"), 25)
    last = value[-1]["id"]
    more = {"@odata.nextLink": f"{url}/items?$skiptoken={last}"} if last < 25 else {}
    return {"@odata.context": f"{url}/$metadata", "value": value, **more}


@case(
    "OData of SAP: d.results and d.__next",
    {"records": {"path": "d.results"}, "paginator": {"type": "next_url", "url": {"path": "d.__next"}}},
    ids=ALL_25,
)
def _odata_sap(asked: Asked, url: str) -> Any:
    results = after(asked.query.get("$skiptoken"), 25)
    last = results[-1]["id"]
    return {"d": {"results": results, **({"__next": f"{url}/items?$skiptoken={last}"} if last < 25 else {})}}


@case(
    "JSON:API: links.next is an object with href",
    {"records": {"path": "data"}, "paginator": {"type": "next_url", "url": {"path": "links.next.href"}}},
    ids=ALL_25,
)
def _json_api(asked: Asked, url: str) -> Any:
    number = int(asked.query.get("page[number]", 1))
    following = {"href": f"{url}/items?page%5Bnumber%5D={number + 1}"} if number < 3 else None
    return {"data": page_of(number, 25), "links": {"self": asked.path, "next": following}}


@case(
    "JSON:API: links.next as an object is an error where a text was declared",
    {"records": {"path": "data"}, "paginator": {"type": "next_url", "url": {"path": "links.next"}}},
    error=r"the next page's address is an object with the keys href",
)
def _json_api_undeclared(asked: Asked, url: str) -> Any:
    return {"data": rows(1, 10), "links": {"next": {"href": f"{url}/items?page=2"}}}


@case(
    "HAL: _embedded is not there where there are no records",
    {
        "records": {"path": "_embedded.orders", "on_missing": "empty"},
        "paginator": {"type": "next_url", "url": {"path": "_links.next.href"}},
    },
    ids=ALL_25,
)
def _hal(asked: Asked, url: str) -> Any:
    if asked.page == 4:
        return {"_links": {"self": {"href": asked.path}}}
    links = {"self": {"href": asked.path}, "next": {"href": f"/items?page={asked.page + 1}"}}
    return {"_embedded": {"orders": page_of(asked.page, 25)}, "_links": links}


@case(
    "Zendesk: links.next is there on the last page, too, and meta.has_more is false",
    {
        "records": {"path": "tickets"},
        "paginator": {"type": "next_url", "url": {"path": "links.next"}, "stop_when": "not response.meta.has_more"},
    },
    ids=ALL_25,
)
def _zendesk(asked: Asked, url: str) -> Any:
    tickets = after(asked.query.get("page[after]"), 25)
    last = tickets[-1]["id"]
    return {"tickets": tickets, "meta": {"has_more": last < 25}, "links": {"next": f"{url}/items?page[after]={last}"}}


@case(
    "Zendesk's incremental export: next_page is always there, and end_of_stream says the end",
    {
        "request": {"path": "/incremental/tickets.json", "query": {"start_time": 0}},
        "records": {"path": "tickets"},
        "paginator": {"type": "next_url", "url": {"path": "next_page"}, "stop_when": "response.end_of_stream"},
    },
    ids=ALL_25,
)
def _zendesk_export(asked: Asked, url: str) -> Any:
    tickets = after(asked.query["start_time"], 25)
    last = tickets[-1]["id"]
    path = f"{url}/incremental/tickets.json?start_time={last}"
    return {"tickets": tickets, "next_page": path, "count": len(tickets), "end_of_stream": last == 25}


@case(
    "Facebook: cursors.after is there on the last page, too, and next has the token of the request",
    {"records": {"path": "data"}, "paginator": {"type": "next_url", "url": {"path": "paging.next"}}},
    ids=ALL_25,
)
def _facebook(asked: Asked, url: str) -> Any:
    data = after(asked.query.get("after"), 25)
    last = data[-1]["id"]
    following = {"next": f"{url}/items?access_token=EAAB123456&after={last}"} if last < 25 else {}
    return {"data": data, "paging": {"cursors": {"before": "x", "after": str(last)}, **following}}


@case(
    "Twilio: next_page_uri is a path, and null at the end",
    {"records": {"path": "calls"}, "paginator": {"type": "next_url", "url": {"path": "next_page_uri"}}},
    ids=ALL_25,
)
def _twilio(asked: Asked, url: str) -> Any:
    calls = after(asked.query.get("PageToken"), 25)
    last = calls[-1]["id"]
    return {"calls": calls, "next_page_uri": f"/2010/Calls.json?PageToken={last}" if last < 25 else None}


@case(
    "Klaviyo: the query of the next link has brackets, and those of the request are in it, too",
    {
        "request": {"path": "/profiles", "query": {"page[size]": 10, "sort": "id"}},
        "records": {"path": "data"},
        "paginator": {"type": "next_url", "url": {"path": "links.next"}},
    },
    ids=ALL_25,
)
def _klaviyo(asked: Asked, url: str) -> Any:
    assert asked.query["page[size]"] == "10" and asked.query["sort"] == "id"
    data = after(asked.query.get("page[cursor]"), 25)
    last = data[-1]["id"]
    following = f"{url}/profiles?page%5Bcursor%5D={last}&page%5Bsize%5D=10&sort=id" if last < 25 else None
    return {"data": data, "links": {"next": following, "prev": None}}


@case(
    "GitHub: the last page's Link header has first and prev alone",
    {
        "records": {"path": ""},
        "request": {"path": "/items", "query": {"state": "all"}},
        "paginator": {"type": "link_header", "page_size": 10, "size_as": {"query": "per_page"}},
    },
    ids=ALL_25,
)
def _github(asked: Asked, url: str) -> Any:
    def link(number: int, rel: str) -> str:
        return f'<{url}/items?state=all&per_page=10&page={number}>; rel="{rel}"'

    links = [link(asked.page + 1, "next"), link(3, "last")] if asked.page < 3 else []
    links += [link(1, "first"), link(asked.page - 1, "prev")] if asked.page > 1 else []
    return Reply(page_of(asked.page, 25), headers={"Link": ", ".join(links)})


@case(
    "GitHub: one page has no Link header, and a repository without commits is 204",
    {
        "records": {"path": ""},
        "request": {"path": "/repos/{{ stream_slice.repo }}/contributors"},
        "partitions": {"type": "list", "field": "repo", "values": ["a", "b"]},
        "paginator": {"type": "link_header", "page_size": 10, "size_as": {"query": "per_page"}},
    },
    ids=[1, 2, 3],
)
def _github_empty(asked: Asked, url: str) -> Any:
    return Reply(None, 204) if "/b/" in asked.path else rows(1, 3)


@case(
    "GitHub: the secondary rate limit is 403 with Retry-After, and is waited for",
    {"records": {"path": ""}, "error_handler": {"max_retries": 0}},
    ids=[1, 2, 3],
)
def _github_limit(asked: Asked, url: str) -> Any:
    if is_first("github", url):
        return Reply({"message": "You have exceeded a secondary rate limit"}, 403, {"Retry-After": "0.05"})
    return rows(1, 3)


@case(
    "Shopify: page_info excludes the other parameters, and one Link header names both directions",
    {
        "request": {"path": "/orders.json", "query": {"status": "any", "limit": 10}},
        "records": {"path": "orders"},
        "paginator": {"type": "link_header"},
    },
    ids=ALL_25,
)
def _shopify(asked: Asked, url: str) -> Any:
    if "page_info" in asked.query and "status" in asked.query:
        return Reply({"errors": {"status": "status cannot be passed when page_info is present"}}, 400)
    orders = after(asked.query.get("page_info"), 25)
    last = orders[-1]["id"]
    links = [f'<{url}/orders.json?limit=10&page_info=0>; rel="previous"'] if last > 10 else []
    links += [f'<{url}/orders.json?limit=10&page_info={last}>; rel="next"'] if last < 25 else []
    return Reply({"orders": orders}, headers={"Link": ", ".join(links)})


@case(
    "Freshdesk: the header is written link, and its last page has none",
    {"records": {"path": ""}, "paginator": {"type": "link_header"}},
    ids=ALL_25,
)
def _freshdesk(asked: Asked, url: str) -> Any:
    headers = {"link": f'<{url}/items?page={asked.page + 1}>;rel="next"'} if asked.page < 3 else {}
    return Reply(page_of(asked.page, 25), headers=headers)


@case(
    "Okta: each link has a Link header of its own",
    {"records": {"path": ""}, "paginator": {"type": "link_header"}},
    ids=ALL_25,
)
def _okta(asked: Asked, url: str) -> Any:
    users = after(asked.query.get("after"), 25)
    last = users[-1]["id"]
    lines = [f'link: <{url}/items>; rel="self"']
    lines += [f'link: <{url}/items?after={last}>; rel="next"'] if last < 25 else []
    body = json.dumps(users).encode()
    head = "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: application/json", *lines, f"Content-Length: {len(body)}"])
    return Reply(raw=lambda out: out.write(f"{head}\r\n\r\n".encode() + body))


@case(
    "A Link header may write the relation in capitals",
    {"records": {"path": ""}, "paginator": {"type": "link_header"}},
    ids=ALL_25,
)
def _link_in_capitals(asked: Asked, url: str) -> Any:
    headers = {"Link": f'<{url}/items?page={asked.page + 1}>; rel="Next"'} if asked.page < 3 else {}
    return Reply(page_of(asked.page, 25), headers=headers)


@case(
    "A Link header may have semicolons and commas in its address",
    {"records": {"path": ""}, "paginator": {"type": "link_header"}},
    ids=ALL_25,
)
def _link_with_semicolons(asked: Asked, url: str) -> Any:
    number = int(asked.path.partition("page=")[2] or 1)
    headers = {"Link": f'<{url}/items?in=a,b;page={number + 1}>; rel="next"'} if number < 3 else {}
    return Reply(page_of(number, 25), headers=headers)


@case(
    "FHIR: the next link is the second of a list, and is not there on the last page",
    {
        "records": {"path": "entry.*.resource"},
        "paginator": {"type": "next_url", "url": {"path": "link.1.url"}, "stop_when": "response.link | length < 2"},
    },
    ids=ALL_25,
)
def _fhir(asked: Asked, url: str) -> Any:
    links = [{"relation": "self", "url": asked.path}]
    links += [{"relation": "next", "url": f"{url}/items?page={asked.page + 1}"}] if asked.page < 3 else []
    entries = [{"fullUrl": "x", "resource": record} for record in page_of(asked.page, 25)]
    return {"resourceType": "Bundle", "link": links, "entry": entries}
