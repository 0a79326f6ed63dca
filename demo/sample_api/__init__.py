"""A sample API: a real HTTP server with deterministic data, several ways of paging, and faults on demand.

Resources, all ``GET``:

* ``/customers?page=&page_size=``: page numbers, with ``pages`` and ``total``
* ``/customers/{id}/orders?cursor=&limit=``: children of a parent, ``next_cursor`` in the body
* ``/orders?offset=&limit=``: offsets, with ``total``
* ``/invoices?page=&per_page=``: a bare list, the next page in the ``Link`` header
* ``/partitions`` and ``/partitions/{p}/items?page=&page_size=``: many independent partitions, for measuring

`demo.sample_api.faults` says what can be made to go wrong, `demo.sample_api.admin` how to ask what was
served.
"""

from __future__ import annotations

from demo.sample_api.client import SampleApi
from demo.sample_api.dataset import Sizes
from demo.sample_api.records import canonical, checksum

__all__ = ["SampleApi", "Sizes", "canonical", "checksum"]
