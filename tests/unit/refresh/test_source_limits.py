"""A source may say how fast it can be read: the options of its refresh follow, in the driver too."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import RefreshStoppedError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.refresh.config import parse_config
from airflow_provider_rfr.refresh.engine import Refresh
from airflow_provider_rfr.streams import StateMixin, Stream
from airflow_provider_rfr.streams.paged import as_paged
from tests.unit.messages import raises
from tests.unit.refresh.paged_sources import Numbers


class Limited(Numbers):
    """Sends a request for each of its partitions, which are listed in the driver."""

    requests_per_second = 50.0
    max_concurrency = 2
    paces_itself = True

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        for item in super().stream_slices():
            self.context.limiter.acquire()
            yield item


class OneByOne(Stream, StateMixin):
    requests_per_second = 7.0
    max_concurrency = 1
    state: Any = None

    def read_records(self, *_: Any) -> Iterable[Mapping[str, Any]]:
        return ()


@pytest.fixture
def refresh_of(tmp_path: Path) -> Any:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog, stopping = open_catalog(LakeSettings("rfr", properties)), threading.Event()

    def make(partitions: int = 4, **options: Any) -> Refresh:
        document = {
            "source": {"class": f"{__name__}:Limited", "config": {"partitions": partitions}},
            "streams": ["numbers"],
            "target": "raw.numbers",
            "lake": {"properties": properties},
            "options": options,
        }
        no_cluster: Any = None
        return Refresh(
            parse_config(document), "numbers", catalog, no_cluster, report=lambda report: None, stopping=stopping
        )

    make.stopping = stopping  # type: ignore[attr-defined]
    return make


@pytest.mark.parametrize(
    ("options", "rate", "concurrency"),
    [
        ({}, 50.0, 2),
        ({"requests_per_second": 80}, 80.0, 2),
        ({"concurrency": 1}, 50.0, 1),
        ({"concurrency": 30}, 50.0, 2),
    ],
)
def test_the_rate_of_a_source_is_a_default_and_its_concurrency_a_bound(
    refresh_of: Any, options: dict[str, Any], rate: float, concurrency: int
) -> None:
    found = refresh_of(**options)._options
    assert (found.requests_per_second, found.concurrency) == (rate, concurrency)


def test_a_stream_that_is_read_through_an_adapter_has_its_limits_too() -> None:
    stream = as_paged(OneByOne())
    assert (stream.requests_per_second, stream.max_concurrency) == (7.0, 1)


def test_the_driver_keeps_the_rate_while_it_lists_partitions(refresh_of: Any) -> None:
    began = time.monotonic()
    assert len(refresh_of(partitions=26)._open()) == 26
    # A slow machine only adds to it.
    assert time.monotonic() - began >= 25 / 50


def test_a_driver_that_is_stopped_while_it_lists_partitions_says_so(refresh_of: Any) -> None:
    refresh = refresh_of(partitions=4)
    refresh_of.stopping.set()
    with raises(RefreshStoppedError):
        refresh.run()
