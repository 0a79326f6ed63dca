"""What the changes mean for users' views: issued again where a column has another type, refused where one would break.

A view that somebody lets break is marked in its own properties, so that plans show it until it is mended: whoever
replaces it takes the mark away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from airflow_provider_rfr.builtins.desired import CycleError, Graph
from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, lost_column, reads
from airflow_provider_rfr.builtins.planning.columns import met
from airflow_provider_rfr.builtins.planning.plan import Action, Blocked, Dependent, Policies, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import ActualState, RecordedObject, UserView

_Reasons = dict[UUID, Reason]
"""By the id of what is read."""


class UserViews:
    """What the changes mean for users' views, those over other users' views too.

    :ivar steps: in the order in which to do them
    :ivar warnings: views that break now, or broke earlier
    """

    def __init__(
        self, decisions: Decisions, removed: Mapping[UUID, RecordedObject], live: ActualState, policies: Policies
    ) -> None:
        self.steps: list[Step] = []
        self.dependents: list[Dependent] = []
        self.blocked: list[Blocked] = []
        self.warnings: list[str] = []
        self._decisions = decisions
        self._removed = removed
        self._policies = policies
        self._views = {each.key: each for each in live.user_views}
        self._ours = {each.key: identity for identity, each in removed.items()}
        for identity, decision in decisions.items():
            self._ours[(decision.desired.recorded or decision.desired).key] = identity
        self._noticed: dict[str, tuple[_Reasons, _Reasons]] = {}

    def decide(self) -> UserViews:
        """Decide about each view, after those that it reads."""
        graph = Graph({key: {each.name for each in view.reads or ()} for key, view in self._views.items()})
        try:
            order = graph.order(lambda key: key)
        except CycleError:
            order = tuple(sorted(self._views))
        for key in order:
            view = self._views[key]
            if view.broken is not None:
                # It can't be defined again before somebody mends it, and whoever let it break knows.
                self.warnings.append(f"view {view.name} (user) is broken: {view.broken}")
                continue
            broken, changed = self._noticed[key] = self._notice(view)
            why = [*broken.values(), *changed.values()]
            if view.bridged and not why:
                why = [because(Why.BRIDGED)]
            if not why:
                continue
            allowed = key in self._policies.break_views
            how = "rebind" if not broken else "break" if allowed else "blocked"
            for identity, reason in {**changed, **broken}.items():
                self.dependents.append(Dependent(identity, view.name, Kind.VIEW, how, reason, user=True))
            if how == "blocked":
                self.blocked.append(Blocked(view.name, Kind.VIEW, (*why, because(Why.USER_VIEW_BREAKS, view.name))))
            elif how == "break":
                self.warnings.append(f"view {view.name} (user) breaks: {'; '.join(map(str, why))}")
                self._step(view, Action.MARK_BROKEN, why, {"broken": "; ".join(map(str, broken.values()))})
            else:
                self._step(view, Action.REBIND, why, {"sql": view.pinned or view.query})
        return self

    def _step(self, view: UserView, how: Action, why: Iterable[Reason], details: Mapping[str, str]) -> None:
        self.steps.append(Step(0, None, view.name, Kind.VIEW, how, tuple(why), (), details, user=True))

    def _notice(self, view: UserView) -> tuple[_Reasons, _Reasons]:
        """Reads of the view that break, and reads whose columns change."""
        broken, changed = _Reasons(), _Reasons()
        if view.reads is None:
            # A view that can't be read may read anything.
            for identity, gone in self._removed.items():
                broken[identity] = because(Why.READS_UNKNOWN, f"{gone.name}, which is removed")
            for identity, decision in self._decisions.items():
                if decision.effects.gone or decision.renamed:
                    name = (decision.desired.recorded or decision.desired.obj).name
                    broken[identity] = because(Why.READS_UNKNOWN, f"{name} as it was")
                elif decision.effects.shape:
                    changed[identity] = because(Why.READS_UNKNOWN, decision.desired.obj.name)
        for each in view.reads or ():
            if each.name in self._noticed:
                theirs_broken, theirs_changed = self._noticed[each.name]
                reason = because(Why.READS, self._views[each.name].name)
                broken.update(dict.fromkeys(theirs_broken, reason))
                changed.update({on: reason for on in theirs_changed if not theirs_broken})
            ours = self._ours.get(each.name)
            if ours is not None and ours in self._removed:
                broken[ours] = because(Why.READS_REMOVED, self._removed[ours].name)
            elif ours is not None:
                _notice_change(self._decisions[ours], each.columns, broken, changed)
        return broken, changed


def _notice_change(decision: Decision, columns: tuple[str, ...] | None, broken: _Reasons, changed: _Reasons) -> None:
    identity, name = decision.desired.uuid, (decision.desired.recorded or decision.desired.obj).name
    if decision.renamed:
        broken[identity] = because(Why.READS_RENAMED, name, decision.desired.obj.name)
    for old, now in decision.effects.gone:
        if columns is None or old in columns:
            broken[identity] = lost_column(name, old, now)
    if identity not in broken and (seen := met(decision.effects.shape, columns)):
        changed[identity] = reads(name, seen)
