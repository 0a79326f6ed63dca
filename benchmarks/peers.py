"""Other tools that read the same pages into the same kind of table: dlt, and Airbyte's CDK.

``make bench-peers`` installs them into `.venv/peers`, apart from the product; `benchmarks.refresh --peers` runs this
file there, a process for each run. dlt publishes by its own Iceberg support. The CDK is a reader without a destination,
so its records are appended by PyIceberg as in `plain.py`. Both read partitions in parallel, and the pages of one in
turn.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    sys.path[0] = str(_ROOT)

PYTHON = _ROOT / ".venv" / "peers" / "bin" / "python"
PEERS = ("dlt", "airbyte")
_PART = 10_000


def command(peer: str, base_url: str, partitions: int, in_flight: int, lake: Path) -> list[str]:
    """Return the command that runs a peer."""
    options = {"base-url": base_url, "partitions": partitions, "threads": in_flight, "lake": lake}
    return [str(PYTHON), __file__, peer, *(f"--{name}={value}" for name, value in options.items())]


def load_by_dlt(options: argparse.Namespace) -> dict[str, float]:
    """Load by dlt's REST client and its Iceberg format, on threads and processes; return seconds by phase."""
    lake = {"type": "sql", "uri": options.catalog, "warehouse": options.warehouse}
    os.environ.update({f"PYICEBERG_CATALOG__DEFAULT__{name.upper()}": value for name, value in lake.items()})
    os.environ.update(
        {
            "EXTRACT__WORKERS": str(options.threads),
            "EXTRACT__MAX_PARALLEL_ITEMS": str(options.threads),
            "NORMALIZE__WORKERS": str(os.cpu_count()),
            # So that each process of the second phase has files to work on.
            "NORMALIZE__DATA_WRITER__FILE_MAX_ITEMS": "50000",
            "SOURCES__DATA_WRITER__FILE_MAX_ITEMS": "20000",
            "RUNTIME__DLTHUB_TELEMETRY": "false",
        }
    )
    began = time.perf_counter()
    import dlt

    destination = dlt.destinations.filesystem(bucket_url=options.warehouse)
    pipeline = dlt.pipeline("bench", str(options.lake / "dlt"), destination=destination, dataset_name="bench")
    pipeline.extract(_dlt_partitions(options), loader_file_format="parquet", table_format="iceberg")
    read = time.perf_counter()
    pipeline.normalize()
    typed = time.perf_counter()
    pipeline.load()
    return {"read": read - began, "type": typed - read, "publish": time.perf_counter() - typed}


def _dlt_partitions(options: argparse.Namespace) -> list[Any]:
    """Return a resource for each partition; all go to one table."""
    import dlt
    from dlt.sources.helpers.rest_client import RESTClient
    from dlt.sources.helpers.rest_client.paginators import PageNumberPaginator

    client = RESTClient(options.base_url)

    def read(partition: int) -> Iterator[Any]:
        paginator = PageNumberPaginator(base_page=1, page_param="page", total_path="pages")
        parameters = {"page_size": options.page_size}
        yield from client.paginate(
            f"/partitions/{partition}/items", params=parameters, paginator=paginator, data_selector="data"
        )

    return [
        dlt.resource(read, name=f"items_{number}", table_name="items", parallelized=True)(number)
        for number in range(options.partitions)
    ]


def load_by_airbyte(options: argparse.Namespace) -> dict[str, float]:
    """Read by the CDK's concurrent sync of a manifest, and append to a table; return seconds by phase."""
    began = time.perf_counter()
    from pyiceberg.catalog import load_catalog

    from benchmarks.plain import ITEMS, publish, typed

    records, pages = _airbyte_records(options), []
    while part := list(islice(records, _PART)):
        pages.append(typed(part, ITEMS))
    read = time.perf_counter()
    catalog = load_catalog("default", type="sql", uri=options.catalog, warehouse=options.warehouse)
    publish(catalog, {"items": pages})
    return {"read": read - began, "publish": time.perf_counter() - read}


def _airbyte_records(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the records of the manifest's only stream."""
    import yaml
    from airbyte_cdk.models import ConfiguredAirbyteCatalog, ConfiguredAirbyteStream, DestinationSyncMode, SyncMode
    from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource

    logger = logging.getLogger("airbyte")
    logger.setLevel(logging.ERROR)
    manifest = yaml.safe_load((_ROOT / "benchmarks" / "shop_manifest.yaml").read_text())
    manifest["concurrency_level"] = {"type": "ConcurrencyLevel", "default_concurrency": options.threads}
    config: Mapping[str, Any] = {
        "base_url": options.base_url,
        "page_size": options.page_size,
        "partitions": list(range(options.partitions)),
    }
    source = ConcurrentDeclarativeSource(config=config, source_config=manifest)
    stream = source.discover(logger, config).streams[0]
    configured = ConfiguredAirbyteStream(stream, SyncMode.full_refresh, DestinationSyncMode.overwrite)
    for message in source.read(logger, config, ConfiguredAirbyteCatalog(streams=[configured]), []):
        if message.record is not None:
            yield dict(message.record.data)


def published_rows(options: argparse.Namespace) -> int:
    """Return the rows that the table has."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", type="sql", uri=options.catalog, warehouse=options.warehouse)
    snapshot = catalog.load_table("bench.items").metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["total-records"] or 0)


def main() -> None:
    """Load, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--page-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--lake", type=Path, required=True, help="folder of the catalog and the warehouse")
    options = parser.parse_args()
    options.catalog, options.warehouse = f"sqlite:///{options.lake}/catalog.db", f"file://{options.lake}/warehouse"
    seconds = load_by_dlt(options) if options.peer == "dlt" else load_by_airbyte(options)
    print(json.dumps({"rows": published_rows(options), "seconds": seconds}))


if __name__ == "__main__":
    main()
