"""Deploys until a deploy ends; each one but the last is killed by SIGKILL at one of its Iceberg effects.

Run as a process by the crash tests, with a folder as its only argument. Each deploy is a process forked from one that
has imported everything and started nothing. Prints one JSON line: how often a deploy was killed, and before and after
what.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_rfr.lake import migrated_table
from tests.kill_points import die, intercept
from tests.unit.builtins.catalogs import made, mview, table
from tests.unit.builtins.execution import test_two_deploys as small
from tests.unit.builtins.execution.places import Place

_OLD, _NEW = ("id int", "n int"), ("id int", "n string")
BEFORE = replace(
    small.BEFORE,
    objects=(
        *small.BEFORE.objects,
        table("ops.built", *_OLD),
        table("ops.emptied", *_OLD, keep=False),
        table("ops.dropped", *_OLD),
        mview("ops.summed", "SELECT id FROM ops.built", "id int"),
    ),
)
AFTER = replace(
    small.AFTER,
    objects=(
        *small.AFTER.objects,
        table("ops.built", "id int", made("n string", "CAST(n AS string)", type="int")),
        table("ops.emptied", *_NEW, keep=False),
        table("ops.dropped", "id int"),
        mview("ops.filled", "SELECT id FROM ops.built", "id int"),
        mview("ops.summed", "SELECT id + 1 AS id FROM ops.built", "id int"),
    ),
)
POLICIES: dict[str, Any] = {"accept_data_loss": frozenset({"ops.dropped.n"})}
MOST = 40
"""Deaths after which something never ends."""


def prepare(place: Place) -> None:
    place.deploy(BEFORE)
    for number, name in enumerate(("ops.wide", "ops.text", "ops.named", "ops.gone")):
        place.append(name, {"id": number})
    for name in ("ops.built", "ops.emptied", "ops.dropped"):
        place.append(name, {"id": 1, "n": 10}, {"id": 2, "n": 20})


def _die_at(effects: Sequence[tuple[Any, str]], number: int, *, after: bool, note: Path) -> None:
    """Let this process die at the effect with the number, before or after it is done, and note where that was."""
    left = number

    def end(where: str) -> None:
        note.write_text(where)
        die()

    def begin(name: str, /, *args: Any, **kwargs: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            end(f"before {name}")

    def finish(name: str, /, *args: Any, **kwargs: Any) -> None:
        if left == 0:
            end(f"after {name}")

    for owner, name in effects:
        intercept(owner, name, before=partial(begin, name), after=partial(finish, name))


def _deploy(folder: Path, number: int) -> None:
    place = Place(folder)
    effects = [
        (place.catalog, "create_table"),
        (place.catalog, "commit_table"),
        (migrated_table, "_rename_in_database"),
    ]
    _die_at(effects, number % 5 + 1, after=number // 5 % 2 == 1, note=folder / "death")
    plan = place.plan(AFTER, **POLICIES)
    assert plan.applicable, (plan.blocked, plan.drift)
    place.apply(plan, AFTER, lease_seconds=0.4, patience=120.0)


def _forked(work: Callable[[], None]) -> int:
    """The way in which a child that does the work ended, as :func:`os.waitpid` has it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            if code:
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            os._exit(code)
    return os.waitpid(child, 0)[1]


def main(folder: Path) -> int:
    """Prepare, deploy until one ends, tell."""
    if _forked(lambda: prepare(Place(folder))):
        return 1
    deaths: list[str] = []
    while len(deaths) < MOST:
        status = _forked(lambda: _deploy(folder, len(deaths)))
        if not os.WIFSIGNALED(status):
            print(json.dumps({"deaths": deaths}))
            return os.waitstatus_to_exitcode(status)
        deaths.append((folder / "death").read_text())
    print(f"no end after {deaths}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
