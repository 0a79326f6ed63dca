"""Steps on views: create, replace, rebind, rename, drop, each with its marks in the same statement.

Where the catalog can't hold views there is nothing to probe, and each deploy creates them again in its session."""

from __future__ import annotations

from airflow_provider_rfr.builtins.execution.work import Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.state import MARKER
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.inventory import COMMENT


def probe_view(work: Work, step: Step) -> Probe:
    """Whether the view carries the step's mark."""
    view = work.view(step.name)
    if view is None or step.user:
        return Probe.NOT_DONE
    if work.is_marked(view.properties, step):
        return Probe.DONE
    marker = view.properties.get(MARKER)
    if marker != str(step.uuid) and not (marker is None and step.how is Action.ADOPT):
        raise StepError(step.name, step.how.value, "a view that is not ours has the name", "plan again")
    return Probe.NOT_DONE


def define(work: Work, step: Step) -> None:
    """Create or replace the view with its text, properties and comments."""
    record = work.record(step)
    properties = {name: value for name, value in work.properties(step).items() if name != COMMENT}
    work.engine(step).create_view(
        step.name,
        str(step.details["sql"]),
        properties=properties,
        comment=record.comment,
        columns=record.columns,
        replace=step.how is not Action.CREATE or work.view(step.name) is not None,
    )


def describe(work: Work, step: Step) -> None:
    """Write properties and comment; a view with declared columns is defined again, for their comments."""
    record = work.record(step)
    if record.columns and step.how is not Action.ADOPT:
        define(work, step)
        return
    properties = {name: value for name, value in work.properties(step).items() if name != COMMENT}
    gone = dict.fromkeys(name for name in work.unset(step) if name != COMMENT)
    work.engine(step).set_view_properties(step.name, {**properties, **gone}, record.comment)


def rebind_users(work: Work, step: Step) -> None:
    """Define a user's view again with its own text, properties and comment; it does not become ours."""
    view = work.view(step.name)
    if view is not None and view.properties.get(MARKER) is not None:
        raise StepError(step.name, step.how.value, "it is not a user's view any more", "plan again")
    said = dict(view.properties) if view is not None else {}
    work.engine(step).create_view(
        step.name,
        str(step.details["sql"]),
        properties={name: value for name, value in said.items() if name != COMMENT},
        comment=said.get(COMMENT),
        columns=(),
        replace=True,
    )


def verify_view(work: Work, step: Step) -> Done:
    """The view has the step's mark.

    :raises StepError: it has not
    """
    if not step.user and work.views() is not None and probe_view(work, step) is not Probe.DONE:
        raise StepError(step.name, step.how.value, "the view is not as it was left", "plan again")
    return Done()


def probe_rename(work: Work, step: Step) -> Probe:
    """Whether the view has its new name and the step's mark."""
    view = work.view(str(step.details["to"]))
    if view is not None and view.properties.get(MARKER) == str(step.uuid):
        return Probe.DONE if work.is_marked(view.properties, step) else Probe.PARTIAL
    there = work.view(step.name)
    # Some views go by a name in between, so a later step may have renamed it already.
    later = (each for each in work.plan.steps if each.uuid == step.uuid and each.seq > step.seq)
    names = [str(each.details["to"]) for each in later if each.how is Action.RENAME]
    found = [view for view in map(work.view, names) if view is not None] if there is None else []
    if work.views() is not None and any(work.is_marked(each.properties, step) for each in found):
        return Probe.DONE
    return Probe.NOT_DONE


def rename(work: Work, step: Step) -> None:
    """Rename it, then mark it."""
    engine, name = work.engine(step), str(step.details["to"])
    if probe_rename(work, step) is Probe.NOT_DONE:
        engine.rename_view(step.name, name)
    view = work.view(name)
    engine.set_view_properties(name, work.marks(step), view.comment if view is not None else None)


def verify_rename(work: Work, step: Step) -> Done:
    """The view has its new name.

    :raises StepError: it has not
    """
    if work.views() is not None and probe_rename(work, step) is not Probe.DONE:
        raise StepError(step.name, step.how.value, f"{step.details['to']} is not there", "plan again")
    return Done({"to": step.details["to"]})


def probe_drop(work: Work, step: Step) -> Probe:
    """Whether the view is dropped, or exists again already."""
    view = work.view(step.name)
    if view is None:
        return Probe.NOT_DONE if work.views() is None else Probe.DONE
    if work.is_marked(view.properties, step):
        return Probe.DONE
    if view.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "a view that is not ours has the name", "plan again")
    return Probe.NOT_DONE


def drop(work: Work, step: Step) -> None:
    """Drop the view."""
    work.engine(step).drop_view(step.name)


def verify_drop(work: Work, step: Step) -> Done:
    """The view does not exist.

    :raises StepError: it does
    """
    if work.views() is not None and probe_drop(work, step) is not Probe.DONE:
        raise StepError(step.name, step.how.value, "it is still there", "plan again")
    return Done()
