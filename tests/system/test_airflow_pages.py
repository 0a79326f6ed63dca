"""The pages in a real Chromium, from an Airflow that wants a password: what people see of a live refresh."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, FrameLocator, Locator, Page, expect

from airflow_provider_rfr.compat import AIRFLOW_V_3_2_PLUS
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from demo.webhook_receiver import Received, Receiver
from tests.integration.conftest import SHOP
from tests.soon import PATIENCE, wait_until
from tests.system.conftest import KEY, PASSWORD, SIZES, TOTAL, Story, api_server
from tests.system.test_airflow_webhooks import block, write
from tests.unit.triggers.lake import publish
from tests.unit.web.ledgers import CANARY, begun, copies, read_page

HOSTILE = "raw.<script>document.title='broken in'</script>"
DAG, SYNC, FORM = "on_demand", "incremental_sync", "resumable_full_refresh"
SomebodyAt = Callable[[str], AbstractContextManager[Page]]


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    [*scripts] = Path(sys.prefix).glob("axe-*.js")
    if not scripts:
        reason = "axe-core is not there (scripts/axe.sh)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return scripts[0].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def url(stack: Story) -> Iterator[str]:
    people = {"owner": "admin", "viewer": "viewer"}
    with api_server(stack.airflow, people, AIRFLOW__RFR__SHOW_ROWS="True") as server:
        yield server


@pytest.fixture
def somebody(chromium: Browser, url: str, tmp_path: Path) -> SomebodyAt:
    """A browser of their own for somebody who logs in; all that it asked for and was sent is looked through."""

    @contextmanager
    def logged_in(name: str) -> Iterator[Page]:
        record = tmp_path / f"{name}.har"
        context = chromium.new_context(record_har_path=record, record_har_content="embed")
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        answer = page.goto(f"{url}/rfr/")
        assert answer.status == 401
        page.goto(url)
        page.locator("input[name=username]").fill(name)
        page.locator("input[name=password]").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="Dags", exact=True).first).to_be_visible()
        yield page
        context.close()
        assert_harmless(record, url)

    return logged_in


def assert_harmless(record: Path, url: str) -> None:
    """No request left this Airflow, and no answer held a secret."""
    entries = json.loads(record.read_text())["log"]["entries"]
    urls = [exchange["request"]["url"] for exchange in entries]
    assert {urlsplit(asked).netloc for asked in urls if asked.startswith("http")} == {urlsplit(url).netloc}
    assert any("/rfr/" in asked for asked in urls)
    for entry in entries:
        content = entry["response"]["content"]
        text = content.get("text", "")
        body = base64.b64decode(text) if content.get("encoding") == "base64" else text.encode()
        for secret in (KEY, PASSWORD, CANARY):
            assert secret.encode() not in body, entry["request"]["url"]


def framed(page: Page, url: str, path: str = "plugin/rfr") -> FrameLocator:
    """The page in Airflow's own frame."""
    page.goto(f"{url}/{path}")
    return page.frame_locator("iframe")


