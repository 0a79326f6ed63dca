"""When a strike is due."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from tests.chaos.oracle import diary_of
from tests.chaos.plan import Moment, When
from tests.chaos.processes import Attempt

_TOLD = {When.ROUND: re.compile(r", round \d"), When.COMPLETE: re.compile(r" (\d+) of \1 partitions")}


class Clock:
    """Tells when a moment of one attempt has come, by what the attempt prints and what the API notes."""

    def __init__(self, attempt: Attempt, diary: Path, pages: int) -> None:
        self._attempt, self._diary = attempt, diary
        self._given = _lines(diary)
        self._open = max(pages - len({page["page"] for page in diary_of(diary)}), 1)
        self._since: dict[When, float] = {}

    def due(self, moment: Moment) -> bool:
        if moment.when is When.SECONDS:
            return self._attempt.age >= moment.delay
        return self._reached(moment) and time.monotonic() >= self._since[moment.when] + moment.delay

    def _reached(self, moment: Moment) -> bool:
        if moment.when not in self._since:
            if moment.when is When.PAGES:
                reached = _lines(self._diary) - self._given >= moment.share * self._open
            else:
                reached = _TOLD[moment.when].search(self._attempt.output()) is not None
            if reached:
                self._since[moment.when] = time.monotonic()
        return moment.when in self._since


def _lines(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes().count(b"\n")
    return 0
