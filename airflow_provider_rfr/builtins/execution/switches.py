"""Switches from an old table to the new one beside it, of which only the first half is done.

Then nobody has the name. What was put aside gets it back before the next deploy looks at anything; the new table stays
where it is, and takes the name if that deploy comes to the same step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from airflow_provider_rfr.builtins.state import ASIDE, MARKER
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.migrations import MigratedTable
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.journal import begun_steps
from airflow_provider_rfr.store.lease import Lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

SHADOW: Final = "__s"
"""Comes behind the name of a table that is built beside another one, before eight digits of the deploy."""


class _Marked(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def marker(self) -> UUID | None: ...


def half_switched(objects: Iterable[_Marked]) -> list[tuple[str, str]]:
    """Names of tables that were put aside for one that has not taken their name yet, with that name."""
    by_key = {each.key: each for each in objects}
    found = []
    for key, each in by_key.items():
        before, sign, deploy = key.rpartition(ASIDE)
        shadow = by_key.get(f"{before}{SHADOW}{deploy}")
        if sign and before not in by_key and shadow is not None and shadow.marker == each.marker is not None:
            found.append((each.name, each.name[: len(before)]))
    return found


def undo_switches(catalog: Catalog, store: ControlStore, lease: Lease) -> None:
    """Give the names back. Only what the journal says was begun is looked at.

    :raises LeaseLostError: another deploy took over
    """
    with store.read() as connection:
        begun = [each for each in begun_steps(connection, lease.project) if each.action == "shadow"]
    for step in begun:
        aside, shadow = (f"{step.name}{sign}{step.deploy_id[:8]}" for sign in (ASIDE, SHADOW))
        table = MigratedTable.load(catalog, aside)
        if table is None or table.properties.get(MARKER) != step.uuid:
            continue
        if MigratedTable.load(catalog, step.name) is None and MigratedTable.load(catalog, shadow) is not None:
            lease.ensure()
            try:
                table.rename(step.name)
            except CommitConflictError:
                # Only a deploy that is paused could have been faster, and it did the same or the second half.
                continue
