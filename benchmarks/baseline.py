"""The script that an engineer writes in an hour: requests, threads, orjson, one Parquet file a partition.

No resume, no retry, no commit, no limit on the rate: a run that dies starts from nothing, and a reader sees
half a table meanwhile. It is the floor that a refresh with all of that is measured against.
"""

from __future__ import annotations

import argparse
import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
import requests

_LOCAL = threading.local()
_SIZE = pa.struct([("width", pa.int64()), ("height", pa.int64()), ("unit", pa.string())])
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("sku", pa.string()),
        ("title", pa.string()),
        ("price", pa.float64()),
        ("stock", pa.int64()),
        ("available", pa.bool_()),
        ("discount", pa.float64()),
        ("size", _SIZE),
        ("updated_at", pa.string()),
        ("revision", pa.int64()),
    ]
)


def session() -> requests.Session:
    """Return the thread's session, which keeps its connections."""
    if not hasattr(_LOCAL, "session"):
        _LOCAL.session = requests.Session()
    thread_session: requests.Session = _LOCAL.session
    return thread_session


def read_page(base_url: str, partition: int, page: int, size: int) -> dict[str, Any]:
    response = session().get(
        f"{base_url}/partitions/{partition}/items", params={"page": page, "page_size": size}, timeout=60
    )
    response.raise_for_status()
    value: dict[str, Any] = orjson.loads(response.content)
    return value


def write(partition: int, records: list[dict[str, Any]], out: Path) -> int:
    # From JSON rather than by Table.from_pylist: the latter imports pandas, and took twice as long here.
    lines = io.BytesIO(b"\n".join(map(orjson.dumps, records)))
    table = pj.read_json(lines, parse_options=pj.ParseOptions(explicit_schema=_SCHEMA))
    pq.write_table(table, out / f"part-{partition:05d}.parquet")
    return int(table.num_rows)


def read_all(options: argparse.Namespace, pool: ThreadPoolExecutor) -> list[list[dict[str, Any]]]:
    """Read every partition's records. The first page says how many pages there are; the others follow in parallel."""

    def read(place: tuple[int, int]) -> dict[str, Any]:
        return read_page(options.base_url, place[0], place[1], options.page_size)

    first = list(pool.map(read, [(partition, 1) for partition in range(options.partitions)]))
    places = [(number, page) for number, head in enumerate(first) for page in range(2, head["pages"] + 1)]
    records = [list(head["data"]) for head in first]
    for (number, _), page in zip(places, pool.map(read, places), strict=True):
        records[number] += page["data"]
    return records


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--page-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.threads) as pool:
        partitions = read_all(options, pool)
        read = time.perf_counter()
        rows = sum(pool.map(write, range(len(partitions)), partitions, [options.out] * len(partitions)))
    written = time.perf_counter()
    print(json.dumps({"rows": rows, "seconds": {"read": read - began, "write": written - read}}))


if __name__ == "__main__":
    main()
