"""Views that stay readable while a table under them changes.

Spark keeps the types that a view's columns had when the view was made, and refuses to read wider ones. So a view over a
column that is widened is bridged before the table changes: it gets its own text with its outputs cast to the types that
they are going to have, which gives the same before and after. Its readers are bridged before it. Afterwards each view
gets its text as it is declared. Where a column that a view reads is renamed, dropped or of an incompatible new type, no
text holds before and after: the plan says so."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from enum import IntEnum

from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions
from airflow_provider_rfr.builtins.planning.columns import ALL, met
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, Dependency, Kind
from airflow_provider_rfr.builtins.state import ActualState, UserView


class _Felt(IntEnum):
    """What a view feels of a change under it."""

    NOTHING = 0
    WIDER = 1
    BROKEN = 2


class Bridges:
    """What the changes mean for readers in the middle of a deploy.

    :param rebound: names, as they are compared, of users' views that are defined again; others break or feel nothing
    :ivar steps: readers first, to be done before anything changes
    :ivar warnings: views that can't be read for a moment, and why
    """

    def __init__(self, decisions: Decisions, live: ActualState, rebound: Container[str]) -> None:
        self.warnings: list[str] = []
        self._by_key = {(each.desired.recorded or each.desired).key: each for each in decisions.values()}
        self._views = {each.key: each for each in live.user_views}
        self._felt: dict[str, _Felt] = {}
        steps: list[Step] = []
        for decision in decisions.values():
            known, there = decision.desired.recorded, decision.desired.live
            if known is None or there is None or known.kind is not Kind.VIEW or decision.leaves or known.sql is None:
                continue
            felt = self._feels(known.key, known.name, known.deps)
            if felt is _Felt.WIDER and decision.how in (Action.REBIND, Action.REPLACE):
                steps.append(_step(there.name, known.sql, decision))
        for view in self._in_order():
            if view.key in rebound and self._feels(view.key, view.name, view.reads or ()) is _Felt.WIDER:
                steps.append(_step(view.name, view.pinned or view.query, None))
        self.steps = tuple(reversed(steps))

    def _feels(self, key: str, name: str, reads: tuple[Dependency, ...]) -> _Felt:
        found = [(_felt, why) for each in reads for _felt, why in self._of(each)]
        felt = max((each for each, _ in found), default=_Felt.NOTHING)
        if felt is _Felt.BROKEN:
            reasons = "; ".join(dict.fromkeys(str(why) for each, why in found if each is _Felt.BROKEN))
            self.warnings.append(f"view {name} can't be read for a moment: it {reasons}")
        self._felt[key] = felt
        return felt

    def _of(self, read: Dependency) -> Iterator[tuple[_Felt, Reason]]:
        """What a reader of these columns feels."""
        if read.name in self._views:
            yield self._felt.get(read.name, _Felt.NOTHING), because(Why.READS, self._views[read.name].name)
            return
        decision = self._by_key.get(read.name)
        if decision is None:
            return
        name = (decision.desired.recorded or decision.desired.obj).name
        if decision.renamed:
            yield _Felt.BROKEN, because(Why.READS_RENAMED, name, decision.desired.obj.name)
        elif decision.desired.kind not in STORED:
            yield self._felt.get(read.name, _Felt.NOTHING), because(Why.READS, name)
        elif seen := met(decision.effects.shape, read.columns):
            wider = (decision.effects.shape if seen == [ALL] else set(seen)) <= decision.effects.widened
            yield _Felt.WIDER if wider else _Felt.BROKEN, because(Why.READS, ", ".join(f"{name}.{one}" for one in seen))

    def _in_order(self) -> Iterator[UserView]:
        """Users' views, each after those that it reads."""
        left = dict(sorted(self._views.items()))
        while left:
            ready = [key for key, each in left.items() if not any(read.name in left for read in each.reads or ())]
            for key in ready or [next(iter(left))]:
                yield left.pop(key)


def _step(name: str, sql: str, decision: Decision | None) -> Step:
    details: Mapping[str, str] = {"sql": sql}
    uuid = decision.desired.uuid if decision is not None else None
    return Step(0, uuid, name, Kind.VIEW, Action.BRIDGE, (because(Why.STAYS_READABLE),), (), details, user=uuid is None)
