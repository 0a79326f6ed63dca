"""Rows about the declared objects, for tables that list them: made here, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.builtins.execution.work import Work
from airflow_provider_rfr.builtins.planning.plans import Step
from airflow_provider_rfr.builtins.spec import CatalogSpec
from airflow_provider_rfr.builtins.state import RecordedObject
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.file_target import FileTarget


def generated_files(work: Work, step: Step, target: FileTarget) -> list[StoredFile]:
    """One row for each object as the registry is going to hold it, in the table's columns as far as they are known."""
    return write_rows(object_rows(work), target)


def write_rows(rows: Iterable[dict[str, Any]], target: FileTarget) -> list[StoredFile]:
    """The rows in files of the target; columns that a row lacks are NULL."""
    schema = pa.schema([field.remove_metadata() for field in target.rows])
    table = pa.Table.from_pylist(list(rows), schema=schema)
    return [file for file, _ in target.write(table)]


def object_rows(work: Work) -> Iterator[dict[str, Any]]:
    """What the registry is going to hold, in the order of names."""
    held = {each.uuid: each for each in work.recorded.objects if each.uuid not in work.plan.forgotten}
    stepped = {each.uuid for each in work.plan.steps}
    for each in work.plan.records:
        held[each.uuid] = each
    for each in sorted(held.values(), key=lambda one: one.key):
        changed = each.uuid in stepped
        yield _row(each, work.plan.project, work.spec, work.deploy_id if changed else each.deploy_id)


def _row(obj: RecordedObject, project: str, spec: CatalogSpec, deploy_id: str) -> dict[str, Any]:
    declared = next((each for each in spec.objects if each.id == obj.uuid), None)
    same = ("name", "physical", "protect", "comment", "owner", "instance", "revision")
    return {
        **{name: getattr(obj, name) for name in same},
        "id": str(obj.uuid),
        "kind": obj.kind.value,
        "project": project,
        "stability": obj.stability.value,
        "contents": obj.contents.value,
        "exportable": declared.exportable if declared is not None else None,
        "columns": [
            {"name": each.name, "type": each.type, "required": each.required, "comment": each.comment}
            for each in obj.columns
        ],
        "keys": list(obj.keys),
        "partitioning": list(obj.partitioning),
        "reads": [each.name for each in obj.deps],
        "query": obj.raw_sql,
        "executed_query": obj.sql,
        "contract": obj.fingerprints.contract.digest,
        "constraints": obj.fingerprints.constraints.digest,
        "logic": obj.fingerprints.logic.digest,
        "meta": obj.fingerprints.meta.digest,
        "version": spec.version,
        "deploy_id": deploy_id,
        "deprecated_since": declared.removed.deprecated_since if declared is not None and declared.removed else None,
    }
