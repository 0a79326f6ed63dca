"""All new texts are analysed over the tables as they are going to be, before a deploy touches anything."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_rfr.builtins.desired import in_order, readers_of
from airflow_provider_rfr.builtins.execution._tables import ReplaceRows
from airflow_provider_rfr.builtins.execution.engine import AnalysedQuery, Outputs, SqlEngine
from airflow_provider_rfr.builtins.execution.work import Work
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.spec import QUERIED, STORED, Column, Kind
from airflow_provider_rfr.builtins.state import RecordedObject


def analyse(work: Work, sql: SqlEngine) -> Mapping[str, Outputs]:
    """Analyse every query that the plan changes, or whose inputs it changes.

    :returns: by name of each view that is bridged, as it is compared: the outputs of its present text over what it is
        going to read
    :raises RfrError: a text can't be run
    """
    objects = {each.uuid: each for each in work.objects.values()}
    reads = {uuid: [read.uuid for read in each.deps if read.uuid] for uuid, each in objects.items()}
    order = [objects[uuid] for uuid in in_order(reads, lambda uuid: (objects[uuid].key, uuid))]
    changed = readers_of((step.uuid for step in work.plan.steps if step.uuid), (each.uuid for each in order), reads)
    asked = {each.uuid for each in order if each.uuid in changed and each.kind in QUERIED and each.sql is not None}
    bridges = [each for each in work.plan.steps if each.how is Action.BRIDGE]
    # What users' views read is known by name alone, so everything is there for them.
    needed = set(objects) if any(each.user for each in bridges) else set(asked)
    for each in reversed(order):
        if each.uuid in needed:
            needed |= {read.uuid for read in each.deps if read.uuid is not None}
    here = [each for each in order if each.uuid in needed]
    tables = {each.name: each.columns for each in here if each.kind in STORED and each.columns}
    queries = [_query(each) for each in here if each.kind is Kind.VIEW and each.sql is not None]
    queries += [_query(each) for each in here if each.kind is Kind.MATERIALIZED_VIEW and each.uuid in asked]
    texts = [AnalysedQuery(each.name, str(each.details["sql"]), optional=True) for each in bridges]
    found = sql.analyse(tables, [*queries, *texts]) if queries or texts else []
    for step in work.plan.steps:
        if step.how is Action.REWRITE:
            _analyse_rewrite(work, sql, step)
    outputs = zip(bridges, found[len(queries) :], strict=True)
    return {step.name.casefold(): each for step, each in outputs if each is not None}


def _query(obj: RecordedObject) -> AnalysedQuery:
    names = tuple(each.name for each in obj.columns)
    return AnalysedQuery(obj.name, obj.sql or "", names, is_view=obj.kind is Kind.VIEW)


def _analyse_rewrite(work: Work, sql: SqlEngine, step: Step) -> None:
    """The table may get its name only in an earlier step, so what is there now is looked for by its recorded name."""
    known = work.recorded.by_uuid.get(step.uuid) if step.uuid is not None else None
    table = work.table(known.name if known is not None else step.name) or work.table(step.name)
    if table is None:
        return
    columns = tuple(Column(each.name, each.type) for each in table.entry.columns)
    sql.analyse({step.name: columns}, [AnalysedQuery(step.name, ReplaceRows(work, step).query(table))])
