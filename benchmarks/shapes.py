"""What is read."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_rfr.sample_api import SampleApi, Sizes


@dataclass(frozen=True, slots=True)
class Shape:
    """So many partitions of so many pages of so many records, each page after so many milliseconds.

    :ivar by_manifest: whether the product reads it by an Airbyte manifest instead of our own YAML
    """

    name: str
    partitions: int
    pages: int
    page_records: int
    latency_ms: float
    by_manifest: bool = False

    @property
    def total_pages(self) -> int:
        return self.partitions * self.pages

    @property
    def records(self) -> int:
        return self.total_pages * self.page_records

    @property
    def title(self) -> str:
        return (
            f"shape {self.name}: {self.partitions} partitions x {self.pages} pages x "
            f"{self.page_records} records, {self.latency_ms:g} ms a page{', by a manifest' * self.by_manifest}"
        )

    def api(self) -> SampleApi:
        """The API that serves this shape, with every page made beforehand."""
        sizes = Sizes(partitions=self.partitions, pages=self.pages, page_records=self.page_records)
        return SampleApi(sizes, latency_ms=self.latency_ms, warm=True)


SHAPES = {
    "A": Shape("A", 32, 50, 100, 20.0),
    "B": Shape("B", 16, 100, 100, 0.0),
    "C": Shape("C", 64, 150, 100, 50.0),
    "M": Shape("M", 32, 50, 100, 20.0, by_manifest=True),
    "tiny": Shape("tiny", 4, 5, 10, 5.0),
}