@pytest.mark.gate
def test_a_refresh_is_watched_while_it_reads_is_killed_and_resumes(
    somebody: SomebodyAt, url: str, story: Story
) -> None:
    with somebody("owner") as owner:
        frame = framed(owner, url)
        row = frame.locator("tr", has_text="raw.looked_at").first

        def percent() -> int:
            return int(float(row.locator("progress").get_attribute("value") or 0))

        story.hold_after(TOTAL // 4)
        story.start(DAG, "looked_at", table="looked_at", concurrency=1)
        expect(row.locator(".state")).to_have_text("reading")
        seen = wait_until(percent, every=0.5)
        story.hold_after(TOTAL // 4)
        seen = wait_until(lambda: (found := percent()) > seen and found, every=0.5)
        assert seen < 100
        began = time.monotonic()
        story.kill(story.drivers())
        expect(row.locator(".state")).to_have_text("waiting")
        print(f"shown as waiting {time.monotonic() - began:.1f} s after the SIGKILL")
        expect(frame.locator("tr.said", has_text="the pages read so far are kept")).to_be_visible()
        story.hold_after(TOTAL // 4)
        expect(row.locator(".state")).to_have_text("reading")
        assert percent() >= seen
        story.api.set_faults()
        expect(row.locator(".state")).to_have_text("published")
        assert row.locator("[data-label=Attempts]").inner_text() == "2"

        row.get_by_role("link", name="raw.looked_at").click()
        expect(frame.locator("polyline")).to_have_count(1)
        expect(frame.locator("line.attempt")).to_have_count(1)
        logs = frame.locator("#attempts + table [data-label=Log] a")
        expect(logs).to_have_text(["refresh, try 2", "refresh, try 1"])
        log = logs.last.get_attribute("href")
        assert log == f"/dags/{DAG}/runs/looked_at/tasks/refresh?try_number=1"
        # The DAG publishes by the connection `lake`, and the page reads another one, which has no asset of this table.
        expect(frame.locator(".scroll tbody tr")).to_have_count(0)
        story.succeed(DAG, "looked_at")
        story.assert_whole("raw.looked_at")
        owner.goto(f"{url}{log}")
        expect(owner.get_by_text("looked_at").first).to_be_visible()
        assert owner.url.endswith("?try_number=1")
        tab = framed(owner, url, f"dags/{DAG}/runs/looked_at/tasks/refresh/plugin/rfr_of_task")
        expect(tab.get_by_role("heading", name="raw.looked_at")).to_be_visible()
        tab.get_by_role("link", name="Load with other settings").click()
        owner.wait_for_url(f"{url}/dags/{DAG}/runs/looked_at**")
        owner.get_by_role("button", name="Trigger").last.click()
        if AIRFLOW_V_3_2_PLUS:  # 3.1 has no such item
            owner.get_by_role("menuitem", name="Trigger again with this config").click()
            expect(owner.locator("[name=element_table]")).to_have_value("looked_at")
    with somebody("viewer") as viewer:
        frame = framed(viewer, url)
        frame.get_by_role("link", name="raw.looked_at", exact=True).click()
        expect(frame.get_by_role("heading", name="raw.looked_at")).to_be_visible()
        expect(frame.get_by_role("link", name="Load with other settings")).to_have_count(0)
        expect(frame.locator("button[data-request]")).to_have_count(0)
        expect(frame.locator("dt:has-text('Attempts') + dd")).to_contain_text("2, ")


def test_thousands_of_ledgers_hostile_names_and_a_dead_catalog_share_a_page(
    somebody: SomebodyAt, url: str, story: Story, tmp_path: Path
) -> None:
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    catalog = open_catalog(LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse}))
    begun(catalog, "raw.first")
    begun(catalog, HOSTILE, dag_id="<b>dag</b>", dag_run_id="<b>run</b>", task_id="<b>task</b>")
    copies(catalog, "raw.first", 1998)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        crowd = {"host": uri, "extra": json.dumps({"warehouse": warehouse}), "password": PASSWORD}
        rest = {"catalog_type": "rest", "warehouse": "w"}
        dead = {"host": f"http://127.0.0.1:{silent.getsockname()[1]}", "extra": json.dumps(rest), "password": PASSWORD}
        for name, fields in (("crowd", crowd), ("dead", dead)):
            story.airflow.call("POST", "/connections", {"connection_id": name, "conn_type": "rfr_lake", **fields})
        try:
            with somebody("owner") as owner:
                owner.goto(f"{url}/rfr/?q=crowd")
                expect(owner.get_by_text("1 to 100 of 2,000")).to_be_visible()
                began = time.monotonic()
                owner.goto(f"{url}/rfr/?q=crowd&sort=-table")
                expect(owner.locator("td.name")).to_have_count(100)
                print(f"2,000 ledgers are shown after {time.monotonic() - began:.2f} s")
                expect(owner.locator(".problem", has_text="dead")).to_contain_text("no answer")
                owner.get_by_role("searchbox", name="Find").fill("script")
                owner.get_by_role("link", name=HOSTILE).click()
                expect(owner.get_by_role("heading", name=HOSTILE)).to_be_visible()
                assert owner.title() == HOSTILE
                assert owner.locator("script").count() == 2
                owner.set_viewport_size({"width": 390, "height": 844})
                for address in (owner.url, f"{url}/rfr/?q=first"):
                    owner.goto(address)
                    assert owner.evaluate("document.documentElement.scrollWidth") <= 390, "it is wider than a phone"
                for path in ("deliveries", "migrations", "connections"):
                    answer = owner.goto(f"{url}/rfr/{path}")
                    assert answer.status == 200
        finally:
            for name in ("crowd", "dead"):
                story.airflow.call("DELETE", f"/connections/{name}")


@pytest.mark.gate
def test_every_page_is_for_keyboards_and_screen_readers_in_both_themes(
    somebody: SomebodyAt, url: str, story: Story, axe: str, tmp_path: Path
) -> None:
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    catalog = open_catalog(LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse}))
    for number in range(3):
        ledger = begun(catalog, "raw.seen", dag_id=DAG, dag_run_id=f"run_{number}", task_id="refresh")
        for page in range(4):
            read_page(ledger, page)
    begun(catalog, "raw.failed").end("SourceError: 503")
    lake = {"conn_type": "rfr_lake", "host": uri, "extra": json.dumps({"warehouse": warehouse})}
    story.airflow.call("POST", "/connections", {"connection_id": "seen", **lake})
    one = "refresh?lake=seen&ledger=raw.seen__rfr_ledger"
    try:
        with somebody("owner") as owner:
            for theme in ("light", "dark"):
                owner.emulate_media(color_scheme=theme)
                for path in ("", one, f"{one}&dag_id={DAG}", "deliveries", "migrations", "connections", "help", "none"):
                    owner.goto(f"{url}/rfr/{path}")
                    owner.evaluate(axe)
                    found = owner.evaluate("axe.run()")["violations"]
                    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == [], (theme, path)
            owner.goto(f"{url}/rfr/{one}")
            tip = owner.get_by_role("tooltip")
            expect(tip).to_be_hidden()
            owner.locator(".term", has_text="Ledger").focus()
            expect(tip).to_contain_text("The Iceberg table next to the target")
            owner.keyboard.press("Escape")
            expect(tip).to_be_hidden()
            chart = owner.get_by_role("group", name="Rows of 3 generations")
            chart.get_by_role("img").last.focus()
            expect(tip).to_contain_text("generation 3")
            owner.keyboard.press("ArrowLeft")
            expect(tip).to_contain_text("generation 2, abandoned: 4 records read")
            owner.goto(f"{url}/rfr/")
            owner.get_by_role("searchbox", name="Find").press_sequentially("raw.failed")
            expect(owner.locator("td.name")).to_have_count(1)
            owner.get_by_role("link", name="Table", exact=True).click()
            owner.wait_for_url("**/rfr/?q=raw.failed&sort=table")
            expect(owner.locator("[aria-sort=ascending]")).to_have_count(1)
            expect(owner.get_by_role("searchbox", name="Find")).to_have_value("raw.failed")
    finally:
        story.airflow.call("DELETE", "/connections/seen")


