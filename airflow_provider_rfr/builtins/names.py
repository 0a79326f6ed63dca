"""Names of objects and columns: which are allowed, how they are quoted, which is free."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable
from itertools import chain, count

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BESIDE = re.compile(r"__[gs][0-9a-f]{8}$", re.IGNORECASE)
_MOST_COMPARED = 500
LONGEST_PART = 100
"""Characters of one part of a name: catalogs take 128, and a suffix has to fit too."""


def is_plain(name: str) -> bool:
    """Whether the name needs no quotes anywhere, unless it is a reserved word."""
    return _PLAIN.fullmatch(name) is not None


def quoted(name: str) -> str:
    """The name in backticks, if it needs them."""
    return name if is_plain(name) else "`" + name.replace("`", "``") + "`"


def namespace_of(name: str) -> str:
    """All parts of a name but the last."""
    return name.rpartition(".")[0]


def name_problem(name: str) -> str | None:
    """What is wrong with the name of an object, None if nothing is."""
    parts = name.split(".")
    if len(parts) < 2:
        return f"{name!r} has no namespace"
    for part in parts:
        if not is_plain(part):
            return f"{name!r} is no name: its parts are letters, digits and underscores, and begin with no digit"
        if len(part) > LONGEST_PART:
            return f"{part[:20]}... is longer than {LONGEST_PART} characters"
    if _BESIDE.search(name):
        return f"{name!r} ends like the tables that a migration builds beside the live ones, or puts aside"
    return None


def available_name(base: str, taken: Container[str]) -> str:
    """``base``, or the first of ``base_1``, ``base_2`` ... that nobody has.

    Write it down before anything is created under it, and never make it again: after a rename of whatever it was
    made from, it would come out different.

    :param taken: names as they are compared (see :attr:`BuiltinObject.key`), those of users' objects among them
    """
    numbered = (f"{base}_{number}" for number in count(1))
    return next(name for name in chain([base], numbered) if name not in taken and name.casefold() not in taken)


def nearest(name: str, names: Iterable[str], *, show: int = 20) -> str:
    """A sentence with the nearest of the valid names, then all of them if they are few."""
    valid = sorted(names)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6) if len(valid) <= _MOST_COMPARED else []
    guess = f"did you mean {close[0]}?" if close else ""
    allowed = f"allowed: {', '.join(valid)}" if 0 < len(valid) <= show else ""
    return " ".join(part for part in (guess, allowed) if part)
