"""Explanations of the terms on the pages, from the tables in ``docs``, which is part of the wheel as well."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_PACKAGE: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKS: Final = re.compile(r"[*`]")


class Term(NamedTuple):
    """A row of a table in ``docs``, without Markdown."""

    name: str
    meaning: str

    @property
    def anchor(self) -> str:
        return re.sub("[^a-z]+", "-", self.name.casefold())


@cache
def terms(document: str, heading: str) -> tuple[Term, ...]:
    """Return the rows of the first table below the heading.

    :raises ValueError: there is no such heading
    """
    # Next to the package in a clone, inside it where it was installed.
    [file] = [path for parent in (_PACKAGE, _PACKAGE.parent) if (path := parent / "docs" / document).is_file()]
    text = file.read_text(encoding="utf-8")
    below = text[text.index(f"# {heading}\n") :]
    [table, *_] = re.findall(r"^(?:\|.*\n)+", below, re.MULTILINE)
    rows = (_MARKS.sub("", _LINK.sub(r"\1", line)) for line in table.splitlines()[2:])
    cells = [row.strip("|\n ").split(" | ", 1) for row in rows]
    return tuple(Term(name.strip(), meaning.strip()) for name, meaning in cells)


def glossary() -> tuple[Term, ...]:
    return terms("glossary.md", "Glossary")


def pages() -> tuple[Term, ...]:
    return terms("ui.md", "The pages in Airflow")


_HEADINGS: Final = {"refresh": "States", "endpoint": "States of endpoints"}


def states() -> tuple[Term, ...]:
    """Return the states of refreshes and of endpoints."""
    return tuple(term for heading in _HEADINGS.values() for term in terms("ui.md", heading))


def buttons() -> tuple[Term, ...]:
    """Return the buttons of a refresh, each with its condition and its effect."""
    return tuple(Term(row.name, row.meaning.replace(" | ", ": ")) for row in terms("ui.md", "Actions"))


@cache
def _by_name(rows: tuple[Term, ...]) -> dict[str, str]:
    """Return the meanings by name. If a row has several names, its meaning begins with all of them."""
    return {
        name: row.meaning if name == row.name else f"{row.name}: {row.meaning}"
        for row in rows
        for name in row.name.split(", ")
    }


def explain(term: str) -> str:
    """Return the glossary's text about the term.

    :raises KeyError: the glossary does not have it
    """
    return _by_name(glossary())[term]


def explain_state(state: str, of: str = "refresh") -> str:
    """Return the meaning of the state; an empty text for a state that needs no explanation.

    :param of: ``refresh`` or ``endpoint``; states of anything else are not explained, even if they have the same name
    """
    return _by_name(terms("ui.md", _HEADINGS[of])).get(state, "") if of in _HEADINGS else ""
