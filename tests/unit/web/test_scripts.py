"""The scripts of the pages, in a browser without Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_provider_rfr.web
from tests.soon import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.test
STATIC = Path(airflow_provider_rfr.web.__file__).parent / "static"
PAGE = """<!doctype html><title>Page</title><script src="/rfr/static/rfr.js"></script>
<p id="lost" hidden></p><div id="tip" hidden></div><div id="live" data-live="yes">
<button id="do-pause-1" type="button">Pause</button><button id="do-pause-2" type="button">Pause</button>
<code>one</code><button type="button" data-copy="one">Copy</button>
<code>two</code><button type="button" data-copy="two">Copy</button>
<a href="/dags/alter" data-row="1">Alter</a><a href="/dags/alter" data-row="2">Alter</a></div>"""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page whose live part is loaded anew."""
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.route("**/rfr/", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    script = STATIC / "rfr.js"
    page.route("**/rfr.js", lambda route: route.fulfill(path=script, content_type="text/javascript"))
    page.goto("http://localhost/rfr/")
    yield page
    context.close()


@pytest.mark.parametrize("chosen", ["#do-pause-2", "[data-copy=two]", "[data-row='2']"])
def test_the_focus_stays_in_its_row_when_the_page_is_loaded_anew(page: Page, chosen: str) -> None:
    page.locator(chosen).focus()
    page.evaluate("document.activeElement.dataset.old = 'yes'")
    page.evaluate("refresh()")
    assert page.evaluate(f'document.activeElement.matches("{chosen}:not([data-old])")')
