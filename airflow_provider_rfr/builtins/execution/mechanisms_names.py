"""Tables that get another name, or are put aside. Nothing is deleted here."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.execution.mechanisms_tables import existing
from airflow_provider_rfr.builtins.execution.work import Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plans import Step, Verb
from airflow_provider_rfr.builtins.state import MARKER
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.migrations import MigratedTable
from airflow_provider_rfr.lake.table_changes import TableChange
from airflow_provider_rfr.store import garbage


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
        garbage.retract(connection, work.plan.project, step.name)

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
