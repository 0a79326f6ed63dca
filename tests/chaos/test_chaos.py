"""Kills as the campaign deals them; and whether its plan can be repeated and its oracle can see."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.sample_api.dataset import Dataset
from tests.chaos.battle import Battle
from tests.chaos.campaign import Campaign, figures
from tests.chaos.incremental import PATH, ChangingSource, SyncBattle, sync_scenarios
from tests.chaos.oracle import Source, broken_chains, refetched
from tests.chaos.plan import (
    CHILDREN,
    COLLECTIONS,
    ITEMS,
    SIZES,
    AttemptPlan,
    Blow,
    Moment,
    Scenario,
    Strike,
    Victim,
    When,
    scenarios,
)
from tests.chaos.report import Report
from tests.profile import share

KILLS, SEED = share(25, least=5), 1
SHRINK = {"kind": "shrink", "collection": COLLECTIONS[ITEMS], "records": 3}


@pytest.mark.parametrize(
    ("plan", "battle"), [pytest.param(scenarios, Battle, marks=pytest.mark.gate), (sync_scenarios, SyncBattle)]
)
def test_after_kills_nothing_is_lost_doubled_or_seen_by_half(
    plan: Callable[[int], Iterator[Scenario]], battle: type[Battle], tmp_path: Path
) -> None:
    campaign = Campaign(SEED, tmp_path, plan=plan, battle=battle)
    report = campaign.run(KILLS)
    print(json.dumps(figures(campaign)))
    assert report.kills >= KILLS
    assert report.published == report.scenarios
    assert report.reads > report.scenarios, "the reader looked on"
    assert report.clean, report.notes


def blind(seed: int) -> Iterator[Scenario]:
    """A refresh that does not look whether the source changed: killed, then resumed from a source that shrank."""
    strike = Strike(Blow.KILL, Victim.DRIVER, Moment(When.PAGES, 0.3, 0.1), 0, 0)
    attempts = (AttemptPlan((strike,), (), None, False), AttemptPlan((), (), SHRINK, False))
    options = {"concurrency": 4, "round_seconds": 3, "head_start": True, "on_source_change": "accept"}
    yield Scenario(0, (ITEMS,), False, True, 0.08, 10, options, attempts)


def test_the_campaign_sees_the_rows_that_a_blind_refresh_loses(tmp_path: Path) -> None:
    report = Campaign(0, tmp_path, plan=blind).run(2)
    assert report.kills == 1 and report.published == 1
    assert report.rows_lost > 0
    assert report.half_tables > 0, "the reader saw the same"
    assert not report.clean


@pytest.mark.check
@pytest.mark.parametrize("plan", [scenarios, sync_scenarios])
def test_the_plan_of_a_campaign_depends_on_its_seed_alone(plan: Callable[[int], Iterator[Scenario]]) -> None:
    first = list(itertools.islice(plan(7), 50))
    assert first == list(itertools.islice(plan(7), 50))
    assert first != list(itertools.islice(plan(8), 50))


@pytest.mark.check
def test_a_campaign_plans_every_victim_every_blow_and_every_fault() -> None:
    attempts = [attempt for scenario in itertools.islice(scenarios(1), 200) for attempt in scenario.attempts]
    strikes = [strike for attempt in attempts for strike in attempt.strikes]
    assert {strike.victim for strike in strikes} == set(Victim)
    assert {strike.blow for strike in strikes} == set(Blow)
    kinds = {fault["kind"] for attempt in attempts for fault in attempt.faults}
    assert kinds >= {"rate_limit", "error", "latency", "hang", "truncate", "malformed", "repeat_cursor", "repeat_page"}
    assert {attempt.change["kind"] for attempt in attempts if attempt.change} == {"shrink", "edit"}


def records(dataset: Dataset, stream: str) -> list[dict[str, Any]]:
    family = dataset.family(COLLECTIONS[stream])
    return [{**record, "_rfr_generation": 1} for one in family for record in one.part(0, len(one.numbers))]


def judged(source: Source, rows: list[dict[str, Any]]) -> tuple[int, int, int]:
    served = {(row["id"], row["revision"]) for row in rows}
    findings = source.judge(pa.Table.from_pylist(rows), served)
    return findings.rows_lost, findings.rows_doubled, findings.rows_foreign


@pytest.mark.check
@pytest.mark.parametrize("stream", [ITEMS, CHILDREN])
def test_the_oracle_finds_a_lost_a_doubled_and_a_foreign_row(stream: str) -> None:
    rows = records(Dataset(SIZES), stream)
    source = Source(stream, 0)
    assert judged(source, rows) == (0, 0, 0)
    assert judged(source, rows[1:]) == (1, 0, 0)
    assert judged(source, [*rows, rows[5]]) == (0, 1, 0)
    assert judged(source, [{**rows[0], "revision": 9}, *rows[1:]]) == (1, 0, 1)
    changed = {**rows[0], "sku": "another", "reference": "another"}
    assert judged(source, [changed, *rows[1:]]) == (1, 0, 1)


@pytest.mark.check
def test_the_oracle_finds_a_row_that_the_api_never_gave() -> None:
    rows = records(Dataset(SIZES), ITEMS)
    served = {(row["id"], row["revision"]) for row in rows[1:]}
    findings = Source(ITEMS, 0).judge(pa.Table.from_pylist(rows), served)
    assert (findings.rows_lost, findings.rows_foreign) == (1, 1)


def shipments(source: ChangingSource) -> list[dict[str, Any]]:
    collection = source.dataset.family(PATH)[0]
    return collection.part(0, len(collection.numbers))


def found(source: ChangingSource, rows: list[dict[str, Any]], state: datetime | None) -> tuple[int, int, int]:
    findings = source.disagreements(pa.Table.from_pylist(rows), state)
    return findings.rows_lost, findings.rows_doubled, findings.rows_foreign


@pytest.mark.check
def test_the_oracle_finds_a_state_that_is_ahead_of_its_rows() -> None:
    source = ChangingSource()
    old, changed_at = shipments(source), datetime.fromisoformat("2026-11-01T00:00:00+00:00")
    source.change({"kind": "change_shipments", "edit": [1, 2], "add": 1, "remove": [3], "at": changed_at.isoformat()})
    new, before = shipments(source), changed_at - timedelta(seconds=1)
    assert found(source, old, before) == (0, 0, 0)
    assert found(source, new, before) == (0, 0, 0), "a sync may read more than its state says"
    assert found(source, new, changed_at) == (0, 0, 0)
    assert found(source, old, changed_at) == (4, 0, 0)
    assert found(source, [*new, new[0]], changed_at) == (0, 1, 0)
    assert found(source, [*new, {**new[0], "id": 9999}], changed_at) == (0, 0, 1)
    findings = source.differences(pa.Table.from_pylist(old))
    assert (findings.rows_lost, findings.rows_doubled, findings.rows_foreign) == (1, 0, 3)
    again = changed_at + timedelta(hours=1)
    source.change({"kind": "change_shipments", "edit": [1], "add": 0, "remove": [], "at": again.isoformat()})
    assert found(source, old, changed_at) == (3, 0, 0), "the next sync reads what changed again"
    assert found(source, old, again) == (4, 0, 0)


@pytest.mark.check
def test_a_partition_may_be_the_old_version_or_the_new_one_but_no_mixture() -> None:
    source, dataset = Source(ITEMS, 0), Dataset(SIZES)
    old = records(dataset, ITEMS)
    source.change(SHRINK)
    dataset.shrink(COLLECTIONS[ITEMS], SHRINK["records"])
    new = records(dataset, ITEMS)
    assert judged(source, old) == (0, 0, 0)
    assert judged(source, new) == (0, 0, 0)
    first = SIZES.items_per_partition
    assert judged(source, [*old[:first], *new[first - 3 :]]) == (0, 0, 0), "partitions may differ"
    # A page before the change, the second one after it: what a resume by page numbers would give unchecked.
    shifted = [*old[:20], *old[23:]]
    assert judged(source, shifted) == (3, 0, 0)


@pytest.mark.check
def test_by_cursors_only_what_went_meanwhile_may_be_missing() -> None:
    source, dataset = Source(CHILDREN, 0), Dataset(SIZES)
    old = records(dataset, CHILDREN)
    source.change({**SHRINK, "collection": COLLECTIONS[CHILDREN]})
    assert judged(source, old) == (0, 0, 0)
    assert judged(source, old[2:]) == (0, 0, 0), "they were deleted while it was read"
    assert judged(source, old[4:]) == (1, 0, 0)


def ledger(pages: list[list[int]], **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "partition_ordinal": 0,
            "chain": 0,
            "page": number,
            "complete": number == len(pages),
            "records": "\n".join(json.dumps({"id": one, "revision": 0}) for one in ids),
            "request": f"GET /partitions/0/items?page={number}",
            **changes,
        }
        for number, ids in enumerate(pages, start=1)
    ]


@pytest.mark.check
def test_the_oracle_finds_a_chain_that_is_not_whole() -> None:
    pages = [[1, 2], [3, 4]]
    log = [{"path": "/partitions/0/items", "page": str(ids), "records": [[one, 0] for one in ids]} for ids in pages]
    table = pa.table({"id": [1, 2, 3, 4], "revision": [0, 0, 0, 0]})
    whole = ledger(pages)
    superseded = ledger([[1, 2]], chain=0, complete=False)
    newer = ledger(pages, chain=1)
    assert broken_chains(pa.Table.from_pylist(whole), table, log) == 0
    assert broken_chains(pa.Table.from_pylist([*superseded, *newer]), table, log) == 0
    assert broken_chains(pa.Table.from_pylist([*whole, whole[0]]), table, log) == 2
    assert broken_chains(pa.Table.from_pylist(whole[1:]), table, log) == 2
    assert broken_chains(pa.Table.from_pylist(whole), table, log[1:]) == 1
    assert broken_chains(pa.Table.from_pylist(whole), table.slice(1), log) == 1
    assert refetched([*log, log[0]]) == 1


def halves_of(tmp_path: Path, *tables: list[dict[str, Any]], torn: int = 0) -> int:
    battle = Battle(next(one for one in scenarios(1) if one.streams == (ITEMS,)), SimpleNamespace(), tmp_path, Report())
    battle._sources = {ITEMS: Source(ITEMS, 0)}
    seen = {bytes([number]): pa.Table.from_pylist(rows) for number, rows in enumerate(tables)}
    served = {(row["id"], 0) for row in records(Dataset(SIZES), ITEMS)}
    battle._judge_reader(ITEMS, SimpleNamespace(polls=1, torn=["gone"] * torn, vanished=0, seen=seen), served)
    return battle.report.half_tables


@pytest.mark.check
def test_a_reader_that_saw_half_a_table_is_believed(tmp_path: Path) -> None:
    rows = records(Dataset(SIZES), ITEMS)
    later = [{**row, "_rfr_generation": 2} for row in rows]
    assert halves_of(tmp_path, rows, later) == 0
    assert halves_of(tmp_path, rows[:100]) == 1
    assert halves_of(tmp_path, [*rows[:300], *later[300:]]) == 1, "half of the old one, half of the new one"
    assert halves_of(tmp_path, rows, torn=1) == 1
