"""An API whose records change, for tests of incremental syncs: a stream that reads it without a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_rfr.streams import NextPage, Page, PagedStream
from airflow_provider_rfr.streams.core import canonical_json
from airflow_provider_rfr.streams.incremental import DELETED_FIELD, CursorColumn, CursorWindow, IncrementalRead

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
RECORDS: list[dict[str, Any]] = []
"""All versions that the API gives, in the order in which it gives them."""
ASKED: list[tuple[str, Any]] = []
"""Lower bound and token of every page that was asked for."""


def moment(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class Bounds(IncrementalRead):
    """Reads everything from the state's value on, in one slice for each shop."""

    column = CursorColumn("updated_at")
    settle = timedelta()

    def __init__(
        self, shops: Iterable[str], marks_deleted: bool, integers: bool = False, timezone: str = "UTC"
    ) -> None:
        self._shops = list(shops)
        self.marks_deleted = marks_deleted
        self.column = CursorColumn("version", "integer") if integers else CursorColumn("updated_at", timezone=timezone)

    def slices(self, values: Mapping[str, str], opened_at: datetime) -> Iterable[Mapping[str, Any]]:
        for shop in self._shops:
            yield {"shop": shop, "since": values.get(canonical_json({"shop": shop}), "")}

    def window_slices(self, window: CursorWindow) -> Iterable[Mapping[str, Any]]:
        # As an API that knows no upper bound.
        return ({"shop": shop, "since": window.start} for shop in self._shops)

    def partition_of(self, stream_slice: Mapping[str, Any]) -> str:
        return canonical_json({"shop": stream_slice["shop"]})


class Orders(PagedStream):
    """Config: ``shops``, ``page_size``, ``key`` (None for none), ``deletes``, ``cursor``, ``only`` (its fields).

    Also ``columns`` and ``json_schema``, as streams have them, and ``timezone`` of a cursor without offsets.
    """

    name = "orders"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.public_config = {key: value for key, value in config.items() if key != "shops"}
        self._config = config
        self.primary_key = config.get("key", "id")
        self.columns, self.json_schema = config.get("columns"), config.get("json_schema")
        integers = config.get("cursor") == "version"
        zone = config.get("timezone", "UTC")
        self.incremental = Bounds(config.get("shops", ["a"]), config.get("deletes", True), integers, zone)
        if zone != "UTC":
            self.columns = {"updated_at": "timestamp_ntz"}

    def private_copy(self) -> Orders:
        return self

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return self.incremental.slices({}, datetime.now(timezone.utc))

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        ASKED.append((stream_slice["since"], token))
        start, size = token or 0, self._config.get("page_size", 3)
        name = self.incremental.column.name
        found = [
            record
            for record in RECORDS
            if record["shop"] == stream_slice["shop"] and self._asked(record, name, stream_slice["since"])
        ]
        records = []
        for record in found[start : start + size]:
            only = self._config.get("only", record)
            copy = {key: value for key, value in record.items() if key != "deleted" and key in only}
            if record.get("deleted"):
                copy[DELETED_FIELD] = True
            records.append(copy)
        return Page(records, NextPage(start + size) if start + size < len(found) else None)

    @staticmethod
    def _asked(record: Mapping[str, Any], name: str, since: str) -> bool:
        if not since or record.get(name) in (None, "soon"):
            return True
        if name == "version":
            return int(record[name]) >= int(since)
        parse = datetime.fromisoformat
        return parse(record[name].replace("Z", "+00:00")) >= parse(since.replace("Z", "+00:00"))
