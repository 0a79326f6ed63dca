"""A real catalog with a table that is committed to, and the connection that leads to it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from airflow_provider_rfr.lake.catalog import LakeSettings, create_table, open_catalog
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY


def commit(catalog: Catalog, name: str, summary: Mapping[str, str]) -> str:
    """Append one row, with these words in the snapshot's summary; returns the snapshot's id, as an event tells it."""
    rows = pa.table({"n": pa.array([1], pa.int64())})
    table = create_table(catalog, name, rows.schema)
    table.append(rows, snapshot_properties=dict(summary))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return str(snapshot.snapshot_id)


def publish(catalog: Catalog, name: str, documents: int = 1) -> str:
    """A commit that owes webhooks, as a refresh makes it; returns its commit id."""
    event = CommitEvent(
        commit_id=uuid.uuid4().hex,
        target=name,
        lake="rfr",
        target_name=name,
        run_id=str(uuid.uuid4()),
        collection_names=("orders",) if documents else (),
        bindings=(Binding(name, "orders", documents, 10 * documents),),
    )
    commit(catalog, name, event.to_summary())
    with catalog.load_table(name).transaction() as transaction:
        transaction.set_properties({PUBLISHED_PROPERTY: "ledger:1:1"})
    return event.commit_id


class Lake:
    """The connection ``lake`` leads to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        connection = {"conn_type": "rfr_lake", "host": uri, "extra": {"warehouse": warehouse}}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
        self.catalog = open_catalog(LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse}))

    def publish(self, name: str, documents: int = 1) -> str:
        """See :func:`publish`."""
        return publish(self.catalog, name, documents)

    def commit(self, name: str, **summary: str) -> str:
        """See :func:`commit`; in the names of the summary an underscore stands for a dot."""
        return commit(self.catalog, name, {key.replace("_", "."): value for key, value in summary.items()})

    def lose_metadata(self, name: str) -> None:
        """Delete the table's metadata file, as a clean-up of the store may do by mistake."""
        Path(self.catalog.load_table(name).metadata_location.removeprefix("file://")).unlink()

    def drop(self, name: str) -> None:
        """As if it had never been."""
        self.catalog.drop_table(name)
