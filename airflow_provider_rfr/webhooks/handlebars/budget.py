"""What one rendering may take: steps, and bytes of output."""

from __future__ import annotations

from airflow_provider_rfr.webhooks.handlebars.terms import Problem

MAX_STEPS = 200_000
MAX_OUTPUT = 1 << 20
_PER_STEP = 256


class Budget:
    """Counts steps and bytes of one rendering, or of one payload's renderings together.

    A step is a statement, a name or literal, a turn of ``{{#each}}``, a node of a value made into JSON, or
    256 characters that a helper goes through, so that time is bounded by steps.
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
        """A helper goes through as many characters."""
        self.step(at, characters // _PER_STEP)

    def fits(self, characters: int, at: int) -> None:
        """A text in the making is that long."""
        if characters > MAX_OUTPUT:
            raise Problem(f"a value is longer than {MAX_OUTPUT:,} characters", at)
        self.read(characters, at)

    def wrote(self, text: str, at: int) -> None:
        self._output += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if self._output > MAX_OUTPUT:
            raise Problem(f"the output is larger than {MAX_OUTPUT:,} bytes", at)
