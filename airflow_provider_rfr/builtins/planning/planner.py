"""From what is declared, what is recorded and what is there, to a plan: a pure function.

The same values give the same plan, whatever order they come in. Nothing is read or written here.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.planning.bookkeeping import record
from airflow_provider_rfr.builtins.planning.decide import Decider
from airflow_provider_rfr.builtins.planning.decide_sink import exports
from airflow_provider_rfr.builtins.planning.lints import lints
from airflow_provider_rfr.builtins.planning.ordering import leaving
from airflow_provider_rfr.builtins.planning.plans import Plan, sealed
from airflow_provider_rfr.builtins.planning.policies import Policies
from airflow_provider_rfr.builtins.planning.removals import Removals, removals
from airflow_provider_rfr.builtins.planning.resolve import resolve
from airflow_provider_rfr.builtins.planning.steps import Outcome, Writer
from airflow_provider_rfr.builtins.planning.tools import default_tools
from airflow_provider_rfr.builtins.planning.user_views import user_views
from airflow_provider_rfr.builtins.spec import CatalogSpec
from airflow_provider_rfr.builtins.state import Live, Recorded
from airflow_provider_rfr.builtins.wanted import Tools, Wanted, release


def plan(
    spec: CatalogSpec,
    recorded: Recorded,
    live: Live,
    *,
    policies: Policies | None = None,
    tools: Tools | None = None,
) -> Plan:
    """What a deploy would do.

    :param tools: what reads fingerprints and SQL; by default this package's own
    :raises PlanError: objects read each other in a circle. All other problems are in the plan
    """
    policies, tools = policies or Policies(), tools or default_tools()
    wanted = resolve(spec, recorded, live, tools)
    outcome = _decided(spec, wanted, recorded, live, policies, tools)
    written = Plan(
        project=spec.project,
        version=spec.version,
        recorded_version=recorded.version,
        base_revision=recorded.revision,
        policies=policies,
        canonicalizer=tools.canonicalizer,
        warnings=lints(outcome, wanted, recorded, live, tools),
        forgotten=tuple(sorted(outcome.removed.leaving)),
    )
    return sealed(_filled(written, outcome))


def _decided(
    spec: CatalogSpec, wanted: Wanted, recorded: Recorded, live: Live, policies: Policies, tools: Tools
) -> Outcome:
    """What becomes of everything."""
    downgrade = _downgrade(spec, recorded)
    removed = removals(wanted, recorded, live, spec.version, None if policies.allow_downgrade else downgrade)
    names = _give_up_names(wanted, removed)
    decider = Decider(wanted, recorded, live, policies, tools, leaving=names, downgrade=downgrade)
    decisions = decider.decide()
    for each in decisions.values():
        # What an unfinished deploy built for the same change is used, and not left over.
        removed.leftovers.pop(str(each.details.get("shadow", "")).casefold(), None)
    return Outcome(
        decisions,
        removed,
        leaving(decisions, removed, recorded, policies),
        user_views(decisions, removed.leaving, live, policies),
        exports(decisions, recorded, policies, removed.leftover_sinks),
        policies,
    )


def _filled(plan: Plan, outcome: Outcome) -> Plan:
    """With its steps, and with what is written down about what is not blocked."""
    writer, decisions = Writer(outcome), outcome.decisions.values()
    blocked = writer.blocked()
    stopped = {each.uuid for each in blocked}
    records = (
        record(each, plan.canonicalizer, plan.base_revision + 1)
        for each in sorted(decisions, key=lambda each: each.want.key)
        if each.want.uuid not in stopped
    )
    return replace(
        plan,
        steps=writer.steps(),
        dependents=writer.dependents(),
        drift=writer.drift(),
        blocked=blocked,
        drop_order=writer.drop_order(),
        create_order=writer.create_order(),
        records=tuple(each for each in records if each is not None),
        unchanged=sum(not each.touched and not each.problems for each in decisions),
        done=sum(each.done and not each.touched and not each.problems for each in decisions),
    )


def _downgrade(spec: CatalogSpec, recorded: Recorded) -> str | None:
    if recorded.version is None or release(spec.version) >= release(recorded.version):
        return None
    return f"downgrade not supported: recorded by {recorded.version}, this is {spec.version}"


def _give_up_names(wanted: Wanted, removed: Removals) -> frozenset[UUID]:
    """Objects that are called something else afterwards, or nothing."""
    renamed = {
        each.uuid
        for each in wanted.wants.values()
        if each.live is not None and each.live.name != each.obj.name
        if each.live.marker == each.uuid and each.live.key != each.key
    }
    left = {each.marker for each in removed.leftovers.values() if each.marker is not None}
    return frozenset(renamed | left | removed.leaving.keys())
