"""A plan in a file, which may be applied only to what it was made from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import orjson

from airflow_provider_rfr.builtins.planning.plans import Plan
from airflow_provider_rfr.exceptions import PlanError, StalePlanError


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> Path:
    """Write the plan; the file is complete or absent, also after a crash."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.write_text(json.dumps(plan.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(target)
    return target


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """A saved plan.

    :raises PlanError: it can't be read, is of another format, or was changed after it was saved
    """
    try:
        document = orjson.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: no plan can be read from it: {error}") from error
    if not isinstance(document, dict):
        raise PlanError(f"{path}: this is no plan")
    return Plan.from_json(document)


def ensure_current(saved: Plan, fresh: Plan) -> Plan:
    """The saved plan, if the present state would give the same one.

    :param fresh: the plan of now, made with the saved one's policies
    :raises StalePlanError: something has changed since, with what
    """
    if saved.plan_hash == fresh.plan_hash and saved.base_revision == fresh.base_revision:
        return saved
    raise StalePlanError(f"plan {saved.plan_hash[:12]} is stale: {'; '.join(_differences(saved, fresh))}; plan again")


def _differences(saved: Plan, fresh: Plan) -> list[str]:
    found = []
    if saved.project != fresh.project:
        found.append(f"it is for project {saved.project}, this is {fresh.project}")
    if saved.base_revision != fresh.base_revision:
        found.append(f"it was made from revision {saved.base_revision}, the registry is at {fresh.base_revision}")
    if saved.version != fresh.version:
        found.append(f"it was made by version {saved.version}, this is {fresh.version}")
    if saved.policies != fresh.policies:
        found.append("its policies are others")
    before = {(each.name, each.how.value) for each in saved.steps}
    after = {(each.name, each.how.value) for each in fresh.steps}
    found += [f"{how} {name} is no longer to be done" for name, how in sorted(before - after)[:5]]
    found += [f"{how} {name} has to be done as well" for name, how in sorted(after - before)[:5]]
    return found or ["a step has other details, or another object is blocked"]
