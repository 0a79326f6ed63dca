"""The script that an engineer writes in an hour: requests, threads, orjson, PyArrow, one Iceberg commit a table.

It has no resume, no retry, no rate limit and no check: a run that dies starts from nothing. It is the baseline for a
refresh, which has all of that. Its rows go to Iceberg tables in a SQLite catalog, like the product's.
"""

from __future__ import annotations

import argparse
import io
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.json as pj
import requests
from pyiceberg.catalog import Catalog, load_catalog

Tables = Mapping[str, list[pa.Table]]

_LOCAL = threading.local()
_INSTANT = pa.timestamp("us", tz="UTC")
_SIZE = pa.struct([("width", pa.int64()), ("height", pa.int64()), ("unit", pa.string())])
_ADDRESS = pa.struct([("city", pa.string()), ("zip", pa.string()), ("express", pa.bool_())])
ITEMS = pa.schema(
    [
        ("id", pa.int64()),
        ("sku", pa.string()),
        ("title", pa.string()),
        ("price", pa.float64()),
        ("stock", pa.int64()),
        ("available", pa.bool_()),
        ("discount", pa.float64()),
        ("size", _SIZE),
        ("updated_at", _INSTANT),
        ("revision", pa.int64()),
    ]
)
ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("reference", pa.string()),
        ("status", pa.string()),
        ("amount", pa.float64()),
        ("quantity", pa.int64()),
        ("paid", pa.bool_()),
        ("coupon", pa.string()),
        ("ship_to", _ADDRESS),
        ("placed_at", _INSTANT),
        ("revision", pa.int64()),
    ]
)


def session() -> requests.Session:
    """Return the thread's session, which keeps its connections."""
    if not hasattr(_LOCAL, "session"):
        _LOCAL.session = requests.Session()
    thread_session: requests.Session = _LOCAL.session
    return thread_session


def get(url: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Request an address, and return the JSON of the answer."""
    response = session().get(url, params=parameters, timeout=60)
    response.raise_for_status()
    value: dict[str, Any] = orjson.loads(response.content)
    return value


def typed(records: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Convert the records of a page. One thread: for a page, PyArrow's own pool costs more than it saves."""
    lines = io.BytesIO(b"\n".join(map(orjson.dumps, records)))
    parsing = pj.ParseOptions(explicit_schema=schema)
    return pj.read_json(lines, pj.ReadOptions(use_threads=False), parsing)


def read_partitions(options: argparse.Namespace) -> list[list[pa.Table]]:
    """Read every partition. The first page says how many pages there are; the others follow in parallel."""

    def read(place: tuple[int, int]) -> tuple[int, pa.Table]:
        url = f"{options.base_url}/partitions/{place[0]}/items"
        answer = get(url, {"page": place[1], "page_size": options.page_size})
        return answer["pages"], typed(answer["data"], ITEMS)

    with ThreadPoolExecutor(options.threads) as pool:
        first = list(pool.map(read, [(partition, 1) for partition in range(options.partitions)]))
        places = [(number, page) for number, head in enumerate(first) for page in range(2, head[0] + 1)]
        tables = [[head[1]] for head in first]
        for (number, _), (_, table) in zip(places, pool.map(read, places), strict=True):
            tables[number].append(table)
    return tables


def read_chain(base_url: str, page_size: int) -> list[pa.Table]:
    """Read the orders of the one customer: each page has the cursor of the next."""
    tables: list[pa.Table] = []
    parameters: dict[str, Any] = {"limit": page_size}
    while True:
        answer = get(f"{base_url}/customers/1/orders", parameters)
        tables.append(typed(answer["data"], ORDERS))
        if (cursor := answer["next_cursor"]) is None:
            return tables
        parameters["cursor"] = cursor


def read_all(options: argparse.Namespace) -> Tables:
    """Return the pages by table."""
    if options.source == "chain":
        return {"items": read_chain(options.base_url, options.page_size)}
    partitions = read_partitions(options)
    if options.source == "streams":
        return {f"items_{number:02}": pages for number, pages in enumerate(partitions)}
    return {"items": [page for pages in partitions for page in pages]}


def publish(catalog: Catalog, tables: Tables) -> int:
    """Append the pages of each table in one commit; return the rows that the tables then have."""
    catalog.create_namespace_if_not_exists("bench")
    rows = 0
    for name, pages in tables.items():
        content = pa.concat_tables(pages)
        table = catalog.create_table(f"bench.{name}", schema=content.schema)
        table.append(content)
        rows += int(table.metadata.current_snapshot().summary["total-records"])  # type: ignore[union-attr,index,arg-type]
    return rows


def main() -> None:
    """Read, publish, and print one line of JSON."""
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--source", choices=["items", "streams", "chain"], default="items")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--page-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--lake", type=Path, required=True, help="folder of the catalog and the warehouse")
    options = parser.parse_args()
    tables = read_all(options)
    read = time.perf_counter()
    lake = {
        "type": "sql",
        "uri": f"sqlite:///{options.lake}/catalog.db",
        "warehouse": f"file://{options.lake}/warehouse",
    }
    rows = publish(load_catalog("bench", **lake), tables)
    published = time.perf_counter()
    print(json.dumps({"rows": rows, "seconds": {"read": read - began, "publish": published - read}}))


if __name__ == "__main__":
    main()
