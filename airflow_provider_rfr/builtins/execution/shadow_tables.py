"""A table that is built beside the live one, and takes its name when it is complete.

The switch is two renames, between which nobody has the name; a run that dies there is gone on with. What the live
table got in the meantime is computed before the switch, and in a SQL catalog the rename itself asks whether that is so.

Tables that get another name, or are put aside. Nothing is deleted here.

Switches from an old table to the new one beside it, of which only the first half is done.

Then nobody has the name. What was put aside gets it back before the next deploy looks at anything; the new table stays
where it is, and takes the name if that deploy comes to the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.execution.tables import (
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
from airflow_provider_rfr.builtins.planning.plan import Step, Verb
from airflow_provider_rfr.builtins.sinks import map_cursor
from airflow_provider_rfr.builtins.state import ASIDE, MARKER, SHADOW, STEP
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
    """How far the step is: the shadow carries its mark before it takes the name."""
    if work.table(step.name) is not None:
        return probe(work, step)
    if work.table(work.aside(step.name)) is None or work.table(_beside(step)) is None:
        raise StepError(step.name, step.how.value, "it is gone from the catalog", "plan again")
    return Probe.PARTIAL


def shadow(work: Work, step: Step) -> None:
    """Build, catch up, switch; a table that an earlier deploy built for the same change is used."""
    live = work.table(step.name)
    if live is not None:
        if _built_from(work.table(_beside(step))) != str(live.snapshot_id):
            live = _build(work, step, _beside(step))
        built = _built(work, step)
        if not work.is_marked(built.properties, step):
            built.alter(TableChange(properties=work.properties(step)))
        _map_cursors(work, step, live, built)
        work.lease.ensure()
        live.rename(work.aside(step.name))
    work.lease.ensure()
    _built(work, step).rename(step.name)


def _beside(step: Step) -> str:
    return str(step.details["shadow"])


def _built(work: Work, step: Step) -> MigratedTable:
    built = work.table(_beside(step))
    if built is None or built.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, f"{_beside(step)} is gone", "plan again")
    return built


def _map_cursors(work: Work, step: Step, live: MigratedTable, built: MigratedTable) -> None:
    """Before the switch, for nobody may come back after it; until the names change hands nobody asks for it."""
    identity, before, after = step.uuid, live.snapshot_id, built.snapshot_id
    old, new, aside = live.entry.uuid, built.entry.uuid, work.aside(step.name)
    assert identity is not None
    work.lease.write(
        lambda connection, now: map_cursor(connection, identity, old, before, new, after, old_name=aside, now_ms=now)
    )


def _built_from(table: MigratedTable | None) -> str | None:
    return None if table is None else table.properties.get(_BUILT_FROM)


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
    """The new table."""
    table = existing(work, step)
    if not work.is_marked(table.properties, step):
        raise StepError(step.name, step.how.value, "the new table did not take the name", "plan again")
    return Done(evidence_of(work, step, table))


def probe_rename(work: Work, step: Step) -> Probe:
    """It carries the step's mark, and has the new name or one that a later step gave it."""
    if any(
        table is not None and work.is_marked(table.properties, step) for table in map(work.table, _names(work, step))
    ):
        return Probe.DONE
    table = work.table(step.name)
    if table is None or table.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "what has the name is not the object", "plan again")
    return Probe.NOT_DONE


def _names(work: Work, step: Step) -> Iterator[str]:
    """Names that it may have once it is renamed: some go by a name in between."""
    later = (each for each in work.plan.steps if each.uuid == step.uuid and each.seq >= step.seq)
    return (str(each.details["to"]) for each in later if each.how is Verb.RENAME)


def rename(work: Work, step: Step) -> None:
    """Mark it, then rename it: a rename is no commit, and can carry nothing."""
    table = existing(work, step)
    if not work.is_marked(table.properties, step):
        table.alter(TableChange(properties=work.marks(step)))
        work.lease.ensure()
        table = existing(work, step)
    table.rename(str(step.details["to"]))


def verify_rename(work: Work, step: Step) -> Done:
    """It has its new name. What was put aside and got its name back is no garbage.

    :raises StepError: it is not there
    """
    if probe_rename(work, step) is not Probe.DONE:
        raise StepError(step.name, step.how.value, f"{step.details['to']} is not there", "plan again")

    def settle(connection: Connection, now: int) -> None:
        deploys.retract(connection, work.plan.project, step.name)

    return Done({"to": step.details["to"]}, settle)


def aside_names(work: Work, step: Step) -> tuple[str, ...]:
    """What a step leaves beside the object: to be collected when its time has come."""
    return (work.aside(step.name),)


def probe_aside(work: Work, step: Step) -> Probe:
    """It is under the name that says so, or gone, or has come back already."""
    aside = work.table(work.aside(step.name))
    if aside is not None and aside.properties.get(MARKER) == str(step.uuid):
        return Probe.DONE
    table = work.table(step.name)
    if table is None or work.is_marked(table.properties, step):
        return Probe.DONE
    if table.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "it does not carry our marker: somebody else made it", "plan again")
    return Probe.NOT_DONE


def put_aside(work: Work, step: Step) -> None:
    """Rename it; its properties stay what they were."""
    existing(work, step).rename(work.aside(step.name))


def verify_aside(work: Work, step: Step) -> Done:
    """It is out of the way.

    :raises StepError: it is not
    """
    if probe_aside(work, step) is not Probe.DONE:
        raise StepError(step.name, step.how.value, "it still has its name", "plan again")
    aside: MigratedTable | None = work.table(work.aside(step.name))
    return Done({"aside": aside.name, "table": aside.entry.uuid} if aside is not None else {})


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
        begun = [each for each in begun_steps(connection, lease.name) if each.action == Verb.SHADOW.value]
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
