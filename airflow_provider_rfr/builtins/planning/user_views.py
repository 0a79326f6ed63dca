"""Views that others made over our objects: found, and rebound, or the deploy stops, or they are warned of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from airflow_provider_rfr.builtins.graph import CycleError, Graph
from airflow_provider_rfr.builtins.planning.decision import Decision, Decisions, reads
from airflow_provider_rfr.builtins.planning.plans import Blocked, Dependent
from airflow_provider_rfr.builtins.planning.policies import Policies
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import Live, RecordedObject, UserView

_REMEDY = "change the view, or let it break with user_views: warn"


@dataclass
class UserViews:
    """What the changes mean for users' views.

    :ivar rebound: in the order in which to do it, with why
    """

    rebound: list[tuple[UserView, str]] = field(default_factory=list)
    dependents: list[Dependent] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Noticed:
    """By one view: what it can't do without, and what it has to see anew; by id of the object."""

    broken: dict[UUID, str] = field(default_factory=dict)
    changed: dict[UUID, str] = field(default_factory=dict)


def user_views(
    decisions: Decisions, removed: Mapping[UUID, RecordedObject], live: Live, policies: Policies
) -> UserViews:
    """What the changes mean for users' views, those over other users' views too."""
    return _Finder(decisions, removed, live, policies).find()


class _Finder:
    def __init__(
        self, decisions: Decisions, removed: Mapping[UUID, RecordedObject], live: Live, policies: Policies
    ) -> None:
        self._decisions = decisions
        self._removed = removed
        self._policies = policies
        self._views = {each.key: each for each in live.user_views}
        self._ours = {each.key: identity for identity, each in removed.items()}
        for identity, decision in decisions.items():
            self._ours[(decision.want.recorded or decision.want).key] = identity
        self._changed: dict[str, _Noticed] = {}
        self._found = UserViews()

    def find(self) -> UserViews:
        graph = Graph({key: {each.name for each in view.reads or ()} for key, view in self._views.items()})
        try:
            order = graph.order(lambda key: key)
        except CycleError:
            order = tuple(sorted(self._views))
        for key in order:
            noticed = self._noticed(self._views[key])
            if noticed.broken or noticed.changed:
                self._changed[key] = noticed
                self._decide(self._views[key], noticed)
        return self._found

    def _noticed(self, view: UserView) -> _Noticed:
        found = _Noticed()
        if view.reads is None:
            self._assume(found)
            return found
        for each in view.reads:
            if (read := self._changed.get(each.name)) is not None:
                reason = f"reads {self._views[each.name].name}"
                found.broken.update(dict.fromkeys(read.broken, reason))
                found.changed.update({on: reason for on in read.changed if not read.broken})
            identity = self._ours.get(each.name)
            if identity is None:
                continue
            if identity in self._removed:
                found.broken[identity] = f"reads {self._removed[identity].name}, which is removed"
            else:
                self._notice(found, self._decisions[identity], each.columns)
        return found

    def _assume(self, found: _Noticed) -> None:
        """A view that can't be read may read anything."""
        for identity, each in self._removed.items():
            found.broken[identity] = f"can't be read, so it may read {each.name}, which is removed"
        for identity, decision in self._decisions.items():
            if decision.effects.gone or decision.renamed:
                found.broken[identity] = f"can't be read, so it may read {self._old_name(decision)} as it was"
            elif decision.effects.shape:
                found.changed[identity] = f"can't be read, so it may read {decision.want.obj.name}"

    def _notice(self, found: _Noticed, decision: Decision, columns: tuple[str, ...] | None) -> None:
        identity, name = decision.want.uuid, self._old_name(decision)
        if decision.renamed:
            found.broken[identity] = f"reads {name}, which is called {decision.want.obj.name} now"
        for old, now in decision.effects.gone:
            if columns is None or old in columns:
                may = "may read" if columns is None else "reads"
                found.broken[identity] = f"{may} {name}.{old}, which is {f'called {now}' if now else 'gone'} now"
        if identity not in found.broken and (met := decision.effects.shape.met(columns)):
            found.changed[identity] = reads(name, met)

    @staticmethod
    def _old_name(decision: Decision) -> str:
        known = decision.want.recorded
        return known.name if known is not None else decision.want.obj.name

    def _decide(self, view: UserView, noticed: _Noticed) -> None:
        policy = self._policies.user_views
        why = [*noticed.broken.values(), *noticed.changed.values()]
        how = "warn" if policy == "warn" else "blocked" if noticed.broken or policy == "fail" else "rebind"
        words = "; ".join(why)
        for identity, reason in {**noticed.changed, **noticed.broken}.items():
            self._found.dependents.append(Dependent(identity, view.name, Kind.VIEW, how, reason, user=True))
        if how == "warn":
            self._found.warnings.append(f"view {view.name} (user) {words}: it may fail from now on")
        elif how == "blocked":
            self._found.blocked.append(Blocked(view.name, Kind.VIEW, (*why, f"user_views: {policy}; {_REMEDY}")))
        else:
            self._found.rebound.append((view, words))
