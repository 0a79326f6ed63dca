"""The same stream read by the CDK alone and by us: records in order, and the requests that were sent."""

from __future__ import annotations

import copy
import datetime
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from manifest_api import Api, through_json

from airflow_provider_rfr.exceptions import SourceError, TokenExpiredError
from airflow_provider_rfr.streams import Complete
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.loader import load_stream

NOW = datetime.datetime(2024, 3, 20, 10, 30, tzinfo=datetime.timezone.utc)
_JUST_ONCE = "/setup/"

Records = list[dict[str, Any]]


class _IsAnyDatetime(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, datetime.datetime)


class _Clock(datetime.datetime, metaclass=_IsAnyDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return NOW.astimezone(tz)


@contextmanager
def frozen() -> Iterator[None]:
    """Whoever reads now reads at the same moment, and does not wait before a request is repeated."""
    from airbyte_cdk.sources.declarative import concurrent_declarative_source
    from airbyte_cdk.sources.declarative.interpolation import macros
    from airbyte_cdk.sources.streams.concurrent.state_converters import datetime_stream_state_converter as converter

    # The CDK reads its schema of 5,000 lines each time that it builds a source.
    name = "get_declarative_component_schema"
    name = name if hasattr(concurrent_declarative_source, name) else f"_{name}"
    schema = cache(getattr(concurrent_declarative_source, name))
    standing = SimpleNamespace(**{**vars(datetime), "datetime": _Clock})
    with (
        patch.object(concurrent_declarative_source, name, schema),
        patch.object(macros, "datetime", standing),
        patch.object(converter, "ab_datetime_now", lambda: converter.AirbyteDateTime.from_datetime(NOW)),
        patch.object(time, "sleep", lambda seconds: None),
        patch.object(ReadContext, "sleep", lambda self, seconds: None),
    ):
        yield


@dataclass
class Read:
    """:ivar pages: slice, token and records of each; empty for the CDK, which has none"""

    records: Records = field(default_factory=list)
    error: str = ""
    requests: Counter[Any] = field(default_factory=Counter)
    once: Counter[Any] = field(default_factory=Counter)
    pages: list[tuple[Any, Any, Records]] = field(default_factory=list)

    def count(self, api: Api) -> Read:
        """Take the requests that were sent."""
        for request in api.requests:
            kind = self.once if request[1].startswith(_JUST_ONCE) else self.requests
            # A token's request may hold the time.
            kind[request[:2] if kind is self.once else request] += 1
        api.requests.clear()
        return self


def _source_of_the_cdk(source: Mapping[str, Any]) -> Any:
    """The CDK's own source, and its configuration."""
    from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource

    config = {**source["config"], **source["secrets"]}
    if "components" in source:
        text = source["components"]
        checksums = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
        config |= {"__injected_components_py": text, "__injected_components_py_checksums": checksums}
    cdk = ConcurrentDeclarativeSource(config=config, source_config=copy.deepcopy(source["manifest"]))
    # Its cache of parents' pages is one for the whole process: another test's answers could be in it.
    cdk._constructor._disable_cache = True
    return cdk, config


def read_by_the_cdk(source: Mapping[str, Any], name: str, api: Api) -> Read:
    """Its own read of one stream. The manifests allow one worker, so that the order is that of the partitions."""
    from airbyte_cdk.models import ConfiguredAirbyteCatalogSerializer
    from airbyte_cdk.utils.traced_exception import AirbyteTracedException

    read = Read()
    cdk, config = _source_of_the_cdk(source)
    wanted = {"name": name, "json_schema": {}, "supported_sync_modes": ["full_refresh"]}
    modes = {"sync_mode": "full_refresh", "destination_sync_mode": "overwrite"}
    catalog = ConfiguredAirbyteCatalogSerializer.load({"streams": [{"stream": wanted, **modes}]})
    try:
        for message in cdk.read(logging.getLogger("airbyte"), config, catalog, []):
            if message.type.name == "RECORD":
                read.records.append(dict(message.record.data))
    except AirbyteTracedException as error:
        read.error = str(error)
    return read.count(api)


def read_by_us(source: Mapping[str, Any], name: str, api: Api, *, by_one: bool) -> Read:
    """All pages in order; slices and tokens go through the text of JSON.

    :param by_one: whether one object reads them; otherwise another one reads each
    """
    read, stream = Read(), load_stream(source, name)
    slices = [through_json(stream_slice) for stream_slice in stream.stream_slices()]
    for stream_slice in slices:
        try:
            _read_slice(read, stream_slice, (lambda: stream) if by_one else (lambda: load_stream(source, name)))
        except SourceError as error:
            read.error = str(error)
            break
    read.records = [record for _, _, records in read.pages for record in records]
    return read.count(api)


def _read_slice(found: Read, stream_slice: Any, reader: Callable[[], Any]) -> None:
    before, token = len(found.pages), None
    while True:
        try:
            page = reader().read_page(stream_slice, token)
        except TokenExpiredError:
            # The engine begins a new chain, and forgets the old one.
            del found.pages[before:]
            token = None
            continue
        found.pages.append((stream_slice, token, list(page.records)))
        if isinstance(page.next, Complete):
            break
        token = through_json(page.next.token)
