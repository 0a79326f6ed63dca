"""The Spark application of a migration: one deploy by the document of a file, and one line of figures."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.builtins.spark.document import MigrationDocument
from airflow_provider_rfr.builtins.spark.errors import without
from airflow_provider_rfr.builtins.spark.registered import RegisteredView
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.views import holds_views
from airflow_provider_rfr.secret_names import secrets_in

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.execution.values import Applied
    from airflow_provider_rfr.builtins.state import Recorded

log = logging.getLogger("airflow_provider_rfr")

EXIT_OK, EXIT_FAILED = 0, 1


def main(document: MigrationDocument, *, began: float) -> int:
    """Deploy, and print one JSON object as the last line; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        told = {**_figures(_deploy(document)), "seconds": round(time.monotonic() - began, 3)}
    except Exception as error:
        log.debug("the deploy failed", exc_info=error)
        return failed(error, (*secrets_in(document.lake.properties), *secrets_in({"store": document.store})))
    print(json.dumps(told), flush=True)
    return EXIT_OK


def failed(error: BaseException, secrets: tuple[str, ...] = ()) -> int:
    """Print what went wrong as one JSON object; returns the exit code."""
    cause = error.__cause__
    message = str(error) or type(error).__name__
    said = {
        "type": type(error).__name__,
        "cause": type(cause).__name__ if cause is not None else None,
        "message": without(message, secrets),
        "remedy": error.remedy if isinstance(error, ConfigurationError) else "",
    }
    print(json.dumps({"error": said}), flush=True)
    return EXIT_FAILED


def _deploy(document: MigrationDocument) -> Applied:
    from airflow_provider_rfr.builtins.execution.deploy import apply
    from airflow_provider_rfr.builtins.execution.observe import observe
    from airflow_provider_rfr.builtins.planning.planner import plan as make_plan
    from airflow_provider_rfr.builtins.spark.engine import SparkSqlEngine
    from airflow_provider_rfr.lake.catalog import open_catalog
    from airflow_provider_rfr.store.engine import open_store

    spec, catalog, store = document.catalog_spec(), open_catalog(document.lake), open_store(document.store)
    recorded, live = observe(catalog, store, project=spec.project)
    plan = document.plan or make_plan(spec, recorded, live, policies=document.policies)
    views = registered_views(recorded) if not holds_views(catalog) else ()
    engine = SparkSqlEngine(document.lake, document.spark, registered=views)
    try:
        return apply(plan, catalog=catalog, store=store, spec=spec, sql=engine, actor=document.actor)
    finally:
        engine.close()
        store.close()


def registered_views(recorded: Recorded) -> tuple[RegisteredView, ...]:
    """The views that earlier deploys left, for catalogs that can't hold any."""
    views = (each for each in recorded.objects if each.kind is Kind.VIEW and each.sql is not None)
    return tuple(
        RegisteredView(each.physical, each.sql or "", tuple(column.name for column in each.columns)) for each in views
    )


def _figures(applied: Applied) -> dict[str, Any]:
    return {
        "deploy_id": applied.deploy_id,
        "plan_hash": applied.plan_hash,
        "state": applied.state,
        "steps": len(applied.steps),
        "done": dict(Counter(each.how for each in applied.steps)),
        "revision": applied.revision,
    }
