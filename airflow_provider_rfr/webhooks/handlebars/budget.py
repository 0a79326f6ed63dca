"""What one rendering may take: steps, and bytes of text.

There is one convention. Sizes are bytes of UTF-8, and are counted **before** the text is made: whoever makes a text
finds out how large it will be, asks :meth:`Budget.fits` or :meth:`Budget.writes`, and makes it then. So a text that is
too large is never in memory, whatever made the texts that it is made of.
"""

from __future__ import annotations

from airflow_provider_rfr.webhooks.handlebars.terms import Problem

MAX_STEPS = 200_000
MAX_TEXT = 1 << 20
_PER_STEP = 256


def size_of(text: str) -> int:
    """Bytes of the text in UTF-8; of one that is too large in any case, its characters."""
    if text.isascii() or len(text) > MAX_TEXT:
        return len(text)
    return len(str.encode(text, "utf-8", "surrogatepass"))


class Budget:
    """Counts steps and bytes of one rendering, or of one payload's renderings together.

    A step is a statement, a name or literal, a turn of ``{{#each}}``, a node of a value made into JSON, or 256
    characters that a helper goes through or makes, so that time is bounded by steps.
    """

    __slots__ = ("_output", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._output = 0

    def step(self, at: int, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise Problem(f"rendering takes more than {MAX_STEPS:,} steps", at)

    def read(self, characters: int, at: int) -> None:
        """A helper is about to go through as many characters that are there."""
        self.step(at, characters // _PER_STEP)

    def fits(self, size: int, at: int, *, made: int = 0) -> int:
        """A helper is about to make so many bytes of a text.

        :param made: bytes that the text has already
        :returns: bytes that it will have
        """
        if made + size > MAX_TEXT:
            raise Problem(f"a helper would make a text of more than {MAX_TEXT:,} bytes", at)
        self.read(size, at)
        return made + size

    def writes(self, size: int, at: int) -> None:
        """The output is about to get so many bytes."""
        self._output += size
        if self._output > MAX_TEXT:
            raise Problem(f"the output is larger than {MAX_TEXT:,} bytes", at)
