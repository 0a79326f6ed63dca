"""What became of a statement, for people and for programs; nothing in it is secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.connections.dependents import Dependent, Verdict
from airflow_provider_rfr.connections.planning import Change

DONE = frozenset({"restarted", "started", "has the new settings", "next run"})
"""Ends of a dependent after which nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done.

    :ivar result: applied, unchanged, planned (a dry run), missing, renamed, valid or not tried
    :ivar dependents: what uses the connection
    :ivar outcomes: what became of each dependent, by its consumer
    :ivar validated: whether the settings were tried
    :ivar notice: what is to be known beside
    :ivar alteration: number of its audit row
    """

    connection: str
    result: str
    changes: tuple[Change, ...] = ()
    dependents: tuple[Dependent, ...] = ()
    outcomes: Mapping[str, str] | None = None
    validated: bool | None = None
    notice: str = ""
    alteration: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What the task returns."""
        outcomes = self.outcomes or {}
        told = [each.to_json(outcomes.get(each.use.task.consumer, "")) for each in self.dependents]
        return {
            "connection": self.connection,
            "result": self.result,
            "options": {change.option: {"before": change.before, "after": change.after} for change in self.changes},
            "validated": self.validated,
            "dependents": told,
            "restarted": sum(each.get("outcome") in ("restarted", "started") for each in told),
            "notice": self.notice,
            "alteration": self.alteration,
        }

    def lines(self) -> list[str]:
        """The same for a terminal."""
        said = [f"connection {self.connection}: {self.result}"]
        said += [f"  ~ {change}" for change in self.changes]
        outcomes = self.outcomes or {}
        for each in self.dependents:
            mark = {Verdict.RESTART: "restart", Verdict.INCOMPATIBLE: "incompatible"}.get(each.verdict, "unaffected")
            way = f" by {' > '.join(each.via)}" if len(each.via) > 1 else ""
            end = outcomes.get(each.use.task.consumer)
            said.append(f"  {mark} {each.use.kind} {each.use.task}{way}: {end or each.reason}")
        return said + ([f"  {self.notice}"] if self.notice else [])
