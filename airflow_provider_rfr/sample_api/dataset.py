"""The collections that the API serves, their pages, and the ways in which they change while they are read.

Records are deterministic: a number gives the same record in every process. One is 220 to 250 bytes of JSON with strings
(some not ASCII), integers, floats, booleans, nulls, a nested object, a list and UTC date-times. ``revision`` counts the
edits that a fault made. Replies are encoded once and sent many times.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from http import HTTPStatus
from typing import Any, TypeVar

import orjson

Record = dict[str, Any]
Maker = Callable[[int, int], Record]
_After = TypeVar("_After")

_CITIES = ("Zürich", "São Paulo", "København", "Kraków", "東京", "Austin", "Nairobi", "İzmir")
_STATES = ("new", "paid", "packed", "shipped", "returned")
_EPOCH = datetime(2026, 1, 1)
_FIRST_CHANGE = datetime(2025, 1, 1, tzinfo=timezone.utc)
_LAST_CHANGE = datetime.max.replace(tzinfo=timezone.utc)
_SHIPMENTS = "/shipments"
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
        "ship_to": {"city": _CITIES[mixed % 8], "zip": f"{mixed % 90_000 + 10_000}", "express": mixed % 2 == 0},
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


def shipment(number: int, revision: int) -> Record:
    mixed = _mixed(number)
    return {
        "id": number,
        "reference": f"SHP-{number:08d}",
        "status": _STATES[(mixed + revision) % 5],
        "weight": (mixed % 50_000) / 1_000,
        "parcels": mixed % 9 + 1,
        "city": _CITIES[mixed % 8],
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
        return utc.replace(tzinfo=None).isoformat() + "Z"
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

    :ivar records: number of orders, and also of invoices and of shipments
    :ivar customers: number of customers, the parents of the orders; every order belongs to one
    :ivar partitions: number of partitions ``/partitions/{p}/items``, which are numbered from 0
    :ivar pages: number of pages of one partition, at ``page_records`` records each
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


@dataclass(slots=True)
class ShipmentCollection(Collection):
    """Records with the time of their last change. A deleted record stays as a tombstone with such a time.

    :ivar numbers: numbers of the records that are not deleted
    :ivar changed: revision and time of the records that changed, by number
    :ivar deleted: numbers of the tombstones
    """

    changed: dict[int, tuple[int, datetime]] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    _order: list[tuple[datetime, int]] = field(default_factory=list)

    def part(self, start: int, stop: int) -> list[Record]:
        return [self.record(number) for number in self.numbers[start:stop]]

    def record(self, number: int) -> Record:
        revision = self.changed[number][0] if number in self.changed else 0
        updated_at = _text_of(self._updated_at(number))
        record = self.make(number, self.revision + revision)
        return {**record, "updated_at": updated_at, "is_deleted": number in self.deleted}

    def change(self, *, edit: Iterable[int], add: int, remove: Iterable[int], at: datetime) -> None:
        """Change records at a moment; an edit of a deleted record restores it.

        :raises KeyError: there is no such record
        """
        edit, remove, present = list(edit), set(remove), set(self.numbers)
        for number in (*edit, *remove):
            if number not in present | self.deleted:
                raise KeyError(f"{self.path}/{number}")
        last = max(present | self.deleted, default=0)
        new = range(last + 1, last + 1 + add)
        for number in (*edit, *remove, *new):
            revision = -1 if number in new else self.changed.get(number, (0, at))[0]
            self.changed[number] = (revision + 1, at)
        self.deleted = (self.deleted - set(edit)) | remove
        self.numbers = sorted((present | set(edit) | set(new)) - remove)
        self._order.clear()

    def changes(self, since: datetime, before: datetime) -> list[tuple[datetime, int]]:
        """Return time and number of the records that changed in a range, in the order of their changes."""
        if len(self._order) != len(self.numbers) + len(self.deleted):
            self._order = sorted((self._updated_at(number), number) for number in {*self.numbers, *self.deleted})
        return self._order[bisect_left(self._order, (since, 0)) : bisect_left(self._order, (before, 0))]

    def _updated_at(self, number: int) -> datetime:
        if number in self.changed:
            return self.changed[number][1]
        return _FIRST_CHANGE + timedelta(minutes=_mixed(number) % _MINUTES_A_YEAR)


def _text_of(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _moment_of(text: str) -> datetime:
    """Parse a time of ISO 8601, and convert it to UTC.

    :raises ValueError: the text is no time
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


