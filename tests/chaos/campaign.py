"""Scenario after scenario, until the wanted number of kills is reached."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_rfr.lake.catalog import LakeSettings
from tests.chaos.battle import Battle
from tests.chaos.lakes import Lakes
from tests.chaos.plan import Scenario, scenarios
from tests.chaos.report import Report

SCENARIOS_A_LAKE = 20


class Campaign:
    """Runs the scenarios of one seed, one after another, on lakes that are replaced now and then.

    A lake serves several scenarios, so that most refreshes replace a table that somebody reads.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        say: Callable[[str], None] = print,
        plan: Callable[[int], Iterator[Scenario]] = scenarios,
        lakes: Lakes | None = None,
        battle: type[Battle] = Battle,
    ) -> None:
        self.seed, self._battle = seed, battle
        self._plan = plan
        self.report = Report()
        self._folder, self._say = folder, say
        self._lakes = lakes or Lakes(folder)
        self._lake: LakeSettings | None = None

    def run(self, kills: int, *, seconds: float | None = None) -> Report:
        """Fight until so many SIGKILLs hit, or the time is up; the scenario at hand is always fought to its end."""
        until = None if seconds is None else time.monotonic() + seconds
        for scenario in self._plan(self.seed):
            if self.report.kills >= kills or (until is not None and time.monotonic() >= until):
                break
            self._fight(scenario)
        return self.report

    def _fight(self, scenario: Scenario) -> None:
        lake = self._lake_for(scenario)
        folder = self._folder / f"scenario-{scenario.number}"
        folder.mkdir(parents=True)
        began, notes, unfinished = time.monotonic(), len(self.report.notes), self.report.unfinished
        self._battle(scenario, lake, folder, self.report).fight()
        for note in self.report.notes[notes:]:
            self._say(f"  ! {note}")
        if self.report.unfinished > unfinished:
            # What this refresh left open would be the next one's to go on with, under another source.
            self._lake = None
        elif len(self.report.notes) == notes:
            shutil.rmtree(folder)
        took = time.monotonic() - began
        self._say(f"{scenario.number} {', '.join(scenario.streams)}: {took:.1f} s, {self.report.kills} kills in all")

    def _lake_for(self, scenario: Scenario) -> LakeSettings:
        if self._lake is None or scenario.number % SCENARIOS_A_LAKE == 0:
            self._lake = self._lakes.new(keep=self._lake is None or not self.report.clean)
        return self._lake


def figures(campaign: Campaign) -> dict[str, Any]:
    """For the last line."""
    return {"seed": campaign.seed, **vars(campaign.report), "clean": campaign.report.clean}
