"""The sources that come with the package or stand in the documents read everything that the sample API has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.sample_api import SHOP, SampleApi, Sizes, checksum
from airflow_provider_rfr.streams.loader import load_streams
from airflow_provider_rfr.streams.paged import PagedStream, as_paged, iter_pages

pytestmark = pytest.mark.test

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGING = re.findall(r"```yaml\n(request: .*?)```", (ROOT / "docs" / "paging.md").read_text(), re.DOTALL)
SIZES = Sizes(records=230, customers=12, partitions=3, pages=4, page_records=25)


@pytest.fixture(scope="module")
def api() -> Iterator[SampleApi]:
    with SampleApi(SIZES, api_key="k1") as api:
        yield api


def assert_whole(api: SampleApi, stream: PagedStream, collection: str) -> None:
    records: list[Any] = []
    for stream_slice in stream.stream_slices():
        for page in iter_pages(stream, stream_slice):
            records += page.records
    truth = api.truth(collection)
    assert len(records) == truth["count"]
    assert checksum(records) == truth["checksum"]


@pytest.mark.parametrize(
    ("stream", "collection"),
    [
        ("customers", "/customers"),
        ("customer_orders", "/customers/orders"),
        ("orders", "/orders"),
        ("invoices", "/invoices"),
        ("shipments", "/shipments"),
        ("items", "/partitions/items"),
    ],
)
def test_each_stream_reads_its_collection_once(api: SampleApi, stream: str, collection: str) -> None:
    api.reset()
    config = {"base_url": api.base_url, "page_size": 7, "partitions": SIZES.partitions}
    source = {"file": str(SHOP), "config": config, "secrets": {"api_key": "k1"}}
    assert_whole(api, as_paged(load_streams(source)[stream]), collection)
    assert api.counts(path="/cust*" if stream == "customer_orders" else "*")["refetched"] == 0


@pytest.mark.parametrize("path", ["/customers", "/orders", "/shipments", "/invoices"])
def test_each_paging_of_the_docs_reads_its_collection_once(path: str) -> None:
    [stream] = [stream for stream in map(yaml.safe_load, PAGING) if stream["request"]["path"] == path]
    with SampleApi(Sizes(records=230, customers=230)) as api:
        definition = {"base_url": api.base_url, "streams": {"one": stream}}
        assert_whole(api, as_paged(load_streams({"definition": definition})["one"]), path)
        assert api.counts()["refetched"] == 0


def test_the_source_of_the_readme_reads_the_sample_api(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(# \$AIRFLOW_HOME/dags/shop\.yaml\n.*?)```", README, re.DOTALL)
    (tmp_path / "shop.yaml").write_text(text)
    with SampleApi(Sizes(customers=230), api_key="k1") as api:
        secrets = {"api_key": "k1"}
        source = {"file": str(tmp_path / "shop.yaml"), "config": {"base_url": api.base_url}, "secrets": secrets}
        assert_whole(api, as_paged(load_streams(source)["customers"]), "/customers")
