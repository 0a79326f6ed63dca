"""The scripts of the pages, in a browser without Airflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import airflow_provider_rfr.web
from tests.soon import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.test
STATIC = Path(airflow_provider_rfr.web.__file__).parent / "static"
PAGE = """<!doctype html><title>Page</title><script src="/rfr/static/rfr.js"></script>
<script src="/rfr/static/actions.js" type="module"></script>
<p id="lost" hidden></p><div id="tip" hidden></div><div id="live" data-live="yes">
<button id="do-pause-1" type="button">Pause</button><button id="do-pause-2" type="button">Pause</button>
<code>one</code><button type="button" data-copy="one">Copy</button>
<code>two</code><button type="button" data-copy="two">Copy</button>
<a href="/dags/alter" data-row="1">Alter</a><a href="/dags/alter" data-row="2">Alter</a>
<button id="do-stop" type="button" data-request='{}'>Stop</button></div>{}"""
REQUEST = {"effect": "", "done": "", "method": "PATCH", "url": "/api/v2/task", "body": {}, "isNewRun": False}
DIALOG = (STATIC.parent / "templates" / "dialog.html").read_text().replace("{{ addresses.api() }}", "/api/v2")


def _fulfill(route: Route, **answer: Any) -> None:
    route.fulfill(**answer)


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page whose live part is loaded anew."""
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    body = PAGE.format(json.dumps(REQUEST), DIALOG)
    page.route("**/rfr/", partial(_fulfill, body=body, content_type="text/html"))
    for name in ("rfr.js", "actions.js"):
        script = (STATIC / name).read_text()
        page.route(f"**/{name}", partial(_fulfill, body=script, content_type="text/javascript"))
    page.goto("http://localhost/rfr/")
    yield page
    context.close()


@pytest.mark.parametrize("chosen", ["#do-pause-2", "[data-copy=two]", "[data-row='2']"])
def test_the_focus_stays_in_its_row_when_the_page_is_loaded_anew(page: Page, chosen: str) -> None:
    page.locator(chosen).focus()
    page.evaluate("document.activeElement.dataset.old = 'yes'")
    page.evaluate("refresh()")
    assert page.evaluate(f'document.activeElement.matches("{chosen}:not([data-old])")')


@pytest.mark.parametrize(
    ("status", "detail", "said"),
    [
        (401, "Token Expired", "You are logged out, so nothing was done. Log in"),
        (403, "Invalid JWT token", "You are logged out, so nothing was done. Log in"),
        (403, "Forbidden", "You do not have the right to this, so nothing was done."),
    ],
)
def test_a_refused_request_tells_who_is_logged_out_from_who_has_no_right(
    page: Page, status: int, detail: str, said: str
) -> None:
    page.route("**/api/v2/task", partial(_fulfill, status=status, json={"detail": detail}))
    page.locator("#do-stop").click()
    page.locator("#action-confirm").click()
    problem = page.locator("#action-problem")
    problem.wait_for()
    assert problem.inner_text() == said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"body": PAGE.format(json.dumps({**REQUEST, "url": "/api/v2/other"}), DIALOG)}, "Its state has changed"),
        ({"status": 503, "body": "<div id='live'>The lake does not answer</div>"}, "The page can't be loaded"),
    ],
)
def test_nothing_is_done_but_what_the_viewer_saw(page: Page, answer: dict[str, Any], said: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#do-stop").click()
    page.route("**/rfr/", partial(_fulfill, content_type="text/html", **answer))
    page.locator("#action-confirm").click()
    problem = page.locator("#action-problem")
    problem.wait_for()
    assert problem.inner_text().startswith(said)
    assert not [url for url in asked if "/api/v2/" in url]


def test_another_text_is_no_other_action(page: Page) -> None:
    page.route("**/api/v2/task", partial(_fulfill, json={}))
    page.locator("#do-stop").click()
    body = PAGE.format(json.dumps({**REQUEST, "effect": "1 run did not end yet."}), DIALOG)
    page.route("**/rfr/", partial(_fulfill, body=body, content_type="text/html"))
    with page.expect_request("**/api/v2/task"):
        page.locator("#action-confirm").click()
