"""What the changes mean for users' views: issued again where a column has another type, refused where one would break.

Spark finds a view's columns by their places in what its text gives. So where the columns that a star stands for change
their places, the view gets its text with the star written out before anything changes: that text gives the same before
and after.

A view that somebody lets break is marked in its own properties, so that plans show it until it is mended: whoever
replaces it takes the mark away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from airflow_provider_rfr.builtins.desired import CycleError, in_order
from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, by_old_name, lost_column, reads
from airflow_provider_rfr.builtins.planning.columns import Change, met
from airflow_provider_rfr.builtins.planning.plan import Action, Blocked, Dependent, Policies, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Dependency, Kind
from airflow_provider_rfr.builtins.state import ActualState, RecordedObject, UserView


def views_in_order(live: ActualState) -> tuple[UserView, ...]:
    """Users' views, each after those that it reads; by name, if some read each other in a circle."""
    views = {each.key: each for each in live.user_views}
    try:
        order = in_order({key: [each.name for each in view.reads or ()] for key, view in views.items()}, str)
    except CycleError:
        order = tuple(sorted(views))
    return tuple(views[key] for key in order)


class UserViews:
    """What the changes mean for users' views, those over other users' views too.

    :ivar pins: to be done before anything changes
    :ivar steps: in the order in which to do them, after everything changed
    :ivar warnings: views that break now, or broke earlier
    """

    def __init__(
        self, decisions: Decisions, removed: Mapping[UUID, RecordedObject], live: ActualState, policies: Policies
    ) -> None:
        self.pins: list[Step] = []
        self.steps: list[Step] = []
        self.dependents: list[Dependent] = []
        self.blocked: list[Blocked] = []
        self.warnings: list[str] = []
        # What is recorded is what they read; something new under its name is not.
        self._by_key: dict[str, Decision | RecordedObject] = {**by_old_name(decisions)}
        self._by_key |= {each.key: each for each in removed.values()}
        self._noticed: dict[str, tuple[str, dict[UUID, Reason], bool]] = {}
        self._views = views_in_order(live)
        self._policies = policies

    def decide(self) -> UserViews:
        """Decide about each view, after those that it reads."""
        for view in self._views:
            if view.broken is not None:
                # It can't be defined again before somebody mends it, and whoever let it break knows.
                self.warnings.append(f"view {view.name} (user) is broken: {view.broken}")
            self._decide(view, view.key in self._policies.break_views)
        return self

    def _decide(self, view: UserView, may_break: bool) -> None:
        broken, changed = dict[UUID, Reason](), dict[UUID, Reason]()
        for on, reason, breaks in self._notice(view):
            said = reason if view.reads is not None else because(Why.READS_UNKNOWN, reason)
            (broken if breaks else changed)[on] = said
        self._noticed[view.key] = view.name, broken or changed, bool(broken) or view.broken is not None
        if view.broken is not None:
            # Those who read it may not be marked yet: the deploy that broke it may have died before.
            return
        if not broken:
            self._pin(view, changed)
        why = (*broken.values(), *changed.values()) or ((because(Why.BRIDGED),) if view.bridged else ())
        if not why:
            return
        how = "rebind" if not broken else "break" if may_break else "blocked"
        for on, reason in {**changed, **broken}.items():
            self.dependents.append(Dependent(on, view.name, Kind.VIEW, how, reason, user=True))
        if how == "blocked":
            self.blocked.append(Blocked(view.name, Kind.VIEW, (*why, because(Why.USER_VIEW_BREAKS, view.name))))
            return
        action, details = Action.REBIND, {"sql": view.pinned or view.query}
        if how == "break":
            self.warnings.append(f"view {view.name} (user) breaks: {'; '.join(map(str, why))}")
            action, details = Action.MARK_BROKEN, {"broken": "; ".join(map(str, broken.values()))}
        self.steps.append(Step(0, None, view.name, Kind.VIEW, action, why, (), details, user=True))

    def _pin(self, view: UserView, changed: Mapping[UUID, Reason]) -> None:
        """Write its stars out, if what they stand for is going to have other places."""
        starred = (self._by_key.get(each.name) for each in view.reads or () if each.columns is None)
        moved = [each for each in starred if isinstance(each, Decision) and _moves(each, view.star_last)]
        if not moved or "*" not in view.query or view.bridged or view.broken or view.pinned == view.query:
            return
        names = [(each.desired.recorded or each.desired.obj).name for each in moved]
        if view.pinned is None:
            problem = f"its star can't be written out, and the columns of {', '.join(names)} change their places"
            self.warnings.append(f"view {view.name} (user) may show others' values: {problem}")
            return
        why = {each.desired.uuid: because(Why.STAR_MOVES, name) for each, name in zip(moved, names, strict=True)}
        for on, reason in why.items():
            if on not in changed:
                self.dependents.append(Dependent(on, view.name, Kind.VIEW, "rebind", reason, user=True))
        details = {"sql": view.pinned}
        self.pins.append(
            Step(0, None, view.name, Kind.VIEW, Action.REBIND, tuple(why.values()), (), details, user=True)
        )

    def _notice(self, view: UserView) -> Iterator[tuple[UUID, Reason, bool]]:
        """The changed objects that the view reads, with what it notices and whether that breaks it."""
        # A view that can't be read may read anything.
        for read in view.reads if view.reads is not None else map(Dependency, self._by_key):
            if read.name in self._noticed:
                name, found, breaks = self._noticed[read.name]
                yield from ((on, because(Why.READS, name), breaks) for on in found)
            ours = self._by_key.get(read.name)
            if isinstance(ours, RecordedObject):
                yield ours.uuid, because(Why.READS_REMOVED, ours.name), True
            elif ours is not None and (noticed := _of_change(ours, read.columns)) is not None:
                yield ours.desired.uuid, *noticed


def _of_change(decision: Decision, columns: tuple[str, ...] | None) -> tuple[Reason, bool] | None:
    """What a reader of these columns notices, and whether that breaks it."""
    known, effects = decision.desired.recorded or decision.desired.obj, decision.effects
    name = known.name
    # A deploy that died may have renamed it already.
    renamed = known.key != decision.desired.key and known.kind is not Kind.SINK
    breaks = [because(Why.READS_RENAMED, name, decision.desired.obj.name)] if renamed else []
    # Another column under an old name is not the one that is read.
    changes = (each for each in decision.column_changes if each.what is Change.RENAME)
    gone = dict(effects.gone) | {each.before.casefold(): each.column for each in changes}
    breaks += [lost_column(name, old, now) for old, now in gone.items() if columns is None or old in columns]
    if breaks:
        return breaks[-1], True
    seen = met(effects.shape, columns)
    return (reads(name, seen), False) if seen else None


def _moves(decision: Decision, star_last: bool) -> bool:
    """Whether what a star over it stands for does not stay where it is.

    :param star_last: a column that comes last changes nothing
    """
    before, now = decision.outputs()
    return bool(before) and (now[: len(before)] != before or (now != before and not star_last))
