"""Steps on views: create, replace, rebind, rename, drop, each with its marks in the same statement.

Where the catalog can't hold views there is nothing to probe, and each deploy creates them again in its session."""

from __future__ import annotations

from airflow_provider_rfr.builtins.execution.work import Work
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.state import BRIDGED, BROKEN, MARKER, broken_mark
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.lake.inventory import COMMENT
from airflow_provider_rfr.lake.types import quoted


def probe_view(work: Work, step: Step) -> bool | None:
    """Whether the view carries the step's mark; None for a user's view, which carries none.

    :raises StepError: a view that is not ours has the name
    """
    view = None if step.user else work.view(step.name)
    if view is None:
        return None if step.user or work.views() is None else False
    if work.is_marked(view.properties, step):
        return True
    marker = view.properties.get(MARKER)
    if marker != str(step.uuid) and not (marker is None and step.how is Action.ADOPT):
        raise StepError(step.name, step.how.value, "a view that is not ours has the name", "plan again")
    return False


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
    marks = (BRIDGED, BROKEN)
    said = {name: value for name, value in view.properties.items() if name not in marks} if view is not None else {}
    work.engine(step).create_view(
        step.name,
        str(step.details["sql"]),
        properties={name: value for name, value in said.items() if name != COMMENT},
        comment=said.get(COMMENT),
        columns=(),
        replace=True,
    )


def bridge(work: Work, step: Step) -> None:
    """Give the view the types that its columns are going to have: its text is the same but for casts of its outputs,
    and can be read before and after the change. A user's own text is kept in a property."""
    view, outputs = work.view(step.name), work.bridged.get(step.name.casefold())
    if view is None:
        return
    if outputs is None:
        # Its present text can't be run over what it is going to read, so nothing would hold before and after.
        if not step.user:
            work.engine(step).set_view_properties(step.name, work.marks(step), view.comment)
        return
    text = str(step.details["sql"])
    casts = ", ".join(f"CAST({quoted(name)} AS {type}) AS {quoted(name)}" for name, type in outputs)
    properties = {name: value for name, value in view.properties.items() if name != COMMENT}
    work.engine(step).create_view(
        step.name,
        f"SELECT {casts} FROM (\n{text}\n)",
        properties={**properties, **({BRIDGED: text} if step.user else work.marks(step))},
        comment=view.comment,
        columns=(),
        replace=True,
    )


def mark_broken(work: Work, step: Step) -> None:
    """Write into a user's view why it is broken; nothing else of it is touched."""
    view = work.view(step.name)
    if view is not None:
        comment = view.properties.get(COMMENT)
        mark = broken_mark(view.query, str(step.details["broken"]))
        work.engine(step).set_view_properties(step.name, {BROKEN: mark}, comment)


def probe_rename(work: Work, step: Step) -> bool | None:
    """Whether the view has its new name, or one that a later step gave it, and the step's mark."""
    if work.views() is None:
        return None
    named = map(work.view, work.new_names(step))
    return any(view is not None and work.is_marked(view.properties, step) for view in named)


def rename(work: Work, step: Step) -> None:
    """Rename it, then mark it."""
    engine, name = work.engine(step), str(step.details["to"])
    there = work.view(name)
    if there is None or there.properties.get(MARKER) != str(step.uuid):
        engine.rename_view(step.name, name)
    view = work.view(name)
    engine.set_view_properties(name, work.marks(step), view.comment if view is not None else None)


def probe_drop(work: Work, step: Step) -> bool | None:
    """Whether the view is dropped, or exists again already.

    :raises StepError: a view that is not ours has the name
    """
    view = work.view(step.name)
    if view is None:
        return None if work.views() is None else True
    if work.is_marked(view.properties, step):
        return True
    if view.properties.get(MARKER) != str(step.uuid):
        raise StepError(step.name, step.how.value, "a view that is not ours has the name", "plan again")
    return False


def drop(work: Work, step: Step) -> None:
    work.engine(step).drop_view(step.name)
