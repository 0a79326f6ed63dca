"""Migrate the platform's own tables, views and sinks: a ready DAG that runs by itself after a deploy.

The DAG is paused at first, because its first run changes the lake. Once unpaused, it runs as soon as the package or a
declaration is of another version than the lake, or by hand: **Trigger** opens a form. The tasks: make a plan, wait for
an approval if one is required, apply the plan (on Spark only if it takes SQL), check that nothing is left, run the
sinks, delete what earlier deploys retired.

Declarations of your own are in the folders that `RFR_BUILTIN_OBJECTS` names (paths separated by `:`), as workers and
the triggerer see them. It needs the connections `rfr_lake_default` and `spark_default`, and in production
`rfr_control_store` to PostgreSQL.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.operators.python import BranchPythonOperator
from airflow.sdk import DAG, Asset, AssetWatcher, Param

from airflow_provider_rfr.operators import BuiltinMigrationOperator, SinkOperator
from airflow_provider_rfr.triggers import DeployTrigger

OBJECTS = [path for path in os.environ.get("RFR_BUILTIN_OBJECTS", "").split(os.pathsep) if path]
ASSET = "rfr_builtin_objects"
WATCHER = AssetWatcher(name="deploy", trigger=DeployTrigger(asset=ASSET, objects=OBJECTS))
COMMON: dict[str, Any] = {"objects": OBJECTS, "retries": 3, "retry_delay": timedelta(seconds=30)}


def after_plan(**context: Any) -> str:
    """Return the id of the task that runs after the plan."""
    planned = context["ti"].xcom_pull(task_ids="plan")
    if not planned["changes"]:
        return "collect"
    return "approve" if context["params"]["approval"] else "apply"


with DAG(
    dag_id="builtin_migration",
    schedule=[Asset(ASSET, watchers=[WATCHER])],
    start_date=datetime(2026, 1, 1),
    catchup=False,
    is_paused_upon_creation=True,
    # To save time only: the lease in the control store keeps two deploys apart.
    max_active_runs=1,
    render_template_as_native_obj=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={
        "approval": Param(
            os.environ.get("RFR_BUILTIN_APPROVAL", "") == "1",
            type="boolean",
            title="Approval",
            description="Wait for an approval of the plan before it is applied",
        ),
        "break_views": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Users' views that may break",
            description="Names of views, each in full",
        ),
        "drift": Param(
            "fail",
            enum=["fail", "adopt", "repair"],
            title="Changes made by hand",
            description="Stop, take them over, or undo them",
        ),
        "accept_data_loss": Param(
            [],
            type="array",
            items={"type": "string"},
            title="May be lost",
            description="Names of objects, or of columns behind them, each in full",
        ),
        "sinks": Param(
            {},
            type="object",
            additionalProperties={"enum": ["hold", "resume_from_new", "resend"]},
            title="Sinks",
            description="By name, what becomes of a sink whose source is emptied",
        ),
    },
) as dag:
    policies = {
        "break_views": "{{ params.break_views }}",
        "drift": "{{ params.drift }}",
        "accept_data_loss": "{{ params.accept_data_loss }}",
        "sinks": "{{ params.sinks }}",
    }
    plan = BuiltinMigrationOperator(task_id="plan", action="plan", policies=policies, **COMMON)
    decide = BranchPythonOperator(task_id="decide", python_callable=after_plan)
    approve = ApprovalOperator(
        task_id="approve",
        subject="Migrate the platform's own objects?",
        # Begins with a word, so that native rendering of templates keeps it a text.
        body="The plan:\n\n```\n{{ ti.xcom_pull(task_ids='plan')['text'] }}\n```",
    )
    apply = BuiltinMigrationOperator(
        task_id="apply",
        action="apply",
        # With approval, the approved plan runs. Without approval, a retry makes a new plan for the remaining steps.
        plan="{{ ti.xcom_pull(task_ids='plan')['plan'] if params.approval else none }}",
        policies=policies,
        trigger_rule="none_failed_min_one_success",
        **COMMON,
    )
    check = BuiltinMigrationOperator(
        task_id="check", action="check", policies={"drift": "{{ params.drift }}"}, **COMMON
    )
    collect = BuiltinMigrationOperator(
        task_id="collect", action="gc", trigger_rule="none_failed_min_one_success", **COMMON
    )
    export = SinkOperator(task_id="export", **COMMON)
    plan >> decide >> [approve, apply, collect]
    approve >> apply >> check >> [export, collect]
