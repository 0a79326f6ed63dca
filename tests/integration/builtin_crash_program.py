"""Deploys until a deploy ends; each one but the last is killed by SIGKILL at one of its Iceberg effects.

Run as a process by the crash tests, with a folder as its only argument. Each deploy is a process forked from one that
has imported everything and started nothing. It kills itself as the kernel would, with no handler and no finally. Prints
one JSON line: how often a deploy was killed, and before and after what.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_rfr.lake import migrated_table
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


class _Killer:
    """Kills its process at the given effect, before or after it is done."""

    def __init__(self, at: int, after: bool, told: Path) -> None:
        self._left = at
        self._after = after
        self._told = told

    def wrap(self, owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                self._die(f"before {name}")
            result = original(*args, **kwargs)
            if self._left == 0:
                self._die(f"after {name}")
            return result

        setattr(owner, name, wrapped)

    def _die(self, where: str) -> None:
        self._told.write_text(where)
        os.kill(os.getpid(), signal.SIGKILL)


def _deploy(folder: Path, number: int) -> None:
    place = Place(folder)
    killer = _Killer(number % 5 + 1, number // 5 % 2 == 1, folder / "told")
    for name in ("create_table", "commit_table"):
        killer.wrap(place.catalog, name)
    killer.wrap(migrated_table, "_rename_in_database")
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
        deaths.append((folder / "told").read_text())
    print(f"no end after {deaths}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
