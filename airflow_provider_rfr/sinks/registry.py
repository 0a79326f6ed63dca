"""What a deploy does to sinks, in the transactions in which it writes its journal. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.sinks._windows import Pins
from airflow_provider_rfr.builtins.spec import BuiltinObject
from airflow_provider_rfr.builtins.state import SinkState
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store import sinks as store
from airflow_provider_rfr.store.sinks import SinkRow

_CHOICES: Final = ("resume_from_new", "resend")
_FREE: Final[Mapping[str, Any]] = {"held_at": None, "held_reason": None, "behind": None}


def apply_sink_step(
    connection: Connection, step: Step, obj: BuiltinObject | None, now_ms: int, *, deploy_id: str = ""
) -> None:
    """Do a step of a plan whose kind is sink.

    Doing it again changes nothing. Nor does it when another deploy decides the same about the same once more, because
    the first one died (``since`` in the step's details).

    :param obj: the sink as it is declared; None for one that is not (any more)
    :param now_ms: milliseconds since 1970, by the store's clock
    :param deploy_id: of the deploy, as in the summary of its snapshots: it shows a sink which snapshot emptied its
        source, so that rows which came after that one are new. Without it, those that came after ``now_ms`` are
    :raises ConfigurationError: the step can't be done to a sink
    """
    if step.uuid is None or step.how not in _VERBS:
        raise ConfigurationError("steps", f"{step.how.value} of {step.name} can't be done to a sink")
    _VERBS[step.how](connection, step, obj, now_ms, str(step.details.get("since", deploy_id)))


def sink_states(connection: Connection) -> tuple[SinkState, ...]:
    """All sinks, by name, as plans compare them."""
    return tuple(
        SinkState(each.uuid, each.name, each.source, each.cursor, each.on_replace)
        for each in store.all_sinks(connection)
    )


def needed_physicals(connection: Connection) -> frozenset[str]:
    """Uuids of tables that a sink still has to read from: garbage collection leaves them."""
    return frozenset(each.physical for each in store.all_sinks(connection) if each.physical is not None)


def release_sink(connection: Connection, identity: UUID, choice: str, now_ms: int) -> None:
    """Decide what becomes of a sink that waits for it, or of any other.

    :param choice: ``resume_from_new`` (with the rows that came since its source was replaced; for a sink that is not
        held, since now) or ``resend``
    :raises ConfigurationError: there is no such sink, or no such choice
    """
    row = store.load_sink(connection, identity)
    if row is None:
        raise ConfigurationError("sink", f"no sink with the id {identity} is registered", "deploy it first")
    if choice not in _CHOICES:
        raise ConfigurationError("choice", f"{choice!r} is unknown", f"one of {', '.join(_CHOICES)}")
    if choice != "resend" and row.behind is not None:
        store.change_sink(connection, row.uuid, **_FREE, window=None, cursor=row.behind, sequence=None)
    else:
        _write_decision(connection, row, choice, now_ms if row.held_at is None else row.held_at, row.deploy_id or "")


def _write_decision(connection: Connection, row: SinkRow, choice: str, since: int, deploy_id: str) -> None:
    values: dict[str, Any] = {"start": "new", "since": since, "deploy_id": deploy_id or None}
    if choice == "resend":
        values = {"start": None, "since": None, "cursor": None, "physical": None, "round": row.round + 1}
        values |= {"window": None, "deploy_id": None}
    store.change_sink(connection, row.uuid, **_FREE, **values)


def _register(connection: Connection, step: Step, obj: BuiltinObject | None, now_ms: int, deploy_id: str) -> None:
    """Insert the sink's row, or bring it to what is declared."""
    if obj is None or obj.sink is None:
        raise ConfigurationError("steps", f"{step.name} is a sink, and its declaration is missing")
    try:
        source = UUID(str(step.details.get("source")))
    except ValueError:
        raise ConfigurationError("steps", f"{step.name}: details.source is not an id of an object") from None
    assert step.uuid is not None
    row, spec = store.load_sink(connection, step.uuid), obj.sink
    moved = row is not None and row.source != source
    before = Pins.loads(row.pins) if row is not None and not moved else None
    pins = Pins.of(spec, step.details.get("columns") or (), before).dumps()
    if row is None:
        store.insert_sink(connection, step.uuid, step.name, source, pins, spec.on_replace, now_ms)
        return
    values: dict[str, Any] = {"name": step.name, "pins": pins, "on_replace": spec.on_replace, "source": str(source)}
    if moved:
        # A cursor means nothing in another table; what becomes of it is said by a step of its own, which comes later.
        values |= {"cursor": None, "physical": None, "window": None, "behind": None, "deploy_id": None}
        values |= {"held_at": now_ms, "held_reason": "it has another source now"}
    store.change_sink(connection, row.uuid, **values)


def _hold(connection: Connection, step: Step, obj: BuiltinObject | None, now_ms: int, deploy_id: str) -> None:
    row, mark = _undecided(connection, step, deploy_id)
    if row is None:
        return
    if row.held_at is None:
        store.change_sink(connection, row.uuid, held_at=now_ms, held_reason=step.reason, window=None)
    if row.behind is None:
        store.change_sink(connection, row.uuid, deploy_id=deploy_id or None, decided_by=mark)


def _decide(connection: Connection, step: Step, obj: BuiltinObject | None, now_ms: int, deploy_id: str) -> None:
    row, mark = _undecided(connection, step, deploy_id)
    if row is None:
        return
    # Whether the same was decided before, and nothing was sent since.
    resent = row.round > 0 and row.cursor is None and row.window is None
    pending = row.start == "new" if step.how is Action.RESUME_FROM_NEW else resent
    if mark is None and row.held_at is None and pending:
        return
    _write_decision(connection, row, step.how.value, now_ms, deploy_id)
    store.change_sink(connection, row.uuid, decided_by=mark)


def _undecided(connection: Connection, step: Step, deploy_id: str) -> tuple[SinkRow | None, str | None]:
    """The sink's row, None if it is gone or this was decided before; and what was decided, about which deploy."""
    assert step.uuid is not None
    row = store.load_sink(connection, step.uuid)
    mark = f"{deploy_id}/{step.how.value}" if deploy_id else None
    was_decided = row is not None and mark is not None and row.decided_by == mark
    return None if was_decided else row, mark


def _remove(connection: Connection, step: Step, obj: BuiltinObject | None, now_ms: int, deploy_id: str) -> None:
    assert step.uuid is not None
    store.delete_sink(connection, step.uuid)


_Do = Callable[[Connection, Step, "BuiltinObject | None", int, str], None]
_VERBS: Final[dict[Action, _Do]] = {
    Action.CREATE: _register,
    Action.METADATA: _register,
    Action.HOLD: _hold,
    Action.RESUME_FROM_NEW: _decide,
    Action.RESEND: _decide,
    Action.REMOVE: _remove,
}
