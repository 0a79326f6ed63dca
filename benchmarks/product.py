"""A whole refresh by the product, as a user starts it without Airflow."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_rfr.sample_api import SHOP, SampleApi, Sizes
from benchmarks.processes import Tree, Usage


@dataclass(frozen=True, slots=True)
class Shape:
    """A size of source: partitions of pages of records, and the milliseconds before each page.

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
        """Return an API that serves this shape, with every page made beforehand."""
        sizes = Sizes(partitions=self.partitions, pages=self.pages, page_records=self.page_records)
        return SampleApi(sizes, latency_ms=self.latency_ms, warm=True)


SHAPES = {
    "A": Shape("A", 32, 50, 100, 20.0),
    "B": Shape("B", 16, 100, 100, 0.0),
    "C": Shape("C", 64, 150, 100, 50.0),
    "M": Shape("M", 32, 50, 100, 20.0, by_manifest=True),
    "tiny": Shape("tiny", 4, 5, 10, 5.0),
}


ROOT = Path(__file__).resolve().parents[1]
TARGET = "bench.items"


class RunFailed(RuntimeError):
    """A measured command ended with an error; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Product:
    """One configuration of the product, with a lake of its own.

    :ivar folder: where configuration, catalog and warehouse are
    :ivar concurrency: requests in flight
    """

    shape: Shape
    base_url: str
    folder: Path
    concurrency: int

    @property
    def lake(self) -> dict[str, Any]:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        return {"name": "bench", "properties": {"type": "sql", "uri": uri, "warehouse": warehouse}}

    def document(self) -> dict[str, Any]:
        shape = self.shape
        config: dict[str, Any] = {
            "base_url": self.base_url,
            "partitions": shape.partitions,
            "page_size": shape.page_records,
        }
        source = {"file": str(SHOP)}
        if shape.by_manifest:
            source = {"manifest": str(ROOT / "benchmarks" / "shop_manifest.yaml")}
            config["partitions"] = list(range(shape.partitions))
        return {
            "source": {**source, "config": config},
            "streams": ["items"],
            "target": TARGET,
            "lake": self.lake,
            "options": {"concurrency": self.concurrency},
        }

    def start(self) -> Tree:
        """Start a refresh, or resume the one that is open in this lake."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "warehouse").mkdir(exist_ok=True)
        config = self.folder / "refresh.json"
        config.write_text(json.dumps(self.document()))
        return Tree([sys.executable, str(ROOT / "spark_apps" / "full_refresh.py"), "--config", str(config)])

    def published_ids(self) -> list[int]:
        """Return the ids in the published table, read by PyIceberg and not by the product."""
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(self.lake["name"], **self.lake["properties"])
        rows = catalog.load_table(TARGET).scan(selected_fields=("id",)).to_arrow()
        return [int(number) for number in rows["id"].to_pylist()]


def last_line(usage: Usage) -> dict[str, Any]:
    """Return the JSON object that ends the output.

    :raises RunFailed: the command failed, or printed none
    """
    lines = usage.stdout.strip().splitlines()
    try:
        if usage.returncode != 0:
            raise ValueError(f"exit status {usage.returncode}")
        return dict(json.loads(lines[-1] if lines else ""))
    except (ValueError, TypeError) as error:
        end = "\n".join([*usage.stdout.splitlines()[-10:], *usage.stderr.splitlines()[-30:]])
        raise RunFailed(f"{error}\n{end}") from error
