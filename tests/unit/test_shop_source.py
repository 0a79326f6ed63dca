"""The demo's source definition reads everything that the sample API has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.streams.loader import load_streams
from airflow_provider_rfr.streams.paged import as_paged, iter_pages
from demo.sample_api import SampleApi, Sizes, checksum

pytestmark = pytest.mark.test

SHOP = Path(__file__).resolve().parents[2] / "demo" / "shop.yaml"
SIZES = Sizes(records=230, customers=12, partitions=3, pages=4, page_records=25)


@pytest.fixture(scope="module")
def api() -> Iterator[SampleApi]:
    with SampleApi(SIZES, api_key="k1") as api:
        yield api


@pytest.mark.parametrize(
    ("stream", "collection"),
    [
        ("customers", "/customers"),
        ("customer_orders", "/customers/orders"),
        ("orders", "/orders"),
        ("invoices", "/invoices"),
        ("items", "/partitions/items"),
    ],
)
def test_each_stream_reads_its_collection_once(api: SampleApi, stream: str, collection: str) -> None:
    api.reset()
    config = {"base_url": api.base_url, "page_size": 7, "partitions": SIZES.partitions}
    source = {"file": str(SHOP), "config": config, "secrets": {"api_key": "k1"}}
    paged = as_paged(load_streams(source)[stream])
    records: list[Any] = []
    for stream_slice in paged.stream_slices():
        for page in iter_pages(paged, stream_slice):
            records += page.records
    truth = api.truth(collection)
    assert len(records) == truth["count"]
    assert checksum(records) == truth["checksum"]
    assert api.counts(path="/cust*" if stream == "customer_orders" else "*")["refetched"] == 0
