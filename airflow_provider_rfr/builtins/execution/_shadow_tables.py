"""Steps that rename tables: rename, retire (rename out of the way, to be collected later), and switch to a shadow.

A shadow is built next to the live table and takes its name when it is complete. The switch is two renames, between
which nothing has the name. After a crash there the next deploy first gives the old table its name back; the shadow
stays, and takes the name if that deploy comes to the same step. Nothing is deleted here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.execution._tables import (
    evidence_of,
    existing,
    family,
    make,
    probe,
    refuse_nulls,
    rewritten,
    summary,
)
from airflow_provider_rfr.builtins.execution.work import Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.sinks import map_cursor
from airflow_provider_rfr.builtins.state import MARKER, RETIRED, SHADOW, STEP
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.inventory import list_tables
from airflow_provider_rfr.lake.migrated_table import MigratedTable, nulls_in_files
from airflow_provider_rfr.lake.schema_changes import TableChange
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import JournalStep, begun_steps
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


_BUILT_FROM = "rfr.built-from"
"""Property of a shadow: snapshot of the live table whose rows it has."""


def probe_shadow(work: Work, step: Step) -> Probe:
    """How far the step is. The shadow carries its mark before it takes the name."""
    if work.table(step.name) is not None:
        return probe(work, step)
    if work.table(work.retired_name(step.name)) is None or work.table(_beside(step)) is None:
        raise StepError(step.name, step.how.value, "it is gone from the catalog", "plan again")
    return Probe.PARTIAL


def shadow(work: Work, step: Step) -> None:
    """Build, catch up, switch. A shadow that an earlier deploy built for the same change is used."""
    live = work.table(step.name)
    if live is not None:
        begun = work.table(_beside(step))
        if begun is None or begun.properties.get(_BUILT_FROM) != str(live.snapshot_id):
            live = _build(work, step, _beside(step))
        built = _built(work, step)
        if not work.is_marked(built.properties, step):
            built.alter(TableChange(properties=work.properties(step)))
        # The cursors are mapped before the switch: after it, a crash would leave sinks on a table of another name, and
        # nothing would come back to map them.
        identity, before, after = step.uuid, live.snapshot_id, built.snapshot_id
        old, new, retired = live.entry.uuid, built.entry.uuid, work.retired_name(step.name)
        assert identity is not None
        work.lease.write(
            lambda connection, now: map_cursor(
                connection, identity, old, before, new, after, old_name=retired, now_ms=now
            )
        )
        work.lease.ensure()
        live.rename(work.retired_name(step.name))
    work.lease.ensure()
    _built(work, step).rename(step.name)


def _beside(step: Step) -> str:
    return str(step.details["shadow"])


def _built(work: Work, step: Step) -> MigratedTable:
    built = work.table(_beside(step))
    if built is None or built.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, f"{_beside(step)} no longer exists", "plan again")
    return built


def _build(work: Work, step: Step, beside: str) -> MigratedTable:
    """Fill the shadow with the live table's rows; returns the live table that they were taken from."""
    properties = {name: value for name, value in work.properties(step).items() if name != STEP}
    built, live = work.table(beside), existing(work, step)
    if built is None:
        built = make(work, step, beside, properties)
    mark = {**work.marks(step), _BUILT_FROM: str(live.snapshot_id)}
    change = TableChange(properties=mark)
    target = built.coming(change, family(step, beside))
    files = rewritten(work, step, live, target).files if live.snapshot_id is not None else ()
    required = [each.name for each in work.record(step).columns if each.required]
    refuse_nulls(step, nulls_in_files(files, target, required))
    work.lease.ensure()
    built.replace_rows(change, files, target, summary(work, step))
    again = existing(work, step)
    if again.snapshot_id != live.snapshot_id:
        raise CommitConflictError(f"{step.name} got rows while its new table was filled")
    return again


def verify_shadow(work: Work, step: Step) -> Done:
    """The new table has the name.

    :raises StepError: it has not
    """
    table = existing(work, step)
    if not work.is_marked(table.properties, step):
        raise StepError(step.name, step.how.value, "the new table did not take the name", "plan again")
    return Done(evidence_of(work, step, table))


