"""Servers that answer as well-known public APIs do: what they leave out, call differently, or say with status 200.

Each case is read twice: page by page, and by a whole refresh into a table, with threads in the place of Spark. The
cases are in the modules ``public_apis_*``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import public_apis_numbers  # noqa: F401
import public_apis_tokens  # noqa: F401
import pytest
from public_api_cases import CASES, Case
from rest_api import Api

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.refresh.config import parse_config
from airflow_provider_rfr.streams.core import Page
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import iter_pages
from tests.unit.refresh.in_driver import refresh_of

MOST_PAGES = 150


all_cases = pytest.mark.parametrize("case_", CASES.values(), ids=CASES.keys())


@pytest.fixture
def url(api: Api, case_: Case) -> str:
    api.answer = lambda asked: case_.answer(asked, api.url)
    return api.url


@all_cases
def test_read_page_by_page(case_: Case, url: str) -> None:
    if case_.error:
        with pytest.raises(RfrError, match=case_.error):
            _read(case_.definition(url))
        return
    pages = _read(case_.definition(url))
    assert [record["id"] for page in pages for record in page.records] == case_.ids
    assert sum(page.skipped is not None for page in pages) == case_.skipped


def _read(definition: Mapping[str, Any]) -> list[Page]:
    """Return the pages of all partitions of ``items``."""
    pages: list[Page] = []
    stream = load_stream({"definition": definition}, "items")
    for stream_slice in stream.stream_slices():
        for page in iter_pages(stream, stream_slice):
            pages.append(page)
            assert len(pages) <= MOST_PAGES, "the pages do not end"
    return pages


@pytest.mark.test
@all_cases
def test_a_refresh(case_: Case, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if case_.error:
        with pytest.raises(RfrError, match=case_.error):
            _refresh(case_.definition(url), tmp_path)
        return
    figures, table = _refresh(case_.definition(url), tmp_path)
    assert sorted(map(str, table)) == sorted(map(str, case_.ids))
    assert figures.pages_skipped == case_.skipped
    # Not its text: in a process in which Airflow set logging up, that is JSON.
    assert re.search(case_.warning, "\n".join(caplog.messages))


def _refresh(definition: Mapping[str, Any], folder: Path) -> tuple[RefreshFigures, list[Any]]:
    """Refresh a table from ``items``; return the figures and the ids in the table."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/w"}
    catalog = open_catalog(LakeSettings("rfr", properties))
    config = parse_config(
        {
            "source": {"definition": definition},
            "streams": ["items"],
            "target": "raw.items",
            "lake": {"name": "rfr", "properties": properties},
            "options": {"concurrency": 2},
        }
    )
    figures = refresh_of(config, catalog).run()
    return figures, catalog.load_table("raw.items").scan().to_arrow()["id"].to_pylist()
