"""The ledger as an Iceberg table: schema, partitioning, properties."""

from __future__ import annotations

import re

from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from airflow_provider_rfr.lake.ledger_columns import ledger_arrow_schema

LEDGER_SCHEMA = pyarrow_to_schema(ledger_arrow_schema())
LEDGER_SPEC = PartitionSpec(
    PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="generation")
)
LEDGER_PROPERTIES = {
    # The fence: a commit from a stale table is refused instead of repeated on top of the newer one.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "24",
    # Full manifests are left alone, so a merge never rewrites the whole history.
    "commit.manifest.target-size-bytes": str(256 * 1024),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "4",
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.generation": "full",
    "write.metadata.metrics.column.partition_ordinal": "full",
    "rfr.kind": "ledger",
}


def ledger_name(target: str, part: str | None = None) -> str:
    """The ledger's table name for a target, or for a part of it: beside it, in the same namespace.

    :param part: as :func:`~airflow_provider_rfr.lake.row_filter.part_of` names it
    """
    return f"{target}__rfr_ledger" + (f"_{part}" if part else "")


def target_of_ledger(name: str) -> tuple[str, str | None] | None:
    """The target and the part that a ledger of this name is of; None where the name is no ledger's."""
    found = _NAME.match(name)
    return None if found is None else (found["target"], found["part"])


_NAME = re.compile(r"^(?P<target>.+)__rfr_ledger(?:_(?P<part>[0-9a-f]{12}))?$")