def test_the_form_of_the_ready_dag_shows_source_table_and_connections_at_first_sight(
    somebody: SomebodyAt, url: str
) -> None:
    with somebody("owner") as owner:
        owner.goto(f"{url}/dags/resumable_full_refresh")
        owner.get_by_role("button", name="Trigger").last.click()
        for name in ("source_file", "target", "api_conn_id", "lake_conn_id", "conn_id"):
            expect(owner.locator(f"[name=element_{name}]")).to_be_visible()
        option = owner.locator("[name=element_concurrency]")
        expect(option).not_to_be_visible()
        owner.get_by_role("button", name="Options", exact=True).click()
        expect(option).to_be_visible()


def test_a_sync_is_shown_with_its_changes_and_its_form_reads_everything_again(
    somebody: SomebodyAt, url: str, story: Story
) -> None:
    with story.unpaused(SYNC), somebody("owner") as owner:
        for run in ("seen", "idle"):
            story.trigger(SYNC, run)
            story.succeed(SYNC, run)
        frame = framed(owner, url)
        row = frame.locator("tr", has_text="raw.shipments").first
        expect(row.locator("[data-label=Sync]")).to_have_text("incremental, merge")
        expect(row.locator("[data-label='Last result']")).to_contain_text("no changes")
        row.get_by_role("link", name="raw.shipments").click()
        expect(frame.get_by_text("State: updated_at is known up to")).to_be_visible()
        expect(frame.locator("dt:has-text('Window') + dd")).to_contain_text("frozen when the sync was opened")
        expect(frame.locator("#changes [data-label=Inserted]")).to_have_text("0")

        full = act(frame, "Full refresh")
        expect(full.locator("pre")).to_contain_text('"full_refresh": true')
        full.get_by_role("button", name="Full refresh").dblclick()
        pressed = run_started_by(frame)
        story.succeed(SYNC, pressed)

        def full_refreshes() -> set[str]:
            return {run["dag_run_id"] for run in story.runs(SYNC) if run["conf"].get("rfr", {}).get("full_refresh")}

        assert full_refreshes() == {pressed}
        expect(frame.locator("dt:has-text('Sync') + dd").first).to_have_text("full refresh")

        owner.goto(f"{url}/dags/{SYNC}")
        owner.get_by_role("button", name="Trigger").last.click()
        switch = owner.locator("[name=element_full_refresh]")
        expect(owner.get_by_text("Read everything and replace the table")).to_be_visible()
        switch.locator("xpath=ancestor-or-self::label").click()
        owner.get_by_role("dialog").get_by_role("button", name="Trigger", exact=True).click()
        expect(owner.get_by_role("dialog")).to_have_count(0)
        asked = wait_until(lambda: [run["dag_run_id"] for run in story.runs(SYNC) if run["conf"].get("full_refresh")])
        story.succeed(SYNC, asked[0])
        expect(framed(owner, url).locator("tr", has_text="raw.shipments").locator("[data-label=Sync]")).to_have_text(
            "full refresh"
        )


