"""Keeps out a deploy that was paused and wakes up after another one took over.

Its control writes are refused by the token. Its Iceberg commits name the table that it looked at, so it is enough that
the table is another one by then: whatever the journal says was begun is marked with the new token before anything else.
Should it look only after that, it finds a token that is newer than its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.builtins.execution.work import TOKEN, token_of
from airflow_provider_rfr.builtins.state import MARKER
from airflow_provider_rfr.exceptions import DeployError
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.migrations import MigratedTable
from airflow_provider_rfr.lake.table_changes import TableChange
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.journal import begun_steps
from airflow_provider_rfr.store.lease import Lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_TRIES: Final = 20


def fence(catalog: Catalog, store: ControlStore, lease: Lease) -> None:
    """Mark the tables of steps that somebody else began and did not finish."""
    with store.read() as connection:
        begun = begun_steps(connection, lease.project)
    for step in begun:
        if step.token < lease.token and step.uuid is not None:
            _mark(catalog, lease, step.name, step.uuid, step.token)


def _mark(catalog: Catalog, lease: Lease, name: str, identity: str, begun: int) -> None:
    for _ in range(_TRIES):
        table = MigratedTable.load(catalog, name)
        if table is None or table.properties.get(MARKER) != identity or token_of(table.properties) > begun:
            return
        lease.ensure()
        try:
            table.alter(TableChange(properties={TOKEN: str(lease.token)}))
            return
        except CommitConflictError:
            continue
    raise DeployError(f"{name}: others committed {_TRIES} times while it was marked; deploy when fewer write")
