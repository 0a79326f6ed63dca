"""The collections that the API serves, and the ways in which they change while they are read.

Records are deterministic: a number gives the same record in every process. One is 220 to 250 bytes of JSON with strings
(some not ASCII), integers, floats, booleans, nulls, a nested object, a list and UTC date-times. ``revision`` counts the
edits that a fault made.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

import orjson

Record = dict[str, Any]
Maker = Callable[[int, int], Record]

_CITIES = ("Zürich", "São Paulo", "København", "Kraków", "東京", "Austin", "Nairobi", "İzmir")
_STATES = ("new", "paid", "packed", "shipped", "returned")
_EPOCH = datetime(2026, 1, 1)
_MINUTES_A_YEAR = 525_600


def _mixed(number: int) -> int:
    """Spread consecutive numbers over 32 bits, so that neighbouring records differ in every field."""
    return (number * 2_654_435_761 + 97) & 0xFFFFFFFF


def _instant(minutes: int) -> str:
    return (_EPOCH + timedelta(minutes=minutes % _MINUTES_A_YEAR)).isoformat() + "Z"


def customer(number: int, revision: int) -> Record:
    mixed = _mixed(number)
    return {
        "id": number,
        "name": f"Customer {number} GmbH & Söhne",
        "email": f"office{mixed % 9973}@customer-{number}.example",
        "active": mixed % 5 != 0,
        "credit": (mixed % 1_000_000) / 100,
        "rating": mixed % 6 if mixed % 3 else None,
        "tags": ["b2b", _STATES[mixed % 5]],
        "address": {"city": _CITIES[mixed % 8], "zip": f"{mixed % 90_000 + 10_000}"},
        "created_at": _instant(mixed),
        "revision": revision,
    }


def order(number: int, revision: int) -> Record:
    mixed = _mixed(number)
    return {
        "id": number,
        "reference": f"ORD-{number:08d}",
        "status": _STATES[mixed % 5],
        "amount": (mixed % 1_000_000) / 100,
        "quantity": mixed % 90 + 1,
        "paid": mixed % 3 == 0,
        "coupon": f"C{mixed % 512}" if mixed % 7 == 0 else None,
        "ship_to": {
            "city": _CITIES[mixed % 8],
            "zip": f"{mixed % 90_000 + 10_000}",
            "express": mixed % 2 == 0,
        },
        "placed_at": _instant(mixed),
        "revision": revision,
    }


def invoice(number: int, revision: int) -> Record:
    record = order(number, revision)
    record["reference"] = f"INV-{number:08d}"
    record["due_on"] = record["placed_at"][:10]
    return record


def item(number: int, revision: int) -> Record:
    mixed = _mixed(number)
    return {
        "id": number,
        "sku": f"SKU-{mixed:010d}",
        "title": f"Item {number} «{_CITIES[mixed % 8]}»",
        "price": (mixed % 100_000) / 100,
        "stock": mixed % 1_000,
        "available": mixed % 4 != 0,
        "discount": (mixed % 50) / 100 if mixed % 3 == 0 else None,
        "size": {"width": mixed % 300, "height": mixed % 200, "unit": "mm"},
        "updated_at": _instant(mixed),
        "revision": revision,
    }


def canonical(value: Any) -> Any:
    """Convert a value so that an API record and its row of a typed table compare equal.

    Nulls are removed, dates and times (UTC if they have no zone) become the API's text, and names that begin
    with ``_rfr_`` (columns that the refresh adds) are left out.
    """
    if isinstance(value, Mapping):
        kept = ((name, canonical(inner)) for name, inner in value.items() if not name.startswith("_rfr_"))
        return {name: inner for name, inner in kept if inner is not None}
    if isinstance(value, (list, tuple)):
        return [canonical(inner) for inner in value]
    if isinstance(value, datetime):
        utc = value.astimezone(timezone.utc) if value.tzinfo else value
        return utc.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, date):
        return value.isoformat()
    return value


def checksum(records: Iterable[Mapping[str, Any]]) -> str:
    """Return a SHA-256 of the canonical records in any order; a repeated record changes it."""
    lines = sorted(orjson.dumps(canonical(record), option=orjson.OPT_SORT_KEYS) for record in records)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


_ORDERS_OF = re.compile(r"/customers/(\d+)/orders")
_ITEMS_OF = re.compile(r"/partitions/(\d+)/items")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the data set.

    :ivar records: orders, and as many invoices
    :ivar customers: parents of the orders; every order belongs to one
    :ivar partitions: of ``/partitions/{p}/items``, numbered from 0
    :ivar pages: of one partition, at ``page_records`` records each
    """

    records: int = 20_000
    customers: int = 200
    partitions: int = 32
    pages: int = 50
    page_records: int = 100

    @property
    def items_per_partition(self) -> int:
        return self.pages * self.page_records


