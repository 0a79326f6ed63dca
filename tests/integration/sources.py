"""The sample API as sources of a test's own: the demo's streams, changed where the test says so."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pyarrow as pa
import yaml

from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import checksum
from airflow_provider_rfr.streams import Page, PagedStream, StateMixin
from airflow_provider_rfr.streams.incremental import DELETED_FIELD
from tests.integration.conftest import SHOP, Outcome

DOCUMENT: dict[str, Any] = yaml.safe_load(SHOP.read_text())


def stream_like(name: str, **changes: Any) -> dict[str, Any]:
    """One of the demo's streams with some of its parts replaced; None removes one."""
    merged = {**copy.deepcopy(DOCUMENT["streams"][name]), **changes}
    return {key: value for key, value in merged.items() if value is not None}


def schema_like(name: str, **columns: Any) -> dict[str, Any]:
    """The schema of one of the demo's streams with other columns; None removes one."""
    schema = copy.deepcopy(DOCUMENT["streams"][name]["json_schema"])
    merged = {**schema["properties"], **columns}
    return {**schema, "properties": {key: value for key, value in merged.items() if value is not None}}


def source_of(api: SampleApi, streams: Mapping[str, Any], **config: Any) -> dict[str, Any]:
    """A source with these streams."""
    return {
        "definition": {**copy.deepcopy(DOCUMENT), "streams": dict(streams)},
        "config": {"base_url": api.base_url, "page_size": 25, **config},
        "secrets": {"api_key": api.api_key or "any-api-key"},
    }


def checksum_of(rows: pa.Table) -> str:
    """As the sample API makes it of its records: the system columns don't count."""
    return checksum(rows.to_pylist())


def figures_by_stream(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """The figures of each stream of a run."""
    figures = outcome.figures
    return {item["stream"]: item for item in figures.get("streams", [figures])}


def errors_by_stream(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """The error of each stream that failed in a run."""
    return {item["stream"]: item for item in outcome.figures.get("errors", [])}


class PythonShipments(StateMixin, PagedStream):
    """The sample API's shipments as a stream in Python, which keeps the state of its syncs itself."""

    name = "shipments"
    primary_key = "id"
    cursor_field = "updated_at"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.columns = {"updated_at": "timestamp"}
        self._config = dict(config)
        self._state: dict[str, Any] = {}

    @property
    def state(self) -> dict[str, Any]:
        return self._state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self._state = value

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        since = stream_slice["stream_state"].get("updated_at", "2025-01-01T00:00:00Z")
        query = {"updated_since": since, "limit": 25, **({} if token is None else {"cursor": token})}
        address = f"{self._config['base_url']}/shipments?{urlencode(query)}"
        request = Request(address, headers={"X-Api-Key": self._config["api_key"]})
        with urlopen(request) as answer:
            content = json.load(answer)
        records = [{**record, DELETED_FIELD: record["is_deleted"]} for record in content["data"]]
        times = [record["updated_at"] for record in records]
        self.state = {"updated_at": max([self.state.get("updated_at", since), *times])}
        return Page(records, next=content.get("next_cursor"))