def load(story: Story, run: str, target: str, **values: Any) -> None:
    """Start a run by the ready DAG's form."""
    source = {"source_file": str(SHOP), "source_config": {"partitions": SIZES.partitions, "page_size": 25}}
    story.trigger(FORM, run, **{**source, "streams": ["items"], "target": target, "round_seconds": 1, **values})


def page_of(page: Page, url: str, table: str) -> Page:
    """The page of a refresh without Airflow's frame."""
    page.goto(f"{url}/rfr/refresh?lake=rfr_lake_default&ledger={table}__rfr_ledger")
    return page


def act(page: Page | FrameLocator, label: str) -> Locator:
    """Press the button of an action, and return its dialog."""
    page.get_by_role("button", name=label, exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name=label)).to_be_visible()
    return dialog


def confirm(page: Page | FrameLocator, label: str) -> None:
    act(page, label).get_by_role("button", name=label, exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def runs_of_form(story: Story) -> set[str]:
    return {run["dag_run_id"] for run in story.runs(FORM)}


def run_started_by(page: Page | FrameLocator) -> str:
    return page.locator("#outcome a").inner_text()


@pytest.mark.gate
def test_a_load_is_stopped_continued_and_loaded_again_from_its_page_once_for_a_double_click(
    somebody: SomebodyAt, url: str, story: Story
) -> None:
    with somebody("owner") as owner:
        story.hold_after(TOTAL // 4)
        load(story, "acted", "acted.{stream}")
        story.wait_for_state(FORM, "acted", "running")
        tab = framed(owner, url, f"dags/{FORM}/runs/acted/tasks/refresh/plugin/rfr_of_task")
        stop = act(tab, "Stop")
        expect(stop).to_contain_text("The task refresh of the run acted is marked failed, and is not tried again.")
        stop.get_by_role("button", name="Cancel").click()
        expect(stop).not_to_be_visible()
        assert story.task(FORM, "acted")["state"] == "running"
        late = act(page_of(owner.context.new_page(), url, "acted.items"), "Stop")
        confirm(tab, "Stop")
        late.get_by_role("button", name="Stop").click()
        expect(late.get_by_role("alert")).to_contain_text("Its state has changed meanwhile, so nothing was done.")
        expect(tab.locator("#outcome")).to_contain_text("The load stops within seconds")
        assert story.task(FORM, "acted")["state"] == "failed"
        story.wait_for_no_driver()
        expect(tab.get_by_role("heading", name="acted.items stopped")).to_be_visible()
        story.api.set_faults()
        confirm(tab, "Continue")
        story.succeed(FORM, "acted")
        assert story.result(FORM, "acted")["generation"] == 1
        expect(tab.locator("dt:has-text('Attempts') + dd")).to_contain_text("2, ")

        before = runs_of_form(story)
        again = act(tab, "Load now")
        expect(again.locator("pre")).to_contain_text('"target": "acted.{stream}"')
        again.get_by_role("button", name="Load now").dblclick()
        expect(again).not_to_be_visible()
        started = run_started_by(tab)
        assert runs_of_form(story) - before == {started}
        story.succeed(FORM, started)
        assert story.result(FORM, started)["generation"] == 2
        tab.locator("#outcome a").click()
        owner.wait_for_url(f"{url}/dags/{FORM}/runs/manual__**")
    with somebody("viewer") as viewer:
        page = page_of(viewer, url, "acted.items")
        expect(page.get_by_role("heading", name="acted.items")).to_be_visible()
        expect(page.locator("button[data-request]")).to_have_count(0)


def test_each_refusal_of_an_action_is_one_sentence_and_starts_nothing(
    somebody: SomebodyAt, url: str, story: Story
) -> None:
    load(story, "refused", "refusing.{stream}")
    story.succeed(FORM, "refused")
    with somebody("viewer") as viewer:
        session_of_viewer = viewer.context.cookies()
    with somebody("owner") as owner:
        session = owner.context.cookies()
        page = page_of(owner, url, "refusing.items")
        dialog = act(page, "Load now")
        button, problem = dialog.get_by_role("button", name="Load now"), dialog.get_by_role("alert")
        expect(button).to_be_enabled()
        before = runs_of_form(story)
        owner.context.clear_cookies()
        button.click()
        expect(problem).to_have_text("You are logged out, so nothing was done. Log in")
        login = problem.get_by_role("link", name="Log in")
        expect(login).to_have_attribute("href", re.compile("/auth/login.next=%2Frfr%2Frefresh"))
        # Somebody else logs in with this browser.
        owner.context.add_cookies(session_of_viewer)
        button.click()
        expect(problem).to_have_text("You do not have the right to this, so nothing was done.")
        assert runs_of_form(story) == before
        owner.context.clear_cookies()
        owner.context.add_cookies(session)

        # A proxy cuts the connection after Airflow has made the run.
        owner.route("**/dagRuns", lambda route: (route.fetch(), route.abort()))
        button.click()
        expect(problem).to_contain_text("Airflow does not answer. It is not known whether this was done. Try again")
        [made] = runs_of_form(story) - before
        owner.unroute("**/dagRuns")
        button.click()
        expect(dialog).not_to_be_visible()
        assert run_started_by(page) == made
        assert runs_of_form(story) - before == {made}
        story.succeed(FORM, made)

        expect(page.get_by_role("button", name="Load now", exact=True)).to_be_visible()
        # The page is old, and so still has the button.
        owner.route("**/rfr/refresh*", lambda route: route.abort())
        story.airflow.call("DELETE", f"/dags/{FORM}/dagRuns/{made}")
        story.airflow.call("DELETE", f"/dags/{FORM}/dagRuns/refused")
        dialog = act(page, "Load now")
        expect(dialog.get_by_role("alert")).to_contain_text("It is not there any more, so nothing was done.")
        expect(dialog.get_by_role("button", name="Load now")).to_be_disabled()


def test_a_refused_publish_is_accepted_once_and_what_was_read_is_discarded_from_the_page(
    somebody: SomebodyAt, url: str, story: Story
) -> None:
    load(story, "whole", "guarded.{stream}")
    story.succeed(FORM, "whole")
    load(story, "shrunk", "guarded.{stream}", source_config={"partitions": 1, "page_size": 25})
    assert story.wait_for_end(FORM, "shrunk")["state"] == "failed"
    with somebody("owner") as owner:
        page = page_of(owner, url, "guarded.items")
        expect(page.get_by_role("heading", name="guarded.items refused")).to_be_visible()
        accept = act(page, "Accept once")
        expect(accept).to_contain_text("fewer, and max_shrink allows 50%")
        expect(accept.locator("pre")).to_contain_text('"max_shrink": null')
        asked = story.api.counts()["requests"]
        accept.get_by_role("button", name="Accept once").click()
        run = run_started_by(page)
        story.succeed(FORM, run)
        assert story.result(FORM, run)["generation"] == 2
        assert story.api.counts()["requests"] == asked

        expect(page.get_by_role("heading", name="published")).to_be_visible()
        dialog = act(page, "Load now")
        expect(dialog.locator("pre")).to_contain_text('"partitions": 1')
        expect(dialog.locator("pre")).not_to_contain_text("max_shrink")
        dialog.get_by_role("button", name="Cancel").click()

        story.api.set_faults({"kind": "error", "status": 401, "path": "/partitions/7/items", "after": 4, "times": 1})
        load(story, "broken", "guarded.{stream}")
        assert story.wait_for_end(FORM, "broken")["state"] == "failed"
        confirm(page, "Discard and start over")
        run = run_started_by(page)
        story.succeed(FORM, run)
        assert story.result(FORM, run)["generation"] == 4
        [conf] = [made["conf"] for made in story.runs(FORM) if made["dag_run_id"] == run]
        assert conf["rfr"] == {"table": "guarded.items", "force_restart": True}


def test_an_endpoint_is_paused_and_its_dead_letters_are_sent_again_from_the_page(
    somebody: SomebodyAt, url: str, story: Story, tmp_path: Path
) -> None:
    def answer(_request: Received) -> tuple[int, bytes]:
        return (200 if len(receiver.requests) > 1 else 503), b""

    publish(open_catalog(story.lake.settings), "raw.told")
    with Receiver(answer) as receiver, somebody("owner") as owner:
        file = write(tmp_path, block(receiver.url, maxAttempts=1))
        story.trigger("deliver", "given_up", triggers_file=file, target="raw.told")
        story.wait_for_run("deliver", "given_up")
        owner.goto(f"{url}/rfr/deliveries")
        pause = act(owner, "Pause")
        expect(pause).to_contain_text(f"{tmp_path.name}/hook of raw.told: Nothing is sent")
        pause.get_by_role("button", name="Pause").dblclick()
        expect(pause).not_to_be_visible()
        [paused] = story.runs("manage_webhooks")
        assert paused["dag_run_id"] == run_started_by(owner)
        for label in ("Pause", "Resume", "Replay"):
            if label != "Pause":
                confirm(owner, label)
            story.succeed("manage_webhooks", run_started_by(owner), "manage")
        expect(owner.get_by_role("button", name="Replay")).to_have_count(0)
        story.trigger("deliver", "again", triggers_file=file, target="raw.told")
        story.succeed("deliver", "again", "deliver")
        assert [request.delivery_id for request in receiver.requests][1:] == [receiver.requests[0].delivery_id]
    with somebody("viewer") as viewer:
        viewer.goto(f"{url}/rfr/deliveries")
        expect(viewer.get_by_text("raw.told").first).to_be_visible()
        expect(viewer.locator("button[data-request]")).to_have_count(0)
