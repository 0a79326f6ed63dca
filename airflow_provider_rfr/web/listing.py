"""The list of refreshes for one viewer: restricted to the viewer's rights, filtered, sorted and paginated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.past import PastAttempt, PastGeneration
    from airflow_provider_rfr.web.access import Viewer
    from airflow_provider_rfr.web.lakes import LakeRefresh

T = TypeVar("T")
PAGE_ROWS: Final = 100
"""Rows on one page of a list."""
_HIDDEN: Final[Mapping[str, Any]] = dict.fromkeys(("dag_id", "dag_run_id", "task_id", "map_index", "error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshFilter:
    """A viewer's filter of the list; an empty field does not restrict it.

    :ivar q: part of the name of a table, DAG or run, of the part's filter, or of the error
    :ivar dag_id: only refreshes by runs of this DAG; ``run_id``, ``task_id`` and ``map_index`` likewise
    :ivar sort: name of a column, with ``-`` before it for the greatest first; empty for the most urgent first
    :ivar page: number of the page, from 1
    """

    q: str = ""
    state: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: str = ""
    sort: str = ""
    page: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> RefreshFilter:
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

    @property
    def parameters(self) -> dict[str, str]:
        """Return the parameters of the address, without the page."""
        return {
            field.name: value for field in fields(self) if field.name != "page" and (value := getattr(self, field.name))
        }

    def is_in_scope(self, refresh: LakeRefresh, viewer: Viewer) -> bool:
        """Tell whether the refresh concerns the DAG, run or task, now or in a generation that the viewer may see."""
        if not self.scope:
            return True
        # For a task that is not mapped, Airflow's frame leaves the placeholder unchanged.
        index = int(self.map_index) if re.fullmatch("[0-9]{1,9}", self.map_index) else -1
        return any(
            self.dag_id in ("", generation.dag_id)
            and self.run_id in ("", generation.dag_run_id)
            and self.task_id in ("", generation.task_id)
            and (not self.task_id or generation.map_index in (None, index))
            for generation in history_for(refresh, viewer)
        )

    def is_matched(self, refresh: LakeRefresh) -> bool:
        header = refresh.status.header
        texts = [refresh.status.table, refresh.status.sentence, refresh.lake]
        if header is not None:
            texts += filter(None, (header.replace_where, header.dag_id, header.dag_run_id, header.task_id))
        return self.q.casefold() in "\n".join(texts).casefold()


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """A page of a list.

    :ivar number: number of the page, from 1
    :ivar pages: number of pages in the list
    :ivar total: number of rows on all pages
    """

    rows: tuple[T, ...]
    number: int
    pages: int
    total: int

    @classmethod
    def of(cls, rows: Sequence[T], number: str) -> ListPage[T]:
        """Return the page with the number in an address, the first one for any other text."""
        pages = max(1, -(-len(rows) // PAGE_ROWS))
        page = min(int(number), pages) if re.fullmatch("[1-9][0-9]{0,8}", number) else 1
        return cls(tuple(rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]), page, pages, len(rows))

    @property
    def span(self) -> tuple[int, int]:
        """Return the numbers of the first row and of the last on this page."""
        before = (self.number - 1) * PAGE_ROWS
        return before + 1, before + len(self.rows)


@dataclass(frozen=True, slots=True)
class RefreshList:
    """The list of refreshes for one viewer.

    :ivar shown: the page of the refreshes in the chosen state
    :ivar states: all possible states, to choose from
    :ivar counts: number of refreshes in each state, before the filter by state
    :ivar total: number of refreshes in all states
    """

    shown: ListPage[LakeRefresh]
    states: tuple[str, ...]
    counts: Mapping[str, int]
    total: int


def dag_of(refresh: LakeRefresh) -> str | None:
    return None if refresh.status.header is None else refresh.status.header.dag_id


def list_for(refreshes: Sequence[LakeRefresh], query: RefreshFilter, viewer: Viewer) -> RefreshList:
    """Return the requested page of the refreshes that match the filter."""
    from airflow_provider_rfr.refresh.state import State, by_urgency

    rows = [refresh for refresh in refreshes if query.is_in_scope(refresh, viewer) and query.is_matched(refresh)]
    counts = Counter(row.status.state.value for row in rows)
    matching = [row for row in rows if query.state in ("", row.status.state.value)]
    # The most urgent first; with a column to sort by, those without a value last.
    matching.sort(key=lambda row: (*by_urgency(row.status), row.status.ledger, row.lake))
    value_of = _COLUMNS.get(query.sort.removeprefix("-"))
    if value_of is not None:
        known = [row for row in matching if value_of(row) is not None]
        known.sort(key=value_of, reverse=query.sort.startswith("-"))
        matching = known + [row for row in matching if value_of(row) is None]
    return RefreshList(
        shown=ListPage.of(matching, query.page),
        states=tuple(state.value for state in State),
        counts={state.value: counts[state.value] for state in State if counts[state.value]},
        total=len(rows),
    )


def _of_header(name: str) -> Callable[[LakeRefresh], Any]:
    return lambda refresh: getattr(refresh.status.header, name, None)


_COLUMNS: Final[Mapping[str, Callable[[LakeRefresh], Any]]] = {
    "table": lambda refresh: refresh.status.table,
    "sync": _of_header("sync"),
    "rows": _of_header("last_published_rows"),
    "pages": _of_header("pages"),
    "records": _of_header("records"),
    "attempts": _of_header("attempts"),
    "updated": _of_header("committed_at"),
    "dag": dag_of,
    "progress": lambda refresh: refresh.status.percent,
    "duration": lambda refresh: next((generation.seconds for generation in refresh.status.history), None),
}
"""Values to sort by; the columns of the list have the same names."""


def history_for(refresh: LakeRefresh, viewer: Viewer) -> tuple[PastGeneration, ...]:
    """Return the generations, the newest first; those that the viewer may not see have only figures."""
    return tuple(
        generation if viewer.sees(generation.dag_id) else replace(generation, **_HIDDEN)
        for generation in refresh.status.history
    )


def attempts_for(refresh: LakeRefresh, viewer: Viewer) -> tuple[PastAttempt, ...]:
    """Return the attempts on the generation, the newest first; those that the viewer may not see have only figures."""
    return tuple(
        attempt if viewer.sees(attempt.dag_id) else replace(attempt, try_number=None, **_HIDDEN)
        for attempt in refresh.status.attempts
    )
