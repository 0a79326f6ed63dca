"""What each manifest's API answers: one short function for each, by the request alone.

Paths below ``/setup/`` are those that a reader asks for once for itself: tokens, logins, schemas, lists of streams.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import time
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from manifest_api import KEY, Answer, Asked, rows

USER, PASSWORD, SECRET = "user-of-the-shop", "password-of-the-shop-0815", "secret-of-the-shop-which-is-long-enough"
CONFIG: dict[str, Any] = {
    "page_size": 3,
    "kinds": ["new", "old"],
    "field": "items",
    "start": "2024-01-01",
    "username": USER,
    "credentials": {"kind": "key"},
    "tables": [{"name": "first"}, {"name": "second table"}],
}
SECRETS = {"api_key": KEY, "password": PASSWORD, "secret": SECRET}


def after(all_rows: list[dict[str, Any]], token: Any, size: int = 2) -> dict[str, Any]:
    """A page by cursor: the rows after the one with this number."""
    begin = int(token or 0)
    following = begin + size if begin + size < len(all_rows) else None
    return {"data": all_rows[begin : begin + size], "next": following}


def numbered(page: Any, count: int = 8, size: int = 3) -> list[dict[str, Any]]:
    """A page by its number, from 1."""
    return rows(count)[(int(page or 1) - 1) * size : int(page or 1) * size]


def paging(asked: Asked) -> Answer:
    body, query = asked.json(), asked.query
    if asked.path == "/pages":
        return 200, {"data": numbered(query.get("page"))}
    if asked.path == "/bodies":
        return 200, {"data": numbered(body["paging"]["page"] + 1)}
    if asked.path == "/offsets":
        begin = int(asked.headers["X-Offset"])
        return 200, {"data": rows(8)[begin : begin + int(asked.headers["X-Limit"])]}
    if asked.path == "/forms":
        batch = after(rows(8), asked.form().get("cursor"), int(asked.form()["size"]))
        return 200, {**batch, "next": {"cursor": batch["next"]} if batch["next"] else {}}
    if asked.path == "/links":
        page = int(query.get("page", 1))
        link = {"Link": f'<{asked.url}/links?page={page + 1}>; rel="next"'} if page < 3 else {}
        return 200, {"data": numbered(page)}, link
    if asked.path == "/after":
        return 200, {"data": after(rows(8), query.get("after"), 3)["data"]}
    if asked.path == "/mappings":
        place = body.get("after", {"at": [0, None]})["at"][0]
        batch = after(rows(7), place)
        return 200, {**batch, "next": {"at": [batch["next"], "x"], "flag": True} if batch["next"] else None}
    if asked.path == "/literals":
        # As the CDK evaluates them: a tuple, a number, a number, a text, the last one empty.
        tokens = ["1,2", "1_000", "0x1F", "0123", None]
        counts = {"": 0, "1000": 2, "31": 3, "0123": 4}
        return 200, {"data": rows(2, len(asked.raw_query)), "next": tokens[counts.get(query.get("token", ""), 1)]}
    if query.get("after") is None and not asked.times:
        return 410, {"error": "the list has changed"}
    return 200, after(rows(5), query.get("after"))


def partitions(asked: Asked) -> Answer:
    """Rows that tell where they are: a number for each path, from 1 to 7 of them."""
    place = sum(map(ord, asked.path + asked.query.get("region", "") + asked.query.get("since", "")))
    if asked.path == "/rows/customers":
        return 200, after(rows(4), asked.query.get("after"))
    first = place * 10 if not asked.path.endswith("/orders") else int(asked.path.split("/")[2]) * 10
    dated = [{**row, "at": asked.query.get("since", "2024-01-05")} for row in rows(place % 5, first)]
    return 200, after(dated, asked.query.get("after"))


def records(asked: Asked) -> Answer:
    page = int(asked.query.get("page", 1))
    first, kind = page * 3 - 2, asked.path.strip("/")
    if page > 3:
        return 200, {} if kind in ("groups", "items", "expanded", "named") else []
    if kind == "groups":
        return 200, {"groups": [{"rows": {"a": rows(1, first), "b": rows(1, first + 1)}}, {"rows": {"c": rows(1, 90)}}]}
    if kind == "named":
        return 200, {"items": rows(3, first)}
    if kind == "expanded":
        return 200, {"data": [{"id": first, "rows": rows(2, first)}, {"id": first + 1, "rows": []}]}
    dated = [
        {
            **row,
            "code": f"{row['id']}_000",
            "at": f"2024-01-0{row['id']}T10:00:00Z",
            "amount": f"{row['id']}.50",
            "is_new": "true" if row["id"] % 2 else "false",
            "lines": [{"count": "3"}],
            "inner": {"A b": row["id"], "Deep": {"$two": [1, {"x": 2}]}},
            "OrderLine": None,
        }
        for row in rows(3, first)
    ]
    return 200, dated


def dates(asked: Asked) -> Answer:
    query, kind = asked.query, asked.path.strip("/")
    if kind == "feed":
        # Newest first; three of the eight are older than the start.
        dated = [{**row, "at": f"2024-01-{5 - row['id']:02d}"} for row in rows(4)]
        older = [{**row, "at": f"2023-12-{30 - row['id']:02d}"} for row in rows(4, 5)]
        return 200, after([*dated, *older], query.get("after"))
    if kind == "counted":
        return 200, after([row for row in rows(8) if row["id"] >= int(query["from"])], query.get("after"))
    day = query.get("since", "2024-01-02")[:10]
    if kind == "split":
        spread = [{**row, "at": f"2024-01-{row['id']:02d}"} for row in rows(8)]
        return 200, after([row for row in spread if row["at"] >= day], query.get("after"))
    count = int(day[-1], 10) % 4 + 1 if day[-1].isdigit() else 2
    return 200, after([{**row, "at": day} for row in rows(count)], query.get("after"))


def logins(asked: Asked) -> Answer:
    import jwt

    if asked.path == "/setup/token":
        form = asked.form()
        accepted = form.get("client_secret") == PASSWORD or "assertion" in form
        assert form.get("grant_type") != "refresh_token" or form["refresh_token"] == SECRET
        return (200, {"access_token": f"token-{asked.times}-0815", "expires_in": 3600}) if accepted else (401, {})
    if asked.path == "/setup/login":
        wanted = asked.json().get("password") == PASSWORD
        return (200, {"session": {"id": "session-0815"}, "id": "session-0815"}) if wanted else (401, {})
    if asked.path == "/setup/valid":
        return 200, {}
    who, headers = asked.path.rpartition("/")[2], asked.headers
    bearer = headers.get("Authorization", "").removeprefix("Bearer ")
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    may_read = {
        "open": lambda: "Authorization" not in headers,
        "key_in_header": lambda: headers.get("X-Key") == KEY,
        "key_in_query": lambda: asked.query.get("key") == KEY,
        "key_in_body": lambda: asked.json().get("key") == KEY,
        "bearer": lambda: bearer == KEY,
        "basic": lambda: headers.get("Authorization") == f"Basic {basic}",
        "session_as_bearer": lambda: bearer == "session-0815",
        "session_as_key": lambda: headers.get("X-Session") == "session-0815",
        "session_of_old": lambda: headers.get("X-Session") == "session-0815",
        "selected": lambda: headers.get("X-Key") == KEY,
        "jwt": lambda: jwt.decode(bearer, SECRET, ["HS256"], options={"verify_iat": False})["shop"] == USER,
        "refreshed": lambda: bearer.startswith("token-") and asked.times > 0,
    }.get(who, lambda: bearer.startswith("token-"))
    return (200, {"data": numbered(asked.query.get("page"))}) if may_read() else (401, {"error": who})


def errors(asked: Asked) -> Answer:
    """The second page fails at first; how decides the name."""
    name, is_second = asked.path.rpartition("/")[2], asked.query.get("page") == "2"
    failures: dict[str, Answer] = {
        "by_default": (503, {"error": "busy"}),
        "constant": (404, {"error": "busy"}),
        "exponential": (200, {"error": "busy"}),
        "wait_for": (429, {"error": "busy"}, {"X-Wait": "1 s"}),
        "wait_until": (429, {"error": "busy"}, {"X-Until": str(time.time() + 1)}),
        "rate_limited": (400, {"error": "too fast"}),
        "composite": (418, {"error": "teapot"}),
    }
    if is_second and name in failures and not asked.times:
        return failures[name]
    if asked.query.get("page") == "3" and name == "composite":
        return 404, {"gone": True}
    if is_second and name in ("ignored", "accepted", "failing"):
        return 404, {"error": "no such page", "page": 2}
    return 200, {"data": numbered(asked.query.get("page"))}, {"X-Remaining": "500", "X-Reset-At": "1"}


def formats(asked: Asked) -> Answer:
    format_, _, packed = asked.path.strip("/").partition(".")
    page = numbered(asked.query.get("page"))
    lines = [json.dumps(row) for row in page]
    content = {
        "json": json.dumps(page),
        "jsonl": "\n".join(lines),
        "csv": "\n".join(["id;name;empty", *(f"{row['id']};Größe {row['name']};-" for row in page)]),
        "xml": "<rows>" + "".join(f"<row><id>{row['id']}</id></row>" for row in page) + "</rows>",
        "lines": "\n".join(row["name"] for row in page),
    }[format_].encode("latin-1")
    if packed == "gz":
        # Said by a header on even pages, by the type of the content on odd ones.
        is_even = asked.query.get("page", "1") == "2"
        headers = {"Content-Encoding": "gzip"} if is_even else {"Content-Type": "application/gzip"}
        return 200, gzip.compress(content), headers
    if packed == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("rows", content)
        return 200, file.getvalue()
    return 200, content


def jobs(asked: Asked) -> Answer:
    """A job is new, then running, then done; its name says what was asked for."""
    parts = asked.path.strip("/").split("/")
    if parts == ["jobs"]:
        return 201, {"id": "-".join(map(str, asked.json().values()))}
    if parts[0] == "files":
        children = rows(len(parts[1]) % 4 + 1, ord(parts[1][0]))
        if asked.query["format"] == "json":
            return 200, {"data": children}
        text = "\n".join(["id,name,at", *(f"{row['id']},{row['name']},2024-01-02" for row in children)])
        return 200, gzip.compress(text.encode()), {"Content-Type": "application/gzip"}
    if parts[0] == "pages":
        return 200, {"data": numbered(asked.query.get("page"))}
    if parts[2:] == ["target"]:
        return 200, {"id": parts[1]}
    if parts[2:]:
        return 200, {}
    files = [f"{asked.url}/files/{parts[1]}", f"{asked.url}/files/{parts[1]}xx"]
    return 200, {"id": parts[1], "status": ["new", "running", "done"][min(asked.times, 2)], "files": files}


def dynamic(asked: Asked) -> Answer:
    if asked.path == "/setup/fields":
        kinds = {"id": "integer", "name": "text", "size": "integer", "hidden": "text", "color": "text"}
        return 200, {"data": [{"name": name, "kind": kind} for name, kind in kinds.items()]}
    if asked.path == "/setup/tables":
        return 200, {"data": [{"name": "alpha"}, {"name": "Beta 2"}]}
    page = numbered(asked.query.get("page"))
    if asked.path == "/tables/chunks":
        more = {"size": 1, "hidden": "x", "color": "red"}
        names = asked.query["fields"].split(",")
        whole = [{**row, **more, "id": f"c{row['id']}"} for row in page]
        page = [{name: value for name, value in row.items() if name in names} for row in whole]
    return 200, {"data": page}


def custom(asked: Asked) -> Answer:
    token = asked.query.get("after")
    if asked.path == "/signed":
        assert asked.headers["X-Signed"] == KEY[::-1]
        return (404, {}) if token == "4" else (200, after(rows(7), token))
    if asked.path == "/busy" and token == "2" and not asked.times:
        return 503, {}
    if asked.path == "/reversed":
        return 200, json.dumps(after(rows(2), None))[::-1].encode()
    return 200, after([{**row, "at": "2024-01-03"} for row in rows(7)], token)


APIS: Mapping[str, Callable[[Asked], Answer]] = {
    api.__name__: api for api in (paging, partitions, records, dates, logins, errors, formats, jobs, dynamic, custom)
}