class Dataset:
    """All collections by path. A collection is made at its first request."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._collections: dict[str, Collection] = {}

    def reset(self) -> None:
        self._collections.clear()

    def collection(self, path: str) -> Collection | None:
        """Return the collection at this path; None if the API has none."""
        sizes, collection = self.sizes, self._collections.get(path)
        if collection is not None:
            return collection
        if path == "/customers":
            collection = Collection(path, range(1, sizes.customers + 1), customer)
        elif path == "/orders":
            collection = Collection(path, range(1, sizes.records + 1), order)
        elif path == "/invoices":
            collection = Collection(path, range(1, sizes.records + 1), invoice)
        elif path == _SHIPMENTS:
            collection = ShipmentCollection(path, range(1, sizes.records + 1), shipment)
        elif (match := _ORDERS_OF.fullmatch(path)) and int(match[1]) in self.parents():
            numbers = range(int(match[1]), sizes.records + 1, max(sizes.customers, 1))
            collection = Collection(path, numbers, order)
        elif (match := _ITEMS_OF.fullmatch(path)) and int(match[1]) < sizes.partitions:
            first = int(match[1]) * sizes.items_per_partition + 1
            collection = Collection(path, range(first, first + sizes.items_per_partition), item)
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

    def change_shipments(self, *, edit: Sequence[int], add: int, remove: Sequence[int], at: str | None) -> None:
        """Change shipments at a moment, by default now.

        :raises ValueError: ``at`` is no time
        :raises KeyError: there is no such shipment
        """
        shipments = self._existing(_SHIPMENTS)
        assert isinstance(shipments, ShipmentCollection)
        moment = datetime.now(timezone.utc) if at is None else _moment_of(at)
        shipments.change(edit=edit, add=add, remove=remove, at=moment)

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


class Refusal(Exception):
    """A request without a page: the resource does not exist, or a parameter is invalid."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class EncodedReply:
    """One encoded reply.

    :ivar head: status line and headers, with the blank line
    :ivar page: name of the page; None if the reply is not a page
    """

    status: int
    head: bytes
    body: bytes
    page: str | None = None
    records: int = 0


def reply_of(
    value: Any,
    *,
    status: int = 200,
    page: str | None = None,
    records: int = 0,
    headers: Mapping[str, str] | None = None,
) -> EncodedReply:
    """Encode a value as JSON; bytes are sent as they are."""
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {text}" for name, text in (headers or {}).items()),
    ]
    return EncodedReply(status, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body, page, records)


def error_reply(status: int, message: str, headers: Mapping[str, str] | None = None) -> EncodedReply:
    return reply_of({"error": message}, status=status, headers=headers)


_NUMBERED = re.compile(r"/customers|/partitions/\d+/items")
_LARGEST_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Tweak:
    """The changes that faults make to the content of one page."""

    leave_out: int = 0
    repeat_cursor: bool = False
    repeat_page: bool = False


PLAIN = Tweak()