def probe_rename(work: Work, step: Step) -> Probe:
    """It carries the step's mark, and has the new name or one that a later step gave it."""
    # Some tables go by a name in between, so a later step may have renamed it already.
    later = (each for each in work.plan.steps if each.uuid == step.uuid and each.seq >= step.seq)
    names = [str(each.details["to"]) for each in later if each.how is Action.RENAME]
    if any(table is not None and work.is_marked(table.properties, step) for table in map(work.table, names)):
        return Probe.DONE
    table = work.table(step.name)
    if table is None or table.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "what has the name is not the object", "plan again")
    return Probe.NOT_DONE


def rename(work: Work, step: Step) -> None:
    """Mark the table, then rename it: a rename is not a commit, so it can't carry the mark."""
    table = existing(work, step)
    if not work.is_marked(table.properties, step):
        table.alter(TableChange(properties=work.marks(step)))
        work.lease.ensure()
        table = existing(work, step)
    table.rename(str(step.details["to"]))


def verify_rename(work: Work, step: Step) -> Done:
    """The table has its new name; if it was retired before, it leaves the garbage queue.

    :raises StepError: it has not
    """
    if probe_rename(work, step) is not Probe.DONE:
        raise StepError(step.name, step.how.value, f"{step.details['to']} is not there", "plan again")

    def settle(connection: Connection, now: int) -> None:
        deploys.retract(connection, work.plan.project, step.name)

    return Done({"to": step.details["to"]}, settle)


def probe_retire(work: Work, step: Step) -> Probe:
    """Whether the table has its retired name, is deleted, or exists again already."""
    retired = work.table(work.retired_name(step.name))
    if retired is not None and retired.properties.get(MARKER) == str(step.uuid):
        return Probe.DONE
    table = work.table(step.name)
    if table is None or work.is_marked(table.properties, step):
        return Probe.DONE
    if table.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "it does not carry our marker: no deploy made it", "plan again")
    return Probe.NOT_DONE


def retire(work: Work, step: Step) -> None:
    """Rename the table out of the way; its properties stay."""
    existing(work, step).rename(work.retired_name(step.name))


def verify_retire(work: Work, step: Step) -> Done:
    """The table has its retired name.

    :raises StepError: it still has the object's name
    """
    if probe_retire(work, step) is not Probe.DONE:
        raise StepError(step.name, step.how.value, "it still has its name", "plan again")
    retired: MigratedTable | None = work.table(work.retired_name(step.name))
    return Done({"aside": retired.name, "table": retired.entry.uuid} if retired is not None else {})


class _Table(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


def half_switched(begun: Iterable[JournalStep], tables: Iterable[_Table]) -> list[tuple[str, str]]:
    """Retired tables whose shadow has not taken their name yet: (retired name, name).

    :param begun: steps of unfinished deploys
    """
    markers = {each.name.casefold(): each.properties.get(MARKER) for each in tables}
    found = []
    for step in begun:
        name, retired = step.name, f"{step.name}{RETIRED}{step.deploy_id[:8]}"
        if step.action != Action.SHADOW.value or step.uuid is None or name.casefold() in markers:
            continue
        ours = [key for key, marker in markers.items() if marker == step.uuid]
        if retired.casefold() in ours and any(key.startswith(f"{name.casefold()}{SHADOW}") for key in ours):
            found.append((retired, name))
    return found


def undo_switches(catalog: Catalog, store: ControlStore, lease: Lease) -> None:
    """Give retired tables of half-done switches their names back. Only steps that the journal knows are considered.

    :raises LeaseLostError: another deploy took over
    """
    with store.read() as connection:
        begun = [each for each in begun_steps(connection, lease.name) if each.action == Action.SHADOW.value]
    if not begun:
        return
    for retired, name in half_switched(begun, list_tables(catalog)):
        table = MigratedTable.load(catalog, retired)
        if table is None:
            continue
        lease.ensure()
        try:
            table.rename(name)
        except CommitConflictError:
            # Only a deploy that is paused could have been faster, and it did the same or the second half.
            continue
