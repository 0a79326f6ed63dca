"""What the registry holds after a deploy: it follows from what is wanted, whatever steps led there."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_rfr.builtins.planning.decision import Decision
from airflow_provider_rfr.builtins.planning.plans import Verb
from airflow_provider_rfr.builtins.state import DEPLOY, RecordedObject
from airflow_provider_rfr.builtins.wanted import Want


def record(decision: Decision, canonicalizer: str, revision: int) -> RecordedObject | None:
    """The object's entry, if it is another one afterwards; who applies the plan puts its deploy's id into it."""
    want, known = decision.want, decision.want.recorded
    if known is not None and not decision.touched and not decision.done and _same(want, known, canonicalizer):
        return None
    fresh = entry(want, canonicalizer, revision)
    if decision.done and want.live is not None:
        fresh = replace(fresh, deploy_id=want.live.properties.get(DEPLOY, ""))
    elif known is not None:
        fresh = replace(fresh, deploy_id=known.deploy_id)
    if known is None:
        return fresh
    made_anew = decision.leaves or decision.how is Verb.CREATE
    under_its_name = known.physical.casefold() == known.key
    if not made_anew and not (decision.renamed and under_its_name):
        fresh = replace(fresh, physical=known.physical)
    return fresh


def entry(want: Want, canonicalizer: str, revision: int) -> RecordedObject:
    """What is wanted, as it is recorded."""
    obj = want.obj
    return RecordedObject(
        uuid=obj.id,
        name=obj.name,
        kind=obj.kind,
        physical=obj.name,
        fingerprints=want.fingerprints,
        canonicalizer=canonicalizer,
        raw_sql=obj.query,
        columns=obj.columns,
        deps=want.reads,
        stability=obj.stability,
        revision=revision,
        sql=want.sql,
        contents=obj.contents,
        protect=obj.protect,
        partitioning=obj.partitioning,
        keys=obj.keys,
        properties=dict(obj.properties),
        comment=obj.comment,
        owner=obj.owner,
        instance=want.instance,
    )


def _same(want: Want, known: RecordedObject, canonicalizer: str) -> bool:
    obj = want.obj
    return (
        known.fingerprints == want.fingerprints
        and known.canonicalizer == canonicalizer
        and known.name == obj.name
        and known.kind is obj.kind
        and known.raw_sql == obj.query
        and known.sql == want.sql
        and known.deps == want.reads
        and known.columns == obj.columns
        and known.instance == want.instance
        and (known.partitioning, known.keys) == (obj.partitioning, obj.keys)
    )
