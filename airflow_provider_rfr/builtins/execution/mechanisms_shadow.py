"""A table that is built beside the live one, and takes its name when it is complete.

The switch is two renames, between which nobody has the name; a run that dies there is gone on with. What the live
table got in the meantime is computed before the switch, and in a SQL catalog the rename itself asks whether that is so.
"""

from __future__ import annotations

from airflow_provider_rfr.builtins.execution.mechanisms_rows import family, rewritten, summary
from airflow_provider_rfr.builtins.execution.mechanisms_tables import evidence_of, existing, make, probe, refuse_nulls
from airflow_provider_rfr.builtins.execution.work import Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plans import Step
from airflow_provider_rfr.builtins.sinks import map_cursor
from airflow_provider_rfr.builtins.state import MARKER, STEP
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.migrations import MigratedTable, nulls_in_files
from airflow_provider_rfr.lake.table_changes import TableChange

BUILT_FROM = "rfr.built-from"
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
    return None if table is None else table.properties.get(BUILT_FROM)


def _build(work: Work, step: Step, beside: str) -> MigratedTable:
    """Fill the shadow with the live table's rows; returns the live table that they were taken from."""
    properties = {name: value for name, value in work.properties(step).items() if name != STEP}
    built, live = work.table(beside), existing(work, step)
    if built is None:
        built = make(work, step, beside, properties)
    mark = {**work.marks(step), BUILT_FROM: str(live.snapshot_id)}
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
