"""Words that every part of a template's reading needs: nothing, white space, and the error that names a place."""

from __future__ import annotations

WHITESPACE = " \t\n\r\v\f\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""What JavaScript means by ``\\s``; Python's has a few control characters more."""

LONGEST_SHOWN = 60


class Undefined:
    """What JavaScript has besides null: there is no such thing. One object, :data:`UNDEFINED`."""

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED = Undefined()


class Problem(Exception):
    """Something is wrong at this offset of the template; it leaves the room as a ``TemplateError``.

    :ivar problem: what is wrong; it may hold names of the template, and never a value
    """

    def __init__(self, problem: str, at: int) -> None:
        self.problem = problem
        self.at = at
        super().__init__(problem)


def shown(name: str) -> str:
    """A name of the template as it stands in an error."""
    return repr(name if len(name) <= LONGEST_SHOWN else name[: LONGEST_SHOWN - 3] + "...")
