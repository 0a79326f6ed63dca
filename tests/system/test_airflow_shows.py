"""What Airflow shows of a refresh beside its log: buttons, and lineage by OpenLineage's own client."""

from __future__ import annotations

import json
import urllib.request

from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS
from demo.airflow_stack import AirflowStack
from tests.soon import PATIENCE, wait_until
from tests.system.conftest import KEY, SIZES, TOTAL, Story

DAG = "shown"


def page(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.status, answer.read().decode()


def state_store(airflow: AirflowStack, run: str) -> list[str]:
    """The keys on the tab with the task's state."""
    states = airflow.call("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances/refresh/state-store")["task_state_store"]
    return [entry["key"] for entry in states]


def test_the_buttons_of_a_task_lead_to_spark_and_to_how_the_refresh_stands(story: Story) -> None:
    story.hold_after(SIZES.pages)
    story.start(DAG, "buttons", table="buttons")
    story.wait_for_state(DAG, "buttons", "running")
    wait_until(lambda: story.links(DAG, "buttons")["Spark UI"], PATIENCE)
    links = story.links(DAG, "buttons")
    status, text = page(str(links["Spark UI"]))
    assert status == 200
    assert "Spark Jobs" in text
    task = f"http://127.0.0.1:{story.airflow.port}/dags/{DAG}/runs/buttons/tasks/refresh"
    assert links["Refresh page"] == f"{task}/plugin/rfr_of_task"
    status, text = page(str(links["Refresh page"]))
    assert status == 200
    assert "<title>Airflow" in text
    if AIRFLOW_V_3_3_PLUS:
        wait_until(lambda: "rfr" in state_store(story.airflow, "buttons"), PATIENCE)

    story.api.set_faults()
    story.succeed(DAG, "buttons")
    events = story.airflow.call(
        "GET", f"/assets/events?source_dag_id={DAG}&source_run_id=buttons&source_task_id=refresh"
    )
    assert events["asset_events"][0]["extra"]["rows"] == story.result(DAG, "buttons")["rows"]
    assert "XCom not found" not in story.log(DAG, "buttons")
    assert story.links(DAG, "buttons")["Spark UI"] == links["Spark UI"], "the last driver's is kept"


def test_lineage_goes_from_the_api_to_the_table(story: Story) -> None:
    fault = {"kind": "error", "status": 400, "path": "/partitions/3/items", "after": 4, "times": 1}
    story.api.set_faults(fault)
    story.start(DAG, "lineage", table="lineage")
    assert story.succeed(DAG, "lineage")["try_number"] == 2
    wait_until(lambda: len(story.lineage(DAG, "raw.lineage")) == 2)
    failed, complete = story.lineage(DAG, "raw.lineage")
    assert (failed["eventType"], complete["eventType"]) == ("FAIL", "COMPLETE")
    for event in (failed, complete):
        [source], [table] = event["inputs"], event["outputs"]
        assert (source["namespace"], source["name"]) == (story.api.base_url, "items")
        assert table["namespace"] == story.lake.properties["uri"]
    assert "outputStatistics" not in failed["outputs"][0].get("outputFacets", {})
    table, result = complete["outputs"][0], story.result(DAG, "lineage")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == result["rows"] == 25 * TOTAL
    assert table["facets"]["version"]["datasetVersion"] == str(result["snapshot_id"])
    columns = [field["name"] for field in table["facets"]["schema"]["fields"]]
    assert columns == story.lake.rows("raw.lineage").column_names
    assert KEY not in json.dumps([failed, complete])
    # The retry has read the rest of the partition that failed.
    assert (result["generation"], result["attempts"]) == (1, 2)
    story.assert_whole("raw.lineage")
