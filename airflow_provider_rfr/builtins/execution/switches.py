"""Switches from an old table to the new one beside it, of which only the first half is done.

Then nobody has the name. What was put aside gets it back before the next deploy looks at anything; the new table stays
where it is, and takes the name if that deploy comes to the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from airflow_provider_rfr.builtins.planning.plans import Verb
from airflow_provider_rfr.builtins.state import ASIDE, MARKER, SHADOW
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.inventory import list_tables
from airflow_provider_rfr.lake.migrations import MigratedTable
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.journal import JournalStep, begun_steps
from airflow_provider_rfr.store.lease import Lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class _Table(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


def half_switched(begun: Iterable[JournalStep], tables: Iterable[_Table]) -> list[tuple[str, str]]:
    """Names of tables that were put aside for one that has not taken their name yet, with that name.

    :param begun: steps of unfinished deploys
    """
    markers = {each.name.casefold(): each.properties.get(MARKER) for each in tables}
    found = []
    for step in begun:
        name, aside = step.name, f"{step.name}{ASIDE}{step.deploy_id[:8]}"
        if step.action != Verb.SHADOW.value or step.uuid is None or name.casefold() in markers:
            continue
        ours = [key for key, marker in markers.items() if marker == step.uuid]
        if aside.casefold() in ours and any(key.startswith(f"{name.casefold()}{SHADOW}") for key in ours):
            found.append((aside, name))
    return found


def undo_switches(catalog: Catalog, store: ControlStore, lease: Lease) -> None:
    """Give the names back. Only what the journal says was begun is looked at.

    :raises LeaseLostError: another deploy took over
    """
    with store.read() as connection:
        begun = [each for each in begun_steps(connection, lease.project) if each.action == Verb.SHADOW.value]
    if not begun:
        return
    for aside, name in half_switched(begun, list_tables(catalog)):
        table = MigratedTable.load(catalog, aside)
        if table is None:
            continue
        lease.ensure()
        try:
            table.rename(name)
        except CommitConflictError:
            # Only a deploy that is paused could have been faster, and it did the same or the second half.
            continue
