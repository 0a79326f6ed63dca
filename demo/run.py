"""``make demo``: a refresh that survives a kill, observed from outside.

A paginated API is read by a Spark application that an Airflow operator submitted; the Spark driver is killed half
way; Airflow's retry continues; the finished table is published whole, and a webhook reports it. The printed figures
were counted by the API, read from the table and received by an endpoint. None is reported by the product itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from demo import webhook
from demo.airflow_stack import PATIENCE, AirflowStack
from demo.cleanup import exit_on_signals
from demo.webhook_receiver import Receiver

ROOT = Path(__file__).resolve().parents[1]
DAG, TASK, RUN = "resumable_full_refresh", "refresh", "demo"
SIZES = Sizes(partitions=24, pages=40, page_records=50)
LATENCY_MS = 100.0
API_KEY = "demo-key-9c41e7"
TABLE = "raw.items"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, and return 0 if no row is missing or doubled and the driver really was killed."""
    parser = argparse.ArgumentParser(prog="python -m demo.run", description="A refresh that is killed half way.")
    parser.add_argument("--keep", metavar="FOLDER", help="leave Airflow's home, the catalog and the table there")
    keep = parser.parse_args(arguments).keep
    exit_on_signals()
    began = time.monotonic()
    with working_folder(keep) as folder:
        lake = LakeSettings(
            "rfr", {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/warehouse"}
        )
        with SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=API_KEY) as api:
            say(f"sample API: {SIZES.partitions} partitions of {SIZES.pages} pages, {LATENCY_MS:.0f} ms a page")
            home, triggers = Path(folder) / "airflow", Path(folder) / "triggers.yaml"
            home.mkdir()
            with Receiver() as receiver:
                webhook.write_triggers(triggers, receiver)
                environment = {
                    "RFR_TRIGGERS_FILE": str(triggers),
                    "AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
                }
                gone = None if keep else Path(folder)
                stack = AirflowStack(home, ROOT / "dags", connections(api, lake), environment, folder=gone)
                with stack as airflow:
                    say(f"Airflow is up after {time.monotonic() - began:.0f} s")
                    figures = watch(airflow, api)
                    if published := figures["task_state"] == "success":
                        figures["delivery_state"] = webhook.deliver(airflow, triggers, TABLE)
                if published:
                    figures |= compare(api, lake) | webhook.received(receiver)
    figures["seconds"] = round(time.monotonic() - began, 1)
    report(figures)
    return 0 if good(figures) else 1


