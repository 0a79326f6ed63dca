"""A sample API: an HTTP server with deterministic data, several kinds of paging, and faults on demand.

Resources, all ``GET``:

* ``/customers?page=&page_size=``: page numbers, with ``pages`` and ``total``
* ``/customers/{id}/orders?cursor=&limit=``: children of a parent, ``next_cursor`` in the body
* ``/orders?offset=&limit=``: offsets, with ``total``
* ``/invoices?page=&per_page=``: a bare list, the next page in the ``Link`` header
* ``/partitions`` and ``/partitions/{p}/items?page=&page_size=``: many independent partitions, for measuring

Start it with ``python -m airflow_provider_rfr.sample_api``; `SHOP` is a source for it. The module ``app``
describes the faults, and ``__main__`` the requests for tests, such as the log of served pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from airflow_provider_rfr.sample_api.client import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes, canonical, checksum

__all__ = ["SHOP", "SampleApi", "Sizes", "canonical", "checksum"]

SHOP: Final = Path(__file__).with_name("shop.yaml")
"""A source that reads this API, with one stream for each way of paging."""
