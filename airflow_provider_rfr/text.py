"""Texts as people read them: cut, on one line, without characters that control a terminal. Imports nothing."""

from __future__ import annotations


def cut(text: str, longest: int) -> str:
    """Return the text, or its beginning with dots after it."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def quantity(number: int, noun: str) -> str:
    """Return the number with the noun, as ``1 page`` or ``2,000 pages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(text: str, longest: int) -> str:
    """Return the text without line breaks, cut if it is long."""
    return cut(" ".join(text.split()), longest)


def printable(text: str) -> str:
    """Return the text with a sign for each character that can't be printed: it may come from a source."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def well_formed(text: str) -> str:
    """Join surrogate pairs, and write U+FFFD for each half of one, so that every encoding can carry the text."""
    # Of str itself: a subclass may override encode.
    return text if text.isascii() else str.encode(text, "utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
