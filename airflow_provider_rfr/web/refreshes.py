"""The list of refreshes as one viewer sees it: filters, permissions and order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.state import PastGeneration
    from airflow_provider_rfr.web.access import Viewer
    from airflow_provider_rfr.web.lakes import Refresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A viewer's filter; empty text does not restrict it.

    :ivar q: part of the name of a table, DAG or run, of the part's filter, or of the error
    :ivar dag_id: only what runs of this DAG did; ``run_id``, ``task_id`` and ``map_index`` likewise
    """

    q: str = ""
    state: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wanted:
        """Return the filter in an address's query; unknown parameters are ignored."""
        return cls(**{field.name: query[field.name] for field in fields(cls) if field.name in query})

    @property
    def is_of_a_task(self) -> bool:
        return bool(self.dag_id and self.run_id and self.task_id)

    @property
    def scope(self) -> dict[str, str]:
        """Return the parameters that stay while text and state are changed."""
        names = ("dag_id", "run_id", "task_id", "map_index")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def is_in_scope(self, refresh: Refresh, viewer: Viewer) -> bool:
        """Tell whether the refresh concerns the DAG, run or task, now or in a generation that the viewer may see."""
        if not self.scope:
            return True
        return any(map(self._names, history(refresh, viewer)))

    def _names(self, each: PastGeneration) -> bool:
        pairs = ((self.dag_id, each.dag_id), (self.run_id, each.dag_run_id), (self.task_id, each.task_id))
        is_named = all(not wanted or wanted == found for wanted, found in pairs)
        return is_named and (not self.task_id or each.map_index in (None, self._index))

    @property
    def _index(self) -> int:
        # Airflow's frame leaves the placeholder as it is where a task is not mapped.
        return int(self.map_index) if re.fullmatch("[0-9]{1,9}", self.map_index) else -1

    def is_matched(self, refresh: Refresh) -> bool:
        header = refresh.status.header
        texts = [refresh.status.table, refresh.status.sentence, refresh.lake]
        if header is not None:
            texts += filter(None, (header.replace_where, header.dag_id, header.dag_run_id, header.task_id))
        return self.q.casefold() in "\n".join(texts).casefold()


@dataclass(frozen=True, slots=True)
class Listed:
    """The rows, and how many of each state there are before one is chosen; ``states``: all that there may be."""

    refreshes: tuple[Refresh, ...]
    states: tuple[str, ...]
    counts: Mapping[str, int]
    total: int


def visible(refreshes: Sequence[Refresh], viewer: Viewer) -> list[Refresh]:
    """Return the refreshes that the viewer may see, by the DAG of the newest run, or as tables if there is none."""
    viewer.learn({dag_of(refresh) for refresh in refreshes})
    return [refresh for refresh in refreshes if viewer.sees(dag_of(refresh))]


def dag_of(refresh: Refresh) -> str | None:
    return None if refresh.status.header is None else refresh.status.header.dag_id


def listed(refreshes: Sequence[Refresh], wanted: Wanted, viewer: Viewer) -> Listed:
    """Return the requested refreshes; failed and stuck ones come first."""
    from airflow_provider_rfr.refresh.status import State

    order = {state: place for place, state in enumerate(State)}
    found = [refresh for refresh in refreshes if wanted.is_in_scope(refresh, viewer) and wanted.is_matched(refresh)]
    found.sort(key=lambda each: (order[each.status.state], each.status.table, each.status.ledger, each.lake))
    counts = Counter(row.status.state.value for row in found)
    shown = tuple(row for row in found if wanted.state in ("", row.status.state.value))
    names = tuple(state.value for state in State)
    return Listed(
        shown, names, {state.value: counts[state.value] for state in State if counts[state.value]}, len(found)
    )


def history(refresh: Refresh, viewer: Viewer) -> tuple[PastGeneration, ...]:
    """Return the generations, the newest first; those that the viewer may not see have only figures."""
    hidden = {"dag_id": None, "dag_run_id": None, "task_id": None, "map_index": None, "error": None}
    return tuple(
        generation if viewer.sees(generation.dag_id) else replace(generation, **hidden)  # type: ignore[arg-type]
        for generation in refresh.status.history
    )
