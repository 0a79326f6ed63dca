"""Uses of connections and their alterations: names and states, no values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.hooks.tasks import states_of_uses
from airflow_provider_rfr.web.deliveries import control_store

if TYPE_CHECKING:
    from airflow_provider_rfr.store.connections import Use
    from airflow_provider_rfr.web.access import Viewer

_ALTERATIONS: Final = 200


@dataclass(frozen=True, slots=True)
class ConnectionUses:
    """A connection and its uses; ``stale`` is the number of tasks that should have another copy of it."""

    conn_id: str
    uses: tuple[Use, ...]
    stale: int


@dataclass(frozen=True, slots=True)
class AlterationView:
    """One alteration without its statement and its values, which are masked in the audit and not needed here."""

    conn_id: str
    actor: str
    state: str
    options: tuple[str, ...]
    dependents: int
    started_at: int


@dataclass(frozen=True, slots=True)
class Connections:
    """The control store's knowledge of connections."""

    uses: tuple[Use, ...] = ()
    alterations: tuple[AlterationView, ...] = ()

    def seen_by(self, viewer: Viewer) -> tuple[tuple[ConnectionUses, ...], tuple[AlterationView, ...]]:
        """Return connections that the viewer may read, with uses by tasks of DAGs that the viewer may see."""
        viewer.learn({use.task.dag_id for use in self.uses})
        uses = [use for use in self.uses if viewer.sees(use.task.dag_id)]
        named = {copy.conn_id for use in uses for copy in use.connections} | {
            alteration.conn_id for alteration in self.alterations
        }
        readable = viewer.connections(named)
        rows = []
        for conn_id in sorted(readable):
            of_it = tuple(use for use in uses if use.of(conn_id) is not None)
            stale = sum(copy.is_stale for use in of_it if (copy := use.of(conn_id)) is not None)
            rows.append(ConnectionUses(conn_id, of_it, stale))
        return tuple(rows), tuple(alteration for alteration in self.alterations if alteration.conn_id in readable)


def read_connections() -> Connections:
    from airflow_provider_rfr.store.connections import list_alterations, list_uses

    store = control_store()
    if store is None:
        return Connections()
    with store.read() as connection:
        uses = list_uses(connection)
        alterations = tuple(
            AlterationView(
                record.conn_id,
                record.actor,
                record.state,
                tuple(sorted(record.options)),
                len(record.dependents),
                record.started_at,
            )
            for record in list_alterations(connection, limit=_ALTERATIONS)
        )
    states = states_of_uses(uses)
    return Connections(tuple(replace(use, state=states[use.task]) for use in uses), alterations)
