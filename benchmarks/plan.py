"""A benchmark of planning a migration of built-in objects.

``python -m benchmarks.plan`` prints a table for people and, as its last line, one JSON object for scripts.

The catalog has n objects with three edges for each: a tenth tables, the others views over them and over each other. It
is declared (``load_objects``, which parses every query), and then planned: for the first time, when nothing changed,
when one table in a hundred got a wider column that half of its readers use, and when all of them did. ``slope`` is the
exponent by which CPU time, which does not depend on the machine's load, grows between the smallest size and the
largest: 1 is linear. It is an error if a plan takes more than ``--limit`` seconds of CPU time at the largest size.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from airflow_provider_rfr.builtins.declarations import load_objects
from airflow_provider_rfr.builtins.model import (
    ActualState,
    BuiltinObject,
    CatalogSpec,
    Column,
    Kind,
    LiveObject,
    RegistryState,
    stable_id,
)
from airflow_provider_rfr.builtins.plan import Plan
from airflow_provider_rfr.builtins.planner import plan

SIZES = (1_250, 2_500, 5_000, 10_000)
EDGES = 3
LOAD = "load"
CASES = {
    LOAD: "declarations are loaded, every query is read",
    "first": "first deploy",
    "unchanged": "nothing changed",
    "one_in_a_hundred": "one table in a hundred is wider",
    "every_table": "every table is wider",
}
NEVER_CHANGED = 0
Times = dict[str, float]
Made = TypeVar("Made")
PROJECT = "bench"


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of objects")
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many is taken")
    parser.add_argument("--limit", type=float, default=2.0, help="seconds for a plan of the largest size")
    options = parser.parse_args()
    cases: dict[str, Any] = {name: [] for name in CASES}
    for size in sorted(options.sizes):
        for name, times, steps in measure(size, options.repeat):
            cases[name].append({"objects": size, "edges": edges(size), **times, "steps": steps})
    for name, runs in cases.items():
        show(name, runs)
    later = [runs[-1] for name, runs in cases.items() if name != LOAD]
    slowest = max(run["cpu_seconds"] for run in later)
    figures = {
        "cases": cases,
        "slopes": {name: slope(runs) for name, runs in cases.items()},
        "slowest_seconds": max(run["seconds"] for run in later),
        "slowest_cpu_seconds": slowest,
        "limit_seconds": options.limit,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "ok": slowest < options.limit,
    }
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


def measure(size: int, repeat: int) -> list[tuple[str, Times, int]]:
    """Return the times of each case, and the number of steps of its plan."""
    declared = catalog(size, every=NEVER_CHANGED)
    times, wanted = timed(1, lambda: load_objects(declared.objects, project=PROJECT, version=declared.version))
    cases = [(LOAD, times, 0)]
    times, first = timed(1, lambda: plan(wanted, RegistryState(), ActualState()))
    recorded, live = deployed(first)
    cases.append(("first", times, len(first.steps)))
    for name, every in (("unchanged", NEVER_CHANGED), ("one_in_a_hundred", 100), ("every_table", 1)):
        times, later = planned(repeat, catalog(size, every=every), recorded, live)
        assert later.applicable, later.blocked[:3]
        cases.append((name, times, len(later.steps)))
    return cases


def planned(repeat: int, wanted: CatalogSpec, recorded: RegistryState, live: ActualState) -> tuple[Times, Plan]:
    return timed(repeat, lambda: plan(wanted, recorded, live))


def timed(repeat: int, work: Callable[[], Made]) -> tuple[Times, Made]:
    """Run the work several times, and return the shortest times and the last result."""
    seconds, cpu = [], []
    for _ in range(repeat):
        gc.collect()
        start, cpu_start = time.perf_counter(), time.process_time()
        result = work()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    return {"seconds": round(min(seconds), 4), "cpu_seconds": round(min(cpu), 4)}, result


def tables_of(size: int) -> int:
    return max(1, size // 10)


def edges(size: int) -> int:
    """Count the edges: three for each object, all of them from views."""
    return sum(len(inputs) for inputs in reads(size).values())


def reads(size: int) -> dict[int, list[int]]:
    """Return the objects that each view reads: tables, and views before it, so that chains are long."""
    generator = random.Random(20261121)
    tables = tables_of(size)
    wanted, views = EDGES * size, size - tables
    inputs = {}
    for number in range(tables, size):
        share = wanted * (number - tables + 1) // views - wanted * (number - tables) // views
        near = range(max(0, number - 200), number)
        pool = [*range(tables), *near] if generator.random() < 0.5 else range(tables)
        inputs[number] = sorted({generator.choice(pool) for _ in range(4 * share)})[:share]
    return inputs


def catalog(size: int, *, every: int) -> CatalogSpec:
    """Return a declaration in which one table in ``every`` has a wider column."""
    objects = []
    for number in range(tables_of(size)):
        wider = every != NEVER_CHANGED and number % every == 0
        columns = (Column("a", "bigint" if wider else "int"), *(Column(name, "string") for name in "bcde"))
        name = f"bench.o{number:05}"
        objects.append(BuiltinObject(Kind.TABLE, name, stable_id(PROJECT, name), columns))
    for number, inputs in reads(size).items():
        name = f"bench.o{number:05}"
        column = "a" if number % 2 else "b"
        used = (f"t{base}.{column if base < tables_of(size) else 'x'}" for base in inputs)
        selected = ", ".join(f"{reference} AS c{place}" for place, reference in enumerate(used))
        tables = " CROSS JOIN ".join(f"bench.o{base:05} t{base}" for base in inputs)
        query = f"SELECT 1 AS x, {selected} FROM {tables}"
        objects.append(BuiltinObject(Kind.VIEW, name, stable_id(PROJECT, name), query=query))
    return CatalogSpec(PROJECT, "1.1" if every else "1.0", tuple(objects))


def deployed(first: Plan) -> tuple[RegistryState, ActualState]:
    """Return the registry and the catalog as the first deploy leaves them."""
    records = tuple(replace(record, deploy_id="d1") for record in first.records)
    live = {
        record.key: LiveObject(
            record.name,
            Kind.TABLE if record.kind is Kind.TABLE else Kind.VIEW,
            record.uuid,
            record.columns,
            query=record.sql,
        )
        for record in records
    }
    return RegistryState(1, first.version, records), ActualState(live)


def slope(runs: list[dict[str, Any]]) -> float | None:
    """Return the exponent between the smallest size and the largest, or None for one size."""
    small, large = runs[0], runs[-1]
    if small["objects"] == large["objects"]:
        return None
    return round(
        math.log(large["cpu_seconds"] / small["cpu_seconds"]) / math.log(large["objects"] / small["objects"]), 2
    )


def show(name: str, runs: list[dict[str, Any]]) -> None:
    """Print a table of one case."""
    print(f"\n{CASES[name]}")
    print(f"{'objects':>12}{'edges':>12}{'seconds':>12}{'cpu':>12}{'steps':>12}")
    for run in runs:
        print(
            f"{run['objects']:>12,}{run['edges']:>12,}{run['seconds']:>12.3f}{run['cpu_seconds']:>12.3f}{run['steps']:>12,}"
        )
    if (exponent := slope(runs)) is not None:
        print(f"slope {exponent:.2f}")


if __name__ == "__main__":
    sys.exit(main())
