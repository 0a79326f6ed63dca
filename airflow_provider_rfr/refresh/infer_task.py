"""Which columns the records of a generation have, found by tasks over its ledger files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.inference import InferredSchema, infer_records, merge
from airflow_provider_rfr.refresh.publish_task import batches


@dataclass(frozen=True, slots=True)
class InferTask:
    """A task's share of the ledger files."""

    store: FileStore
    files: tuple[str, ...]
    live_chains: Mapping[int, int]


def run_infer_task(task: InferTask) -> InferredSchema:
    """The columns of the live records in these files."""
    found = InferredSchema()
    for pages, _ in batches(task.store, task.files, task.live_chains):
        found = merge(found, infer_records(b"\n".join(page.records for page in pages)))
    return found


def merge_schemas(schemas: Sequence[InferredSchema]) -> pa.Schema:
    """The columns of all of them together."""
    return reduce(merge, schemas, InferredSchema()).to_arrow()
