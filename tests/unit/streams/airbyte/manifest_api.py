"""An API on loopback for the manifests of these tests, and the CDK's own read of them."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from tests.loopback import LoopbackServer

MANIFESTS = Path(__file__).parent / "manifests"
SHOP = MANIFESTS / "shop.yaml"
KEY = "canary-of-the-shop-0815"

needs_cdk = pytest.mark.skipif(
    importlib.util.find_spec("airbyte_cdk") is None, reason="the extra airbyte is not installed"
)
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@dataclass(frozen=True)
class Asked:
    """A request; ``times`` says how often the same one came before."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    url: str
    times: int = 0

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def raw_query(self) -> str:
        return urlsplit(self.target).query

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.raw_query))

    def json(self) -> Any:
        return json.loads(self.body) if self.body.startswith((b"{", b"[")) else {}

    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def rows(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"name {number}"} for number in range(first, first + count)]


def shop(path: str, query: Mapping[str, str], url: str) -> Answer:
    """Eight customers in pages of three; orders by cursor; ten events by offset; links; windows of days."""
    parts = path.strip("/").split("/")[1:]
    if parts == ["customers"]:
        page = int(query.get("page", 1))
        return 200, {"data": rows(8)[(page - 1) * 3 : page * 3]}
    if parts[0] == "customers":
        customer, after = int(parts[1]), int(query.get("after", 0))
        all_rows = rows(customer % 4 * 2, customer * 100)
        following = after + 2 if after + 2 < len(all_rows) else None
        return 200, {"data": all_rows[after : after + 2], "next": following}
    if parts == ["events"]:
        offset = int(query["offset"])
        return 200, {"data": rows(10)[offset : offset + 4]}
    if parts == ["links"]:
        page = int(query.get("p", 1))
        link = f"{url}/v1/links?p={page + 1}" if page < 4 else None
        return 200, {"data": rows(2, page * 10), "next": link}
    if parts == ["windows"]:
        day = {"day": query["since"]}
        if "token" not in query:
            # The CDK evaluates this cursor as a tuple, and sends both of its numbers.
            return 200, {"data": [{**row, **day} for row in rows(2)], "next": "1,2"}
        assert query["token"] in ("2", "1"), query
        return 200, {"data": [{**row, **day} for row in rows(1, 9)], "next": None}
    return 404, {"error": "no such thing"}


def shop_with(*names: str) -> dict[str, Any]:
    """The shop's manifest with these streams, as a mapping that a test may change."""
    manifest: dict[str, Any] = copy.deepcopy(yaml.safe_load(SHOP.read_text()))
    manifest["streams"] = [copy.deepcopy(manifest["definitions"][name]) for name in names]
    return manifest


class Api(LoopbackServer):
    """Counts requests in order; ``answer`` may be replaced, and is given path, query and its own address.

    :ivar serve: answers instead, and is given the whole request
    :ivar requests: method, target and body of each
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.requests: list[tuple[str, str, bytes]] = []
        self.serve: Callable[[Asked], Answer] | None = None
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[str, Mapping[str, str], str], Answer] = shop
        super().__init__()

    def respond(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes, Mapping[str, str]]:
        self.asked.append(target)
        self.headers.append(dict(headers))
        status, content, *more = self.answered(method, target, headers, body)
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        return status, text, more[0] if more else {}

    def answered(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        request = (method, target, body)
        asked = Asked(*request[:2], headers, body, self.url, self.requests.count(request))
        self.requests.append(request)
        return self.serve(asked) if self.serve else self.answer(asked.path, asked.query, self.url)

    def source(self, manifest: Any = SHOP, **more: Any) -> dict[str, Any]:
        return {
            "manifest": manifest if isinstance(manifest, dict) else str(manifest),
            "config": {"url": self.url},
            "secrets": {"api_key": KEY},
            **more,
        }

    def taken(self) -> list[str]:
        """The requests since the last call."""
        asked, self.asked[:] = list(self.asked), []
        return asked
