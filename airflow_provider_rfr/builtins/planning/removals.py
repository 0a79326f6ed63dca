"""Objects that are recorded and no longer wanted, and what a deploy made that was then given up."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from airflow_provider_rfr.builtins.planning.drift import whose
from airflow_provider_rfr.builtins.planning.plans import Blocked
from airflow_provider_rfr.builtins.spec import Contents, Stability
from airflow_provider_rfr.builtins.state import Live, LiveObject, Recorded, RecordedObject, SinkState
from airflow_provider_rfr.builtins.wanted import Wanted, relation


@dataclass
class Removals:
    """What leaves for good.

    :ivar leaving: by id; all of them are forgotten
    :ivar there: what of these is in the catalog, so that there is something to do
    :ivar leftovers: by name, what an unfinished deploy left that belongs to nothing; ``leftover_sinks`` likewise
    """

    leaving: dict[UUID, RecordedObject] = field(default_factory=dict)
    reasons: dict[UUID, str] = field(default_factory=dict)
    there: dict[UUID, LiveObject] = field(default_factory=dict)
    leftovers: dict[str, LiveObject] = field(default_factory=dict)
    leftover_sinks: tuple[SinkState, ...] = ()
    blocked: list[Blocked] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def removals(wanted: Wanted, recorded: Recorded, live: Live, version: str, downgrade: str | None) -> Removals:
    """What leaves for good.

    :param downgrade: why nothing may be removed
    """
    found = Removals()
    known_ids = recorded.by_uuid.keys() | wanted.wants.keys() | live.unfinished
    sinks = [each for each in recorded.sinks if each.uuid in wanted.wants or each.uuid not in known_ids]
    for known in sorted(recorded.objects, key=lambda each: each.key):
        if known.uuid in wanted.wants or known.uuid in wanted.kept:
            continue
        if known.instance is not None and not _may_go(known):
            found.warnings.append(f"{known.name}: its instance is gone; it stays, for its rows are history")
            continue
        there = _there(known, live, known_ids)
        exported = [each.name for each in sinks if each.source == known.uuid]
        problems = list(_problems(wanted, known, there, exported))
        if downgrade is not None:
            problems = [downgrade]
        if problems:
            paste = _tombstone(version) if problems[0].startswith("removal must") else None
            found.blocked.append(Blocked(known.name, known.kind, tuple(problems), known.uuid, instruction=paste))
            continue
        found.leaving[known.uuid] = known
        found.reasons[known.uuid] = _reason(wanted, known)
        if there is not None:
            found.there[known.uuid] = there
    if not found.blocked:
        found.leftovers = _leftovers(found, wanted, live)
        ours = recorded.by_uuid.keys() | wanted.wants.keys()
        found.leftover_sinks = tuple(
            each for each in recorded.sinks if each.uuid in live.unfinished and each.uuid not in ours
        )
    return found


def _leftovers(found: Removals, wanted: Wanted, live: Live) -> dict[str, LiveObject]:
    """What a deploy made that did not finish, and that is no part of anything now. Only its journal says so: a marker
    alone may be another registry's."""
    used = {(each.uuid, each.live.key) for each in wanted.wants.values() if each.live is not None}
    used |= {(identity, each.key) for identity, each in found.there.items()}
    return {
        each.key: each
        for identity in sorted(live.unfinished)
        for each in live.by_marker.get(identity, ())
        if not each.aside and (identity, each.key) not in used
    }


def _there(known: RecordedObject, live: Live, known_ids: Container[UUID]) -> LiveObject | None:
    """What holds the object; under another name, if a deploy that did not finish renamed it. What has its name is no
    trace of it, if it is another object of ours."""
    if relation(known.kind) is None:
        return None
    ours = [each for each in live.by_marker.get(known.uuid, ()) if not each.aside and each.kind is relation(known.kind)]
    named = live.objects.get(known.key)
    if named is not None and (named.marker == known.uuid or named.marker is None or named.marker not in known_ids):
        return named
    return ours[0] if len(ours) == 1 else None


def _may_go(known: RecordedObject) -> bool:
    return known.protect is None and (known.stability is Stability.UNSTABLE or known.contents is Contents.DERIVABLE)


def _problems(wanted: Wanted, known: RecordedObject, there: LiveObject | None, exported: list[str]) -> Iterable[str]:
    tombstone = wanted.removed.get(known.uuid)
    if known.stability is Stability.STABLE and tombstone is None and known.instance is None:
        yield "removal must be declared (deprecated_since, removed_in): it is stable, and users may build on it"
    protect = known.protect or (tombstone.protect if tombstone is not None else None)
    if protect is not None:
        yield f"protected: {protect}; it is not removed. Forget it, and its rows stay where they are"
    if there is not None and there.marker != known.uuid:
        yield f"it is not dropped: {whose(there, known.uuid)}. Forget {known.name} ({known.uuid}) instead"
    for name in exported:
        yield f"the sink {name} exports it"


def _reason(wanted: Wanted, known: RecordedObject) -> str:
    tombstone = wanted.removed.get(known.uuid)
    if tombstone is not None and tombstone.removed is not None:
        return f"deprecated since {tombstone.removed.deprecated_since}, removed in {tombstone.removed.removed_in}"
    if known.instance is not None:
        return "its instance is gone"
    return f"{known.stability.value}, no longer declared"


def _tombstone(version: str) -> str:
    return f'removed: {{deprecated_since: "{version}", removed_in: "{version}"}}'
