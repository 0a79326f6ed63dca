"""The sources that are measured: how many pages they have, how long each takes, and how many may be in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import yaml

from airflow_provider_rfr.sample_api import SHOP, SampleApi, Sizes

_KILLED_FROM = 1_000


@dataclass(frozen=True, slots=True)
class Shape:
    """A size of source: partitions of pages of records, and the milliseconds before each page.

    :ivar source: ``items``: one stream of all partitions; ``manifest``: the same by an Airbyte manifest; ``streams``: a
        stream for each partition; ``chain``: one stream whose pages name each other
    :ivar in_flight: requests at the same time, on every side
    """

    name: str
    partitions: int
    pages: int
    latency_ms: float = 0.0
    source: Literal["items", "manifest", "streams", "chain"] = "items"
    in_flight: int = 16
    page_records: int = 100

    @property
    def total_pages(self) -> int:
        """Return the number of all pages."""
        return self.partitions * self.pages

    @property
    def records(self) -> int:
        """Return the number of all records."""
        return self.total_pages * self.page_records

    @property
    def is_killed(self) -> bool:
        """Tell whether it lasts long enough to be killed at half."""
        return self.total_pages >= _KILLED_FROM

    @property
    def has_peers(self) -> bool:
        """Tell whether the peers can read it: they know one stream of partitions."""
        return self.source == "items"

    @property
    def most_pages_per_s(self) -> float | None:
        """Return the highest rate of pages that latency and requests in flight allow; None without latency."""
        return self.in_flight * 1000 / self.latency_ms if self.latency_ms else None

    @property
    def title(self) -> str:
        """Describe the shape in one line."""
        parts = {"streams": "streams", "chain": "chain", "manifest": "partitions of a manifest"}
        return (
            f"{self.name}: {self.partitions} {parts.get(self.source, 'partitions')} x {self.pages} pages x "
            f"{self.page_records} records, {self.latency_ms:g} ms a page, {self.in_flight} in flight"
        )

    @property
    def streams(self) -> list[str]:
        """Return the names of the streams."""
        if self.source == "streams":
            return [f"items_{number:02}" for number in range(self.partitions)]
        return ["items"]

    @property
    def collection(self) -> str:
        """Return the path of all records, for the API's own count."""
        return "/customers/1/orders" if self.source == "chain" else "/partitions/items"

    def api(self) -> SampleApi:
        """Return an API that serves this shape, with the pages of its partitions made beforehand."""
        if self.source == "chain":
            return SampleApi(Sizes(self.records, customers=1, partitions=1, pages=1), latency_ms=self.latency_ms)
        sizes = Sizes(partitions=self.partitions, pages=self.pages, page_records=self.page_records)
        return SampleApi(sizes, latency_ms=self.latency_ms, warm=True)

    def definition(self) -> dict[str, Any]:
        """Return a source for streams that the sample API's own source does not have, derived from it."""
        shop: dict[str, Any] = yaml.safe_load(SHOP.read_text())
        if self.source == "chain":
            paths, template = ["/customers/1/orders"], shop["streams"]["customer_orders"]
        else:
            paths = [f"/partitions/{number}/items" for number in range(self.partitions)]
            template = shop["streams"]["items"]
        template = {name: value for name, value in template.items() if name != "partitions"}
        streams = {
            name: {**template, "request": {"path": path}} for name, path in zip(self.streams, paths, strict=True)
        }
        kept = {name: value for name, value in shop.items() if not name.startswith("x-")}
        return {**kept, "streams": streams}


_ALL = (
    Shape("tiny", 4, 5, latency_ms=5),
    Shape("A", 32, 50, latency_ms=20),
    Shape("B", 16, 100),
    Shape("D", 64, 250),
    Shape("S12", 12, 5, source="streams"),
    Shape("S50", 50, 5, source="streams"),
    Shape("chain", 1, 2_000, source="chain"),
    Shape("W20-16", 64, 100, latency_ms=20),
    Shape("W20-64", 64, 100, latency_ms=20, in_flight=64),
    Shape("W200-16", 64, 50, latency_ms=200),
    Shape("W200-64", 64, 50, latency_ms=200, in_flight=64),
    Shape("M", 32, 50, latency_ms=20, source="manifest"),
)
SHAPES = {shape.name: shape for shape in _ALL}
