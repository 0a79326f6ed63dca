"""``make screenshots``: the pictures in docs, of a running Airflow with refreshes in several states.

Needs Chromium (Debian's package) and Playwright, which the set-up installs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, FrameLocator, Page, expect, sync_playwright

from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from demo import webhook
from demo.airflow_stack import PATIENCE, AirflowStack
from demo.cleanup import exit_on_signals
from demo.run import API_KEY, ROOT, connections, say
from demo.webhook_receiver import Receiver

DAG = "resumable_full_refresh"
PICTURES = ROOT / "docs" / "images"
SIZES = Sizes(records=6_000, customers=2_000, partitions=24, pages=40, page_records=50)
THEMES = ("light", "dark")
WINDOW = {"width": 1440, "height": 760}
REFRESH = {"width": 1440, "height": 1180}
FORM = {"width": 1100, "height": 1500}
PHONE = {"width": 390, "height": 760}


def main() -> int:
    """Write all pictures."""
    exit_on_signals()
    program = shutil.which("chromium")
    if program is None:
        say("Chromium is not on the path: apt-get install chromium")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rfr-screenshots-") as name:
        folder = Path(name)
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/warehouse"}
        home, triggers = folder / "airflow", folder / "triggers.yaml"
        home.mkdir()
        environment = {"RFR_TRIGGERS_FILE": str(triggers), "AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS": "127.0.0.1"}
        with SampleApi(SIZES, latency_ms=40, api_key=API_KEY) as api, Receiver() as receiver:
            webhook.write_triggers(triggers, receiver)
            lake = connections(api, LakeSettings("rfr", properties))
            with AirflowStack(home, ROOT / "dags", lake, environment, folder) as airflow:
                airflow.wait_for_dag(DAG)
                refresh_some(airflow, api)
                webhook.deliver(airflow, triggers, "shop.orders")
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
                    for theme in THEMES:
                        take(browser, f"http://127.0.0.1:{airflow.port}", theme)
                    browser.close()
    return 0


def refresh_some(airflow: AirflowStack, api: SampleApi) -> None:
    """Make published refreshes, a failed one, and one that reads for as long as the pictures take."""
    for stream in ("orders", "customers"):
        begin(airflow, stream, stream)
        airflow.wait_for_run(DAG, stream)
    api.set_faults({"kind": "error", "status": 403, "path": "/invoices", "after": 12})
    begin(airflow, "invoices", "invoices")
    airflow.wait_for_run(DAG, "invoices")
    api.set_faults()
    for number in (1, 2):
        begin(airflow, "items", f"items_{number}")
        airflow.wait_for_run(DAG, f"items_{number}")
    api.reset()
    begin(airflow, "items", "items_3", requests_per_second=12)
    api.wait_for_pages(SIZES.partitions * SIZES.pages // 3)


def begin(airflow: AirflowStack, stream: str, run: str, **options: Any) -> None:
    say(f"{run} begins")
    conf = {
        "source_file": str(SHOP),
        "source_config": {"partitions": SIZES.partitions, "page_size": 50},
        "streams": [stream],
        "target": "shop.{stream}",
        "round_seconds": 2,
        **options,
    }
    airflow.call("POST", f"/dags/{DAG}/dagRuns", {"dag_run_id": run, "logical_date": None, "conf": conf})


def take(browser: Browser, url: str, theme: str) -> None:
    """Take the pictures of one theme, which Airflow keeps for each browser."""
    context = browser.new_context(viewport=WINDOW, color_scheme=theme)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)
    context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    page = context.new_page()

    def picture(name: str, path: str, shown: Callable[[FrameLocator], Any]) -> None:
        page.goto(f"{url}/{path}")
        shown(page.frame_locator("iframe"))
        save(page, f"{name}-{theme}")

    def listed(frame: FrameLocator) -> None:
        expect(frame.get_by_role("link", name="shop.items")).to_be_visible()

    def one(frame: FrameLocator) -> None:
        frame.get_by_role("link", name="shop.items").click()
        expect(frame.locator("polyline")).to_be_visible()

    picture("refreshes", "plugin/rfr", listed)
    page.set_viewport_size(REFRESH)  # type: ignore[arg-type]
    picture("refresh", "plugin/rfr", one)
    page.set_viewport_size(FORM)  # type: ignore[arg-type]
    page.goto(f"{url}/dags/{DAG}")
    page.get_by_role("button", name="Trigger").last.click()
    expect(page.locator("[name=element_conn_id]")).to_be_visible()
    save(page, f"form-{theme}")
    page.set_viewport_size(WINDOW)  # type: ignore[arg-type]
    page.goto(f"{url}/rfr/deliveries")
    save(page, f"deliveries-{theme}")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{url}/rfr/")
    expect(page.get_by_role("link", name="shop.items")).to_be_visible()
    save(page, f"phone-{theme}")
    context.close()


def save(page: Page, name: str) -> None:
    page.mouse.move(0, 0)  # no explanation stays open under it
    page.wait_for_timeout(1000)  # for Airflow's own parts around the frame
    page.screenshot(path=PICTURES / f"{name}.png")
    say(f"{PICTURES.name}/{name}.png")


if __name__ == "__main__":
    sys.exit(main())
