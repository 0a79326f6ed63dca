"""Deploys that are killed by SIGKILL at their Iceberg effects, one after the other, until one ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_rfr.store import deploys
from tests.integration import builtin_crash_program as program
from tests.integration.conftest import run_python
from tests.soon import PATIENCE
from tests.unit.builtins.catalogs import PROJECT
from tests.unit.builtins.execution.places import Place


@pytest.mark.gate
def test_a_deploy_that_is_killed_again_and_again_comes_to_its_end_and_loses_nothing(tmp_path: Path) -> None:
    done = run_python("-m", program.__name__, tmp_path, timeout=2 * PATIENCE)
    deaths = json.loads(done.stdout.splitlines()[-1])["deaths"]
    assert {death.partition(" ")[0] for death in deaths} == {"before", "after"}
    assert {death.partition(" ")[2] for death in deaths} >= {"commit_table", "_rename_in_database"}
    place = Place(tmp_path)
    check(place)
    with place.store.read() as connection:
        states = [
            (deploy.to_version, deploy.state.value, deploy.attempts) for deploy in deploys.history(connection, PROJECT)
        ]
    assert [state[:2] for state in states if state[1] == "done"] == [("2.0", "done"), ("1.0", "done")], states
    assert sum(attempts for version, state, attempts in states if version == "2.0" and state != "nothing") > 1
    place.close()


def check(place: Place) -> None:
    """Every row is there, every step was done once, nothing is left over."""
    assert [place.rows(name) for name in ("ops.wide", "ops.text", "ops.called")] == [
        [{"id": 0}],
        [{"id": "1"}],
        [{"id": 2}],
    ]
    assert place.rows("ops.built") == [{"id": 1, "n": "10"}, {"id": 2, "n": "20"}]
    assert place.rows("ops.emptied") == [] and place.rows("ops.summed") == [{"id": 2}, {"id": 3}]
    assert place.rows("ops.filled") == place.rows("ops.dropped") == [{"id": 1}, {"id": 2}]
    for name, snapshots in {"ops.text": 2, "ops.emptied": 2, "ops.summed": 1, "ops.wide": 1, "ops.filled": 1}.items():
        assert len(place.catalog.load_table(name).metadata.snapshots) == snapshots, name
    aside = [name.partition("__")[0] for name in place.tables() if "__" in name]
    assert aside == ["ops.gone"]
    before, again = place.snapshots(), place.plan(program.AFTER)
    assert (again.steps, again.drift, again.records, again.blocked) == ((), (), (), ())
    assert place.apply(again, program.AFTER).state == "nothing" and place.snapshots() == before