def page_of(dataset: Dataset, path: str, query: Mapping[str, str], origin: str, tweak: Tweak) -> EncodedReply:
    """Return one page of a resource.

    :param origin: scheme and host as the client wrote them, for links
    :raises Refusal: the resource does not exist, or a parameter can't be read
    """
    if path == "/partitions":
        partitions = [{"id": number} for number in range(dataset.sizes.partitions)]
        return reply_of({"data": partitions}, page=path, records=len(partitions))
    collection = dataset.collection(path)
    if collection is None:
        raise Refusal(404, f"nothing exists at {path}")
    total = len(collection.numbers)
    if _NUMBERED.fullmatch(path):
        number, size = _integer(query, "page", 1, 1), _size(query, "page_size")
        body = {"page": number, "page_size": size, "pages": -(-total // size), "total": total}
        return _reply(collection, (number - 1) * size, size, body, tweak)
    if _ORDERS_OF.fullmatch(path):
        return _by_cursor(collection, query, tweak)
    if isinstance(collection, ShipmentCollection):
        return _by_change(collection, query, tweak)
    if path == "/orders":
        start, size = _integer(query, "offset", 0, 0), _size(query, "limit")
        return _reply(collection, start, size, {"offset": start, "limit": size, "total": total}, tweak)
    number, size = _integer(query, "page", 1, 1), _size(query, "per_page")
    last = max(-(-total // size), 1)
    base = f"{origin}{path}?per_page={size}&page="
    following = number if tweak.repeat_cursor else number + 1
    links = [f'<{base}{following}>; rel="next"'] if following <= last else []
    links.append(f'<{base}{last}>; rel="last"')
    return _reply(collection, (number - 1) * size, size, None, tweak, headers={"Link": ", ".join(links)})


def _by_cursor(collection: Collection, query: Mapping[str, str], tweak: Tweak) -> EncodedReply:
    size = _size(query, "limit")
    after = _decoded(query["cursor"], collection, int) if query.get("cursor") else 0
    start = collection.after(after) if after else 0
    stop = min(start + size, len(collection.numbers))
    following: str | None = None
    if tweak.repeat_cursor:
        following = query.get("cursor") or _encoded(collection, after)
    elif stop < len(collection.numbers):
        following = _encoded(collection, collection.numbers[stop - 1])
    return _reply(collection, start, size, {"next_cursor": following}, tweak, place=f"after {after}")


def _by_change(collection: ShipmentCollection, query: Mapping[str, str], tweak: Tweak) -> EncodedReply:
    size = _size(query, "limit")
    since, before = _moment(query, "updated_since", _FIRST_CHANGE), _moment(query, "updated_before", _LAST_CHANGE)
    changes, cursor = collection.changes(since, before), query.get("cursor")
    after = _decoded(cursor, collection, _change_of) if cursor else None
    start = bisect_right(changes, after) if after else 0
    following: str | None = None
    if tweak.repeat_cursor:
        following = cursor or _encoded(collection, [_text_of(since), 0])
    elif start + size < len(changes):
        moment, number = changes[start + size - 1]
        following = _encoded(collection, [_text_of(moment), number])
    shown = Collection(collection.path, [number for _, number in changes], lambda number, _: collection.record(number))
    place = f"from {_text_of(since)} to {_text_of(before)} after {after[1] if after else 0}"
    return _reply(shown, start, size, {"next_cursor": following}, tweak, place=place)


def _change_of(value: Any) -> tuple[datetime, int]:
    moment, number = value
    return _moment_of(moment), int(number)


def _moment(query: Mapping[str, str], name: str, default: datetime) -> datetime:
    text = query.get(name)
    try:
        return default if text is None else _moment_of(text)
    except ValueError as error:
        raise Refusal(400, f"{name} must be a time of ISO 8601, got {text!r}") from error


def _reply(
    collection: Collection,
    start: int,
    size: int,
    envelope: dict[str, Any] | None,
    tweak: Tweak,
    *,
    place: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> EncodedReply:
    shown = max(start - size, 0) if tweak.repeat_page else start
    records = collection.part(shown, shown + size)
    if tweak.leave_out:
        records = records[: -tweak.leave_out]
    page = f"{collection.path} {place or f'at {start}'} size {size}"
    value = records if envelope is None else {"data": records, **envelope}
    return reply_of(value, page=page, records=len(records), headers=headers)


def _size(query: Mapping[str, str], name: str) -> int:
    return min(_integer(query, name, 100, 1), _LARGEST_PAGE)


def _integer(query: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < least:
        raise Refusal(400, f"{name} must be an integer from {least}, got {text!r}")
    return int(text)


def _encoded(collection: Collection, after: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([collection.path, after])).decode().rstrip("=")


def _decoded(cursor: str, collection: Collection, read: Callable[[Any], _After]) -> _After:
    try:
        path, after = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if path != collection.path:
            raise ValueError("a cursor of another collection")
        return read(after)
    except (ValueError, TypeError, binascii.Error) as error:
        raise Refusal(400, f"cursor {cursor!r} can't be read") from error
