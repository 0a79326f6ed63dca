"""Views that stay readable while a table under them changes.

Spark keeps the types that a view's columns had when the view was made, and refuses to read wider ones. So a view over a
column that is widened is bridged before the table changes: it gets its own text with its outputs cast to the types that
they are going to have, which gives the same before and after. Its readers are bridged before it. Afterwards each view
gets its text as it is declared. Where a column that a view reads is renamed, dropped or of an incompatible new type, no
text holds before and after: the plan says so."""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import IntEnum
from uuid import UUID

from airflow_provider_rfr.builtins.planning._decision import Decisions, by_old_name, reads
from airflow_provider_rfr.builtins.planning._user_views import views_in_order
from airflow_provider_rfr.builtins.planning.columns import ALL, met
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, Dependency, Kind
from airflow_provider_rfr.builtins.state import ActualState


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
        self._by_key = by_old_name(decisions)
        self._felt: dict[str, _Felt] = {}
        self._user_views = {each.key: each.name for each in live.user_views}
        steps: list[Step] = []
        for identity, decision in decisions.items():
            known, there = decision.desired.recorded, decision.desired.live
            if known is None or there is None or known.kind is not Kind.VIEW or decision.leaves or known.sql is None:
                continue
            felt = self._feels(known.key, known.name, known.deps)
            if felt is _Felt.WIDER and decision.how in (Action.REBIND, Action.REPLACE):
                steps.append(_step(identity, there.name, known.sql))
        for view in views_in_order(live):
            if view.key in rebound and self._feels(view.key, view.name, view.reads or ()) is _Felt.WIDER:
                steps.append(_step(None, view.name, view.pinned or view.query))
        self.steps = tuple(reversed(steps))

    def _feels(self, key: str, name: str, deps: Iterable[Dependency]) -> _Felt:
        found = [self._of(each) for each in deps]
        felt = self._felt[key] = max((each for each, _ in found), default=_Felt.NOTHING)
        if felt is _Felt.BROKEN:
            reasons = "; ".join(dict.fromkeys(str(why) for each, why in found if each is _Felt.BROKEN))
            self.warnings.append(f"view {name} can't be read for a moment: it {reasons}")
        return felt

    def _of(self, read: Dependency) -> tuple[_Felt, Reason | None]:
        """What a reader of these columns feels, and why."""
        decision, felt = self._by_key.get(read.name), self._felt.get(read.name, _Felt.NOTHING)
        if felt and read.name in self._user_views:
            return felt, because(Why.READS, self._user_views[read.name])
        if decision is None or not (felt or decision.renamed or decision.effects.shape):
            return felt, None
        name, effects = (decision.desired.recorded or decision.desired.obj).name, decision.effects
        if decision.renamed:
            return _Felt.BROKEN, because(Why.READS_RENAMED, name, decision.desired.obj.name)
        if decision.desired.kind not in STORED:
            return felt, because(Why.READS, name)
        if seen := met(effects.shape, read.columns):
            changed = effects.shape if seen == [ALL] else {*seen}
            felt = _Felt.WIDER if changed <= effects.widened else _Felt.BROKEN
        return felt, reads(name, seen)


def _step(uuid: UUID | None, name: str, sql: str) -> Step:
    reasons = (because(Why.STAYS_READABLE),)
    return Step(0, uuid, name, Kind.VIEW, Action.BRIDGE, reasons, (), {"sql": sql}, user=uuid is None)
