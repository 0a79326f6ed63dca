"""A whole refresh by the product, as a user starts it without Airflow."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_rfr.sample_api import SHOP
from benchmarks.processes import Tree, Usage
from benchmarks.shapes import Shape

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "bench"


class RunFailed(RuntimeError):
    """A measured command ended with an error; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Product:
    """One configuration of the product, with a lake of its own.

    :ivar folder: where configuration, catalog and warehouse are
    """

    shape: Shape
    base_url: str
    folder: Path

    @property
    def lake(self) -> dict[str, Any]:
        """Return the catalog of the published tables and their ledgers."""
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        return {"name": NAMESPACE, "properties": {"type": "sql", "uri": uri, "warehouse": warehouse}}

    def source(self) -> dict[str, Any]:
        """Return the source: the sample API's own file, its manifest, or a definition of this shape."""
        shape = self.shape
        config: dict[str, Any] = {"base_url": self.base_url, "page_size": shape.page_records}
        if shape.source == "items":
            return {"file": str(SHOP), "config": {**config, "partitions": shape.partitions}}
        if shape.source == "manifest":
            manifest = str(ROOT / "benchmarks" / "shop_manifest.yaml")
            return {"manifest": manifest, "config": {**config, "partitions": list(range(shape.partitions))}}
        return {"definition": shape.definition(), "config": config}

    def document(self) -> dict[str, Any]:
        """Return the document of the refresh."""
        return {
            "source": self.source(),
            "streams": self.shape.streams,
            "target": f"{NAMESPACE}.{{stream}}",
            "lake": self.lake,
            "options": {"concurrency": self.shape.in_flight},
            # As in Airflow: a retry of the same run reads no stream again that was published.
            "run": {"key": "bench"},
        }

    def start(self) -> Tree:
        """Start a refresh, or resume the one that is open in this lake."""
        (self.folder / "warehouse").mkdir(parents=True, exist_ok=True)
        config = self.folder / "refresh.json"
        config.write_text(json.dumps(self.document()))
        return Tree([sys.executable, str(ROOT / "spark_apps" / "full_refresh.py"), "--config", str(config)])

    def published_ids(self) -> list[int]:
        """Return the ids in the published tables, read by PyIceberg and not by the product."""
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(self.lake["name"], **self.lake["properties"])
        ids: list[int] = []
        for stream in self.shape.streams:
            rows = catalog.load_table(f"{NAMESPACE}.{stream}").scan(selected_fields=("id",)).to_arrow()
            ids += rows["id"].to_pylist()
        return ids


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
