"""Drift, and the origin of a change: what is in the catalog, or what is recorded.

Objects that an unfinished deploy left are not as recorded either. They say so in their properties, written in the
same commit as the change. That is not drift, and the next deploy starts from what they are."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredObject, relation
from airflow_provider_rfr.builtins.planning.diff import Change, ColumnChange, diff_columns, folded
from airflow_provider_rfr.builtins.planning.plan import Policies
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.builtins.state import DEPLOY, LiveKind, LiveObject, RecordedObject

_FORMAT = "format-version"
"""Property that REST catalogs take as a table is made, and do not keep as one."""
_WORDS = {
    Change.ADD: "column {column} was added",
    Change.ADD_REQUIRED: "column {column} was added",
    Change.DROP: "column {column} was dropped",
    Change.WIDEN: "{column} is {after}, not {before}",
    Change.RETYPE: "{column} is {after}, not {before}",
    Change.RELAX: "{column} is optional, not required",
    Change.REQUIRE: "{column} is required, not optional",
    Change.REORDER: "the columns are in the order {after}",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a change starts from.

    :ivar contract: fingerprint that instructions start from
    :ivar remembered: the columns still say what they were renamed from
    :ivar left: columns that were added by hand and stay
    :ivar note: why this is not what is recorded
    """

    columns: tuple[Column, ...]
    contract: str
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    remembered: bool = True
    left: tuple[Column, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """How an object was found.

    :ivar origin: None: there is nothing, the object is to be made
    :ivar drift: what was changed by hand, as text
    :ivar conflicts: what stops any change of it
    :ivar adopted: it becomes ours
    :ivar rewrite_text: a view's text is neither the recorded nor the declared one, and is to be restored
    """

    origin: Origin | None = None
    drift: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    rewrite_text: bool = False
    adopted: bool = False


def same_names(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether two lists of names, or of expressions over them, say the same."""
    return [each.casefold() for each in old] == [each.casefold() for each in new]


def find(
    desired: DesiredObject, policies: Policies, leaving: Container[UUID] = (), unfinished: Container[UUID] = ()
) -> Found:
    """How the object is found.

    :param leaving: ids of objects that give up their names in the same deploy
    :param unfinished: ids of objects that an unfinished deploy began to change
    """
    if desired.recorded is None:
        live = desired.live
        if live is None or live.marker in leaving or relation(desired.kind) is None:
            return Found()
        if live.marker == desired.uuid:
            note = "it is there with our marker, though not recorded"
            return Found(_from_live(desired, live, note)) if live.kind is relation(desired.kind) else Found()
        if live.marker is not None or desired.key not in policies.adopt:
            remedy = f"; rename one of the two, or adopt {desired.obj.name} if it is what is declared"
            taken = f"the name of the {desired.kind.value} {desired.obj.name} is taken: {whose(live, desired.uuid)}"
            return Found(conflicts=(f"{taken}{remedy if live.marker is None else ''}",))
        problems = list(_not_as_declared(desired, live))
        if problems:
            return Found(conflicts=(f"{live.name} can't be adopted: {'; '.join(problems)}",))
        return Found(_from_live(desired, live, None), adopted=True)
    return _recorded(desired, desired.recorded, policies, desired.uuid in unfinished)


def whose(live: LiveObject, expected: UUID) -> str:
    """A sentence that says whose object it is, if not the expected one."""
    if live.marker is None:
        return f"the {live.kind.value} {live.name} is there and lacks our marker: no deploy made it"
    return f"the {live.kind.value} {live.name} is there and carries the marker of {live.marker}, not of {expected}"


def _not_as_declared(desired: DesiredObject, live: LiveObject) -> Iterator[str]:
    if live.kind is not relation(desired.kind):
        yield f"it is a {live.kind.value}, declared is a {desired.kind.value}"
    elif live.name != desired.obj.name:
        yield f"its name is written {live.name}; declare it so"
    elif desired.obj.columns:
        yield from _words(diff_columns(desired.obj.columns, live.columns))


def _recorded(desired: DesiredObject, known: RecordedObject, policies: Policies, unfinished: bool) -> Found:
    live, was = desired.live, relation(known.kind)
    if was is None:
        return Found(_from_record(known))
    if live is None:
        # A table that does not exist any more took its rows along: never repaired silently, whatever the cause.
        gone = "it is gone from the catalog"
        conflicts = (f"{gone}: remove or forget it, or let it be repaired",) if policies.drift == "adopt" else ()
        return Found() if unfinished and was is LiveKind.VIEW else Found(drift=(gone,), conflicts=conflicts)
    if live.marker != desired.uuid:
        if live.marker is None and desired.key in policies.adopt and not list(_not_as_declared(desired, live)):
            return Found(_from_live(desired, live, None), adopted=True)
        return Found(_from_record(known), (whose(live, desired.uuid),), (whose(live, desired.uuid),))
    drift = tuple(_drift(desired, known, live))
    # An object under neither name may be a user's copy with its properties; of those only the journal is proof.
    at_home = live.key in (known.key, desired.key)
    if drift and (unfinished or (at_home and is_unfinished(known, live))):
        deploy = live.properties.get(DEPLOY, "an earlier one")
        note = f"deploy {deploy} did not finish; continuing from what it left"
        if live.kind is not relation(known.kind):
            return Found(None if live.kind is not relation(desired.kind) else _from_live(desired, live, note))
        text = (
            live.kind is LiveKind.VIEW and desired.sql is not None and (live.query or "").split() != desired.sql.split()
        )
        return Found(_from_live(desired, live, note), rewrite_text=text)
    if not drift or policies.drift == "fail":
        return Found(_from_record(known), drift)
    if live.key not in (known.key, desired.key) and policies.drift == "adopt":
        return Found(_from_record(known), drift, (f"it is called {live.name} now: declare that name, or repair it",))
    if was is LiveKind.VIEW:
        origin = replace(_from_record(known), note="changed by hand")
        return Found(origin, drift, rewrite_text=policies.drift == "repair")
    return _decided(desired, known, live, drift, policies)


def _decided(
    desired: DesiredObject, known: RecordedObject, live: LiveObject, drift: tuple[str, ...], policies: Policies
) -> Found:
    """A table that was changed by hand, under the policy adopt or repair."""
    changes = diff_columns(known.columns, live.columns) if live.columns else ()
    origin = replace(_from_live(desired, live, "changed by hand"), contract=known.fingerprints.contract.digest)
    if policies.drift == "repair":
        return Found(origin, drift)
    added = {each.column.casefold() for each in changes if each.what in (Change.ADD, Change.ADD_REQUIRED)}
    wanted = folded(desired.obj.columns)
    left = tuple(each for each in live.columns if each.name.casefold() in added - set(wanted))
    against = [f"{words} by hand" for each in changes if _contradicts(each, desired, live) for words in _words([each])]
    against += _rest(
        live,
        desired.obj.partitioning,
        desired.obj.keys,
        {name: desired.obj.properties[name] for name in known.properties if name in desired.obj.properties},
    )
    conflicts = tuple(f"{each}, and adopting that means to declare it so" for each in against if each in drift)
    return Found(replace(origin, left=left), drift, conflicts)


def _contradicts(change: ColumnChange, desired: DesiredObject, live: LiveObject) -> bool:
    wanted, there = folded(desired.obj.columns), folded(live.columns)
    if change.what is Change.REORDER:
        return [each for each in there if each in wanted] != [each for each in wanted if each in there]
    declared, now = wanted.get(change.column.casefold()), there.get(change.column.casefold())
    if declared is None or change.what in (Change.ADD, Change.ADD_REQUIRED):
        return False
    return now is None or (declared.type, declared.required) != (now.type, now.required)


def is_unfinished(known: RecordedObject, live: LiveObject) -> bool:
    """Whether a deploy changed it and did not get as far as the registry."""
    deploy = live.properties.get(DEPLOY)
    if deploy is not None and known.deploy_id and deploy != known.deploy_id:
        return True
    return live.stamp is not None and live.stamp != known.fingerprints.contract.digest


def _drift(desired: DesiredObject, known: RecordedObject, live: LiveObject) -> Iterator[str]:
    if live.kind is not relation(known.kind):
        yield f"it is a {live.kind.value}, not a {known.kind.value}"
        return
    if live.key not in (known.key, desired.key):
        yield f"it is called {live.name} now"
    if live.kind is LiveKind.TABLE and live.columns:
        yield from (f"{each} by hand" for each in _words(diff_columns(known.columns, live.columns)))
    yield from _rest(live, known.partitioning, known.keys, known.properties)
    if live.query is not None and live.query not in (known.sql, desired.sql):
        texts = [each.split() for each in (known.sql, desired.sql) if each is not None]
        if texts and live.query.split() not in texts:
            yield "its text was changed by hand"


def _rest(
    live: LiveObject, partitioning: Sequence[str], keys: Sequence[str], properties: Mapping[str, str]
) -> Iterator[str]:
    """What else than its columns is not as it should be."""
    if live.constraints is not None and not same_names(live.constraints.partitioning, partitioning):
        yield f"it is partitioned by {_listed(live.constraints.partitioning)}, not {_listed(partitioning)}"
    if live.constraints is not None and not same_names(live.constraints.keys, keys):
        yield f"its keys are {_listed(live.constraints.keys)}, not {_listed(keys)}"
    for name in properties if live.properties else ():
        if name != _FORMAT and live.properties.get(name) != properties[name]:
            yield f"property {name} is {live.properties.get(name)!r}, not {properties[name]!r}"


def _words(changes: Sequence[ColumnChange]) -> Iterator[str]:
    for each in changes:
        if each.what in _WORDS:
            yield _WORDS[each.what].format(column=each.column, before=each.before, after=each.after)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _from_record(known: RecordedObject) -> Origin:
    return Origin(known.columns, known.fingerprints.contract.digest, known.partitioning, known.keys)


def _from_live(desired: DesiredObject, live: LiveObject, note: str | None) -> Origin:
    known = desired.recorded
    said = folded(known.columns) if known is not None else {}
    columns = tuple(
        replace(each, renamed_from=before.renamed_from, comment=before.comment)
        if (before := said.get(each.name.casefold())) is not None
        else each
        for each in live.columns
    ) or (known.columns if known is not None else desired.obj.columns)
    partitioning = known.partitioning if known is not None else desired.obj.partitioning
    keys = known.keys if known is not None else desired.obj.keys
    if live.constraints is not None:
        partitioning, keys = live.constraints.partitioning, live.constraints.keys
    fallback = known.fingerprints.contract.digest if known is not None else ""
    return Origin(columns, live.stamp or fallback, partitioning, keys, known is not None, (), note)
