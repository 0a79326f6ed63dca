"""Drift, and the origin of a change: what is in the catalog, or what is recorded.

Objects that an unfinished deploy left are not as recorded either. They say so in their properties, written in the
same commit as the change. That is not drift, and the next deploy starts from what they are."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredObject, relation
from airflow_provider_rfr.builtins.planning.columns import Change, ColumnChange, diff_columns, folded
from airflow_provider_rfr.builtins.planning.plan import Policies
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.builtins.state import DEPLOY, LiveKind, LiveObject, RecordedObject

_FORMAT = "format-version"
"""Property that REST catalogs take as a table is made, and do not keep as one."""
_BY_HAND = {
    Change.ADD: Why.COLUMN_ADDED,
    Change.ADD_REQUIRED: Why.COLUMN_ADDED,
    Change.DROP: Why.COLUMN_DROPPED,
    Change.WIDEN: Why.COLUMN_TYPE,
    Change.RETYPE: Why.COLUMN_TYPE,
    Change.RELAX: Why.COLUMN_OPTIONAL,
    Change.REQUIRE: Why.COLUMN_REQUIRED,
    Change.REORDER: Why.COLUMN_ORDER,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a change starts from.

    :ivar contract: fingerprint of the columns
    :ivar remembered: the columns still say what they were
    :ivar left: columns that were added by hand and stay
    :ivar note: why this is not what is recorded
    :ivar by_hand: somebody changed the columns by hand
    """

    columns: tuple[Column, ...]
    contract: str
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    remembered: bool = True
    left: tuple[Column, ...] = ()
    note: Reason | None = None
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """How an object was found.

    :ivar origin: None: there is nothing, the object is to be made
    :ivar drift: what was changed by hand
    :ivar conflicts: what stops any change of it
    :ivar adopted: it becomes ours
    :ivar rewrite_text: a view's text is neither the recorded nor the declared one, and is to be restored
    """

    origin: Origin | None = None
    drift: tuple[Reason, ...] = ()
    conflicts: tuple[Reason, ...] = ()
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
            note = because(Why.NOT_RECORDED)
            return Found(_from_live(desired, live, note)) if live.kind is relation(desired.kind) else Found()
        if live.marker is not None or desired.key not in policies.adopt:
            why = Why.NAME_TAKEN if live.marker is not None else Why.NAME_TAKEN_ADOPT
            return Found(conflicts=(because(why, desired.kind.value, desired.obj.name, whose(live, desired.uuid)),))
        if problems := list(_not_as_declared(desired, live)):
            return Found(conflicts=(because(Why.NOT_ADOPTABLE, live.name, "; ".join(map(str, problems))),))
        return Found(_from_live(desired, live, None), adopted=True)
    return _recorded(desired, desired.recorded, policies, desired.uuid in unfinished)


def whose(live: LiveObject, expected: UUID) -> Reason:
    """Whose object it is, if not the expected one."""
    if live.marker is None:
        return because(Why.NOT_OURS, live.kind.value, live.name)
    return because(Why.MARKED_OTHER, live.kind.value, live.name, live.marker, expected)


def _not_as_declared(desired: DesiredObject, live: LiveObject) -> Iterator[Reason]:
    if live.kind is not relation(desired.kind):
        yield because(Why.IS_OTHER_KIND, live.kind.value, desired.kind.value)
    elif live.name != desired.obj.name:
        yield because(Why.WRITTEN_SO, live.name)
    elif desired.obj.columns:
        yield from _by_hand(diff_columns(desired.obj.columns, live.columns))