@contextmanager
def working_folder(keep: str | None) -> Iterator[str]:
    """Provide a folder for all files of the demo, and remove it afterwards unless it is to be kept."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="rfr-demo-") as folder:
            yield folder
    else:
        Path(keep).mkdir(parents=True)
        yield str(Path(keep).resolve())


def connections(api: SampleApi, lake: LakeSettings) -> dict[str, dict[str, Any]]:
    """Return the connections that the ready DAG uses."""
    return {
        "rfr_api_default": {"conn_type": "rfr_api", "host": api.base_url, "password": api.api_key},
        "rfr_lake_default": {
            "conn_type": "rfr_lake",
            "host": lake.properties["uri"],
            "extra": {"catalog_type": "sql", "catalog_name": lake.name, "warehouse": lake.properties["warehouse"]},
        },
        "spark_default": {"conn_type": "spark", "host": "local[2]"},
    }


def watch(airflow: AirflowStack, api: SampleApi) -> dict[str, Any]:
    """Trigger the DAG, kill the driver half way, wait for the end; counts are the API's."""
    airflow.wait_for_dag(DAG)
    conf = {
        "source_file": str(SHOP),
        "source_config": {"partitions": SIZES.partitions, "page_size": SIZES.page_records},
        "streams": ["items"],
        "target": "raw.{stream}",
        "concurrency": 8,
        "round_seconds": 2,
    }
    airflow.call("POST", f"/dags/{DAG}/dagRuns", {"dag_run_id": RUN, "logical_date": None, "conf": conf})
    total = SIZES.partitions * SIZES.pages
    api.wait_for_pages(total // 2, timeout=PATIENCE)
    killed = kill_driver(airflow)
    before = api.counts(path="/partitions/*")["pages"]
    say(f"killed the Spark driver (SIGKILL to {', '.join(map(str, killed))}) after {before} of {total} pages")
    task = wait_for_end(airflow)
    counts = api.counts(path="/partitions/*")
    return {
        "pages_total": total,
        "pages_fetched_before_kill": before,
        "pages_fetched_after_kill": counts["pages"] - before,
        "pages_refetched": counts["refetched"],
        "task_state": task["state"],
        "tries": task["try_number"],
        "processes_killed": len(killed),
    }


def kill_driver(airflow: AirflowStack) -> list[int]:
    """Send SIGKILL to the Spark driver, its JVM and its Python, and to no process of Airflow."""
    below = [process for pid in airflow.pids for process in psutil.Process(pid).children(recursive=True)]
    pids = [process.pid for process in below if is_driver(process)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def is_driver(process: psutil.Process) -> bool:
    """Tell whether a process is spark-submit's Java or the Python below it: both name the application."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return any(part.endswith("full_refresh.py") for part in command) and "airflow" not in command[0]


def wait_for_end(airflow: AirflowStack) -> dict[str, Any]:
    """Wait for the end of the run, and return its task."""
    end = time.monotonic() + PATIENCE
    shown = ""
    while time.monotonic() < end:
        state = airflow.call("GET", f"/dags/{DAG}/dagRuns/{RUN}")["state"]
        task = airflow.task(DAG, RUN, TASK)
        if (now := f"task: {task['state']}, try {task['try_number']}") != shown:
            say(now)
            shown = now
        if state in ("success", "failed"):
            if state == "failed":
                say_errors(airflow)
            return task
        time.sleep(0.5)
    say_errors(airflow)
    raise TimeoutError("the run did not end")


def say_errors(airflow: AirflowStack) -> None:
    """Print the reasons for which the task failed."""
    for error in airflow.task_errors()[-10:]:
        say(f"  {error[:1000]}")


def compare(api: SampleApi, lake: LakeSettings) -> dict[str, Any]:
    """Compare the API's records with the table's rows."""
    truth = api.truth("/partitions/items")["ids"]
    table = open_catalog(lake).load_table(TABLE)
    rows = Counter(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())
    return {
        "rows_source": len(truth),
        "rows_published": sum(rows.values()),
        "missing": len(set(truth) - set(rows)),
        "duplicates": sum(rows.values()) - len(rows),
        "foreign": len(set(rows) - set(truth)),
        "commits_on_table": len(table.metadata.snapshots),
    }


def good(figures: dict[str, Any]) -> bool:
    """Tell whether the demo showed a resumed refresh without loss."""
    if figures["task_state"] != "success":
        return False
    whole = figures["missing"] == figures["duplicates"] == figures["foreign"] == 0
    return bool(
        whole
        and figures["tries"] > 1
        and figures["processes_killed"] > 0
        and figures["webhook_ids"] == 1
        and figures["webhook"]["rows"] == figures["rows_published"]
    )


def report(figures: dict[str, Any]) -> None:
    """Print figures for people, and as the last line for scripts. A failed refresh has no figures of the table."""
    say("")
    for name, label in LABELS.items():
        if name in figures:
            say(f"  {label:<38}{figures[name]:>10,}")
    if "webhook" in figures:
        say(f"  webhook as received: {json.dumps(figures['webhook'])}")
    say("")
    say("nothing lost, nothing doubled" if good(figures) else "THIS IS NOT WHAT SHOULD HAVE HAPPENED")
    print(json.dumps(figures), flush=True)


LABELS = {
    "pages_total": "pages of the source",
    "pages_fetched_before_kill": "pages fetched before the kill",
    "pages_fetched_after_kill": "pages fetched after it",
    "pages_refetched": "pages fetched twice",
    "rows_source": "rows of the source",
    "rows_published": "rows published",
    "missing": "rows missing",
    "duplicates": "rows doubled",
    "tries": "tries of the Airflow task",
    "commits_on_table": "commits on the published table",
    "webhooks_received": "webhooks received for it",
}


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
