"""Deterministic records: a number gives the same record in every process.

A record is 220 to 250 bytes of JSON with strings (some not ASCII), integers, floats, booleans, nulls,
a nested object, a list and UTC date-times. ``revision`` counts the edits that a fault made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
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
