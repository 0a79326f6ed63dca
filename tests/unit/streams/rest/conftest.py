from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from rest_api import QUICK, Api

from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.rest import RestStream
from airflow_provider_rfr.streams.rest.stream import build_stream


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    yield server
    server.close()


@pytest.fixture
def other() -> Iterator[Api]:
    """A second host, as far as credentials are concerned: another port."""
    server = Api()
    yield server
    server.close()


@pytest.fixture
def make(api: Api) -> Callable[..., RestStream]:
    """Makes the stream ``items`` of a definition; keywords are fields of the stream."""

    def build(
        *,
        source: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
        context: ReadContext | None = None,
        **fields: Any,
    ) -> RestStream:
        stream = {"request": {"path": "/items"}, "records": {"path": "data"}, "error_handler": QUICK, **fields}
        definition = {"base_url": api.url, "streams": {"items": stream}, **(source or {})}
        items = build_stream(definition, "items", config=config, secrets=secrets)
        if context is not None:
            items.bind(context)
        return items

    return build
