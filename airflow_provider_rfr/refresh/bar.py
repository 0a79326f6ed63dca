"""The bar that follows a refresh on a terminal: of the Spark application, and of ``airflow rfr refresh watch``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_rfr.refresh.progress import Progress, duration_in_words, rate_in_words

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from airflow_provider_rfr.refresh.status import TableStatus


class Bar:
    """A line of a terminal that is drawn again and again; text that is printed meanwhile stands above it."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=None, said="")

    @property
    def said(self) -> str:
        return str(self._bars.tasks[0].fields["said"])

    def say(self, text: str) -> None:
        """Show this, without a share that is done."""
        self._bars.update(self._task, description="", said=text, total=None, refresh=True)

    def update(self, found: TableStatus) -> None:
        """Show how far the refresh is."""
        parts, percent = [found.state.value], found.percent
        if (header := found.header) is not None:
            progress = Progress.of(header)
            parts += [] if percent is None else [f"{percent} %"]
            parts += [f"{header.partitions_done:,} of {header.partitions:,}", f"{header.pages:,} pages"]
            if (rate := progress.pages_per_second) is not None:
                parts.append(f"{rate_in_words(rate)}/s")
            if progress.seconds_left is not None and found.state.value == "reading":
                parts.append(f"{duration_in_words(progress.seconds_left)} left")
        total = None if percent is None else 100
        said, table = ", ".join(parts), printable(found.table)
        self._bars.update(self._task, description=table, total=total, completed=percent or 0, said=said)


def can_draw() -> bool:
    """Tell whether standard output is a terminal on which a line can be drawn again."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


@contextmanager
def drawn_bar() -> Iterator[Bar]:
    """Draw a bar on standard output, and remove it afterwards."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    # Names come from a catalog, and brackets in them are no markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Bars(*columns, TextColumn("{task.fields[said]}", markup=False), transient=True) as bars:
        yield Bar(bars)


def printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
