"""The site of docs/: it builds strictly, and a browser reads it on a phone, and finds pages by their words."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[2]
PARTS = ("Get started", "How-to", "Reference", "How it works")
PAGES = (
    *("", "get_started/", "sources/", "reference/troubleshooting/", "api_airflow/", "architecture/"),
    "decisions/run_identity/",
)
PHONE = {"width": 390, "height": 844}


def build(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts" / "run.sh", root / "scripts" / "docs.sh"], capture_output=True, text=True)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    built = build(ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(ROOT / "build" / "site"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    """A page on a phone; it may fetch nothing from other hosts, and log no error."""
    context = chromium.new_context(viewport=PHONE)
    page = context.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []
    assert errors == []
    context.close()


def test_the_home_page_leads_to_the_four_parts(site: str, page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(site)
    tabs = page.get_by_role("navigation", name="Tabs")
    for part in PARTS:
        expect(tabs.get_by_role("link", name=part, exact=True)).to_be_visible()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_a_phone_in_light_and_dark(site: str, page: Page, path: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    assert page.goto(f"{site}/{path}").status == 200
    expect(page.locator("article h1")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")[:3]
    assert (red + green + blue < 384) == (scheme == "dark")


@pytest.mark.parametrize(
    ("words", "found"),
    [("catalog is locked by another process", "CatalogError"), ("page_number", "Page numbers")],
)
def test_the_search_finds_a_message_and_an_option(site: str, page: Page, words: str, found: str) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(site)
    page.get_by_role("button", name="Search").first.click()
    page.get_by_role("combobox").fill(words)
    expect(page.get_by_role("option").filter(has_text=found).first).to_be_visible()


def test_machines_get_every_page_as_text(site: str) -> None:
    listed = (ROOT / "build" / "site" / "llms.txt").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert f"/{name}/" in listed or name == "index", name


def test_the_diagrams_are_what_their_texts_give(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "run.sh", ROOT / "scripts" / "diagrams.sh", tmp_path], check=True)
    for text in (ROOT / "docs" / "diagrams").glob("*.d2"):
        drawn = ROOT / "docs" / "images" / f"{text.stem}.svg"
        assert (tmp_path / drawn.name).read_text() == drawn.read_text(), "draw it anew: make diagrams"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[gone](gone.md)", "page does not exist"), ("[gone](index.md#gone)", "anchor"), (None, "is missing there")],
    ids=["dead link", "missing anchor", "orphan page"],
)
def test_a_mistake_fails_the_build(tmp_path: Path, site: str, text: str | None, problem: str) -> None:
    for name in ("docs", "scripts", "airflow_provider_rfr", "pyspark_rfr"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("zensical.toml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    page = tmp_path / "docs" / ("orphan.md" if text is None else "ui.md")
    page.write_text(f"# A page\n\n{text or ''}\n")
    built = build(tmp_path)
    assert built.returncode != 0
    assert problem in built.stdout + built.stderr