def _recorded(desired: DesiredObject, known: RecordedObject, policies: Policies, unfinished: bool) -> Found:
    live, was = desired.live, relation(known.kind)
    if was is None:
        return Found(_from_record(known))
    if live is None:
        # A table that does not exist any more took its rows along: never repaired silently, whatever the cause.
        conflicts = (because(Why.GONE_ADOPT),) if policies.drift == "adopt" else ()
        again = unfinished and was is LiveKind.VIEW
        return Found() if again else Found(drift=(because(Why.GONE),), conflicts=conflicts)
    if live.marker != desired.uuid:
        if live.marker is None and desired.key in policies.adopt and not list(_not_as_declared(desired, live)):
            return Found(_from_live(desired, live, None), adopted=True)
        return Found(_from_record(known), (whose(live, desired.uuid),), (whose(live, desired.uuid),))
    drift = tuple(_drift(desired, known, live))
    # An object under neither name may be a user's copy with its properties; of those only the journal is proof.
    at_home = live.key in (known.key, desired.key)
    if drift and (unfinished or (at_home and is_unfinished(known, live))):
        note = because(Why.UNFINISHED, live.properties.get(DEPLOY, "an earlier one"))
        if live.kind is not relation(known.kind):
            return Found(None if live.kind is not relation(desired.kind) else _from_live(desired, live, note))
        text = (
            live.kind is LiveKind.VIEW and desired.sql is not None and (live.query or "").split() != desired.sql.split()
        )
        return Found(_from_live(desired, live, note), rewrite_text=text)
    if not drift or policies.drift == "fail":
        return Found(_from_record(known), drift)
    if live.key not in (known.key, desired.key) and policies.drift == "adopt":
        return Found(_from_record(known), drift, (because(Why.DECLARE_NAME, live.name),))
    if was is LiveKind.VIEW:
        origin = replace(_from_record(known), note=because(Why.CHANGED_BY_HAND))
        return Found(origin, drift, rewrite_text=policies.drift == "repair")
    return _decided(desired, known, live, drift, policies)


def _decided(
    desired: DesiredObject, known: RecordedObject, live: LiveObject, drift: tuple[Reason, ...], policies: Policies
) -> Found:
    """A table that was changed by hand, under the policy adopt or repair."""
    changes = diff_columns(known.columns, live.columns) if live.columns else ()
    origin = _from_live(desired, live, because(Why.CHANGED_BY_HAND))
    origin = replace(origin, contract=known.fingerprints.contract.digest, by_hand=True)
    if policies.drift == "repair":
        return Found(origin, drift)
    added = {each.column.casefold() for each in changes if each.what in (Change.ADD, Change.ADD_REQUIRED)}
    wanted = folded(desired.obj.columns)
    left = tuple(each for each in live.columns if each.name.casefold() in added - set(wanted))
    against = list(_by_hand([each for each in changes if _contradicts(each, desired, live)]))
    against += _rest(
        live,
        desired.obj.partitioning,
        desired.obj.keys,
        {name: desired.obj.properties[name] for name in known.properties if name in desired.obj.properties},
    )
    conflicts = tuple(because(Why.DECLARE_IT, each) for each in against if each in drift)
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


def _drift(desired: DesiredObject, known: RecordedObject, live: LiveObject) -> Iterator[Reason]:
    if live.kind is not relation(known.kind):
        yield because(Why.IS_OTHER_KIND, live.kind.value, known.kind.value)
        return
    if live.key not in (known.key, desired.key):
        yield because(Why.CALLED, live.name)
    if live.kind is LiveKind.TABLE and live.columns:
        yield from _by_hand(diff_columns(known.columns, live.columns))
    yield from _rest(live, known.partitioning, known.keys, known.properties)
    if live.query is not None and live.query not in (known.sql, desired.sql):
        texts = [each.split() for each in (known.sql, desired.sql) if each is not None]
        if texts and live.query.split() not in texts:
            yield because(Why.VIEW_TEXT)


def _rest(
    live: LiveObject, partitioning: Sequence[str], keys: Sequence[str], properties: Mapping[str, str]
) -> Iterator[Reason]:
    """What else than its columns is not as it should be."""
    if live.constraints is not None and not same_names(live.constraints.partitioning, partitioning):
        yield because(Why.PARTITIONED, _listed(live.constraints.partitioning), _listed(partitioning))
    if live.constraints is not None and not same_names(live.constraints.keys, keys):
        yield because(Why.KEYED, _listed(live.constraints.keys), _listed(keys))
    for name in properties if live.properties else ():
        if name != _FORMAT and live.properties.get(name) != properties[name]:
            yield because(Why.PROPERTY, name, repr(live.properties.get(name)), repr(properties[name]))


def _by_hand(changes: Sequence[ColumnChange]) -> Iterator[Reason]:
    for each in changes:
        why = _BY_HAND.get(each.what)
        if why is Why.COLUMN_TYPE:
            yield because(why, each.column, each.after, each.before)
        elif why is not None:
            yield because(why, each.after if why is Why.COLUMN_ORDER else each.column)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _from_record(known: RecordedObject) -> Origin:
    return Origin(known.columns, known.fingerprints.contract.digest, known.partitioning, known.keys)


def _from_live(desired: DesiredObject, live: LiveObject, note: Reason | None) -> Origin:
    known = desired.recorded
    said = folded(known.columns) if known is not None else {}
    columns = tuple(
        replace(each, was=before.was, comment=before.comment)
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