@dataclass(slots=True)
class Collection:
    """Records in the order of their numbers (descending only once reversed); the number is the id."""

    path: str
    numbers: Sequence[int]
    make: Maker
    revision: int = 0

    def part(self, start: int, stop: int) -> list[Record]:
        return [self.make(number, self.revision) for number in self.numbers[start:stop]]

    def after(self, number: int) -> int:
        """Return the position of the first record with a greater number. Deletions don't shift such a cursor."""
        return bisect_right(self.numbers, number)


class Dataset:
    """All collections by path. A collection is made at its first request."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._collections: dict[str, Collection] = {}

    def reset(self) -> None:
        self._collections.clear()

    def collection(self, path: str) -> Collection | None:
        """Return the collection at this path; None if the API has none."""
        collection = self._collections.get(path)
        if collection is None:
            collection = self._new(path)
            if collection is not None:
                self._collections[path] = collection
        return collection

    def family(self, path: str) -> list[Collection]:
        """Return the collection, or those of all current parents.

        :raises KeyError: no such collection
        """
        if path == "/customers/orders":
            paths = [f"/customers/{number}/orders" for number in self.parents()]
        elif path == "/partitions/items":
            paths = [f"/partitions/{number}/items" for number in range(self.sizes.partitions)]
        else:
            paths = [path]
        return [self._existing(member) for member in paths]

    def parents(self) -> Sequence[int]:
        return self._existing("/customers").numbers

    def shrink(self, path: str, records: int) -> None:
        """Delete the first ``records`` records, which moves all later ones to earlier pages."""
        for collection in self.family(path):
            collection.numbers = collection.numbers[records:]

    def edit(self, path: str) -> None:
        """Change the content of every record, but no id."""
        for collection in self.family(path):
            collection.revision += 1

    def change_parents(self, *, add: int = 0, remove: Sequence[int] = (), reverse: bool = False) -> None:
        """Add customers at the end, remove some by id, or reverse the order."""
        customers = self._existing("/customers")
        numbers = [number for number in customers.numbers if number not in remove]
        last = max(customers.numbers, default=0)
        numbers += range(last + 1, last + 1 + add)
        customers.numbers = numbers[::-1] if reverse else numbers
        for number in remove:
            self._collections.pop(f"/customers/{number}/orders", None)

    def _existing(self, path: str) -> Collection:
        collection = self.collection(path)
        if collection is None:
            raise KeyError(path)
        return collection

    def _new(self, path: str) -> Collection | None:
        sizes = self.sizes
        if path == "/customers":
            return Collection(path, range(1, sizes.customers + 1), customer)
        if path == "/orders":
            return Collection(path, range(1, sizes.records + 1), order)
        if path == "/invoices":
            return Collection(path, range(1, sizes.records + 1), invoice)
        if match := _ORDERS_OF.fullmatch(path):
            parent = int(match[1])
            if parent in self.parents():
                return Collection(path, range(parent, sizes.records + 1, max(sizes.customers, 1)), order)
        if match := _ITEMS_OF.fullmatch(path):
            first = int(match[1]) * sizes.items_per_partition + 1
            if int(match[1]) < sizes.partitions:
                return Collection(path, range(first, first + sizes.items_per_partition), item)
        return None


def records_of(collections: Sequence[Collection]) -> Iterator[Record]:
    for collection in collections:
        yield from collection.part(0, len(collection.numbers))
