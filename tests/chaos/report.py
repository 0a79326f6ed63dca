"""The figures of a campaign."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.oracle import Findings

HANGS_AFTER = 150.0
SURVIVES_AFTER = 60.0


@dataclass
class Report:
    """What one scenario, or a campaign of them, came to.

    :ivar two_drivers: attempts that began while the driver of an earlier one lived
    :ivar half_tables: reads of the target that saw neither the whole old nor a whole new table
    :ivar hung: attempts that did not end within `HANGS_AFTER` seconds
    :ivar unfinished: refreshes that could not be published by undisturbed attempts
    :ivar survivors: processes that outlived their attempt by `SURVIVES_AFTER` seconds
    """

    scenarios: int = 0
    attempts: int = 0
    published: int = 0
    kills: int = 0
    stops: int = 0
    kills_by_victim: Counter[str] = field(default_factory=Counter)
    two_drivers: int = 0
    changes: int = 0
    rows_lost: int = 0
    rows_doubled: int = 0
    rows_foreign: int = 0
    chains_broken: int = 0
    half_tables: int = 0
    hung: int = 0
    unfinished: int = 0
    survivors: int = 0
    reads: int = 0
    pages_given: int = 0
    pages_refetched: int = 0
    overlap_checks: int = 0
    exit_codes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    BAD = (
        "rows_lost",
        "rows_doubled",
        "rows_foreign",
        "chains_broken",
        "half_tables",
        "hung",
        "unfinished",
        "survivors",
    )

    @property
    def clean(self) -> bool:
        return not any(getattr(self, name) for name in self.BAD)

    def count(self, findings: Findings) -> None:
        for name in ("rows_lost", "rows_doubled", "rows_foreign", "chains_broken"):
            setattr(self, name, getattr(self, name) + getattr(findings, name))
