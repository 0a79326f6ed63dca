"""A benchmark of a page by an Airbyte manifest, against the same page by our own YAML and by airbyte-cdk's own sync.

``python -m benchmarks.manifest_speed`` reads the sample API's pages of 100 records in turns: each round by all three,
in one process, so that whatever else the machine does disturbs all of them. A figure is CPU time of this process, the
median of the rounds; the API is another process. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import PagedStream, iter_pages
from benchmarks.shapes import Shape

_ROOT = Path(__file__).resolve().parents[1]
_MANIFEST = _ROOT / "benchmarks" / "shop_manifest.yaml"
_STREAM = "items"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.manifest_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--partitions", type=int, default=8, help="one chain of pages each")
    parser.add_argument("--pages", type=int, default=25, help="of each partition")
    return parser.parse_args(arguments)


def by_pages(stream: PagedStream) -> int:
    """Count the records of all pages, one page a call, as the engine reads them."""
    slices = stream.stream_slices()
    return sum(len(page.records) for stream_slice in slices for page in iter_pages(stream, stream_slice))


def by_the_cdk(config: Mapping[str, Any]) -> int:
    """Count the records of the CDK's own concurrent sync, from the manifest's text to the last message."""
    from airbyte_cdk.models import ConfiguredAirbyteCatalog, ConfiguredAirbyteStream, DestinationSyncMode, SyncMode
    from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource

    manifest = yaml.load(_MANIFEST.read_text(), yaml.CSafeLoader)
    source = ConcurrentDeclarativeSource(config=dict(config), source_config=manifest)
    logger = logging.getLogger("airbyte")
    streams = {entry.name: entry for entry in source.discover(logger, dict(config)).streams}
    stream = ConfiguredAirbyteStream(streams[_STREAM], SyncMode.full_refresh, DestinationSyncMode.overwrite)
    catalog = ConfiguredAirbyteCatalog(streams=[stream])
    return sum(message.record is not None for message in source.read(logger, dict(config), catalog, []))


def measured(read: Callable[[], int], records: int) -> float:
    """Return the CPU seconds of a reader.

    :raises SystemExit: records are missing
    """
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        count = read()
    seconds = time.process_time() - began
    if count != records:
        raise SystemExit(f"read {count} records of {records}")
    return seconds


def rounds(api: SampleApi, shape: Shape, count: int) -> dict[str, list[float]]:
    """Return CPU milliseconds a page of each reader, round by round; the first round only warms up."""
    config: dict[str, Any] = {"base_url": api.base_url, "partitions": shape.partitions, "page_size": shape.page_records}
    logging.getLogger("airbyte").setLevel(logging.ERROR)
    own = load_stream({"file": SHOP, "config": dict(config)}, _STREAM)
    config["partitions"] = list(range(shape.partitions))
    manifest = load_stream({"manifest": str(_MANIFEST), "config": config}, _STREAM)
    assert isinstance(own, PagedStream)
    assert isinstance(manifest, PagedStream)
    readers: dict[str, Callable[[], int]] = {
        "own": lambda: by_pages(own),
        "manifest": lambda: by_pages(manifest),
        "airbyte_cdk": lambda: by_the_cdk(config),
    }
    milliseconds: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(count + 1):
        for name, read in readers.items():
            seconds = measured(read, shape.records)
            if number:
                milliseconds[name].append(seconds / shape.total_pages * 1000)
    return milliseconds


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    shape = Shape("manifest", options.partitions, options.pages)
    load = round(os.getloadavg()[0], 1)
    with shape.api() as api:
        milliseconds = rounds(api, shape, options.rounds)
    figures: dict[str, Any] = {name: round(median(times), 3) for name, times in milliseconds.items()}
    for name, other in (("ratio", "own"), ("ratio_to_airbyte_cdk", "airbyte_cdk")):
        pairs = [a / b for a, b in zip(milliseconds["manifest"], milliseconds[other], strict=True)]
        figures[name] = round(median(pairs), 2)
    print(f"CPU of a page of {shape.page_records} records, ms (median of {options.rounds}), load before it {load}")
    print(
        f"own YAML {figures['own']:.2f}, manifest {figures['manifest']:.2f}, airbyte-cdk {figures['airbyte_cdk']:.2f}"
    )
    print(f"manifest to own YAML, in pairs: {figures['ratio']:.2f}")
    print(json.dumps({**figures, "load_before": load, "cores": os.cpu_count()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
