"""Functions for texts that people read: cut, on one line, without control characters of terminals. Imports nothing."""

from __future__ import annotations


def cut(text: str, longest: int) -> str:
    """Return the text; if it is longer than ``longest`` characters, its beginning and three dots."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def quantity(number: int, noun: str) -> str:
    """Return the number with the noun, as ``1 page`` or ``2,000 pages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(text: str, longest: int) -> str:
    """Return the text without line breaks, cut if it is long."""
    return cut(" ".join(text.split()), longest)


def page_place(
    partition: str, page: int | None = None, record: int | None = None, *, start: str = "", end: str = ""
) -> str:
    """Return the place of a page or a record in its stream, as ``partition {"shop":1}, page 2, record 3``.

    The only partition of a stream is left out, because it has no name.

    :param partition: canonical key; ``{}`` is that of an only partition
    :param page: number of the page, from 1
    :param record: number of the record in its page, from 1
    :param start: text before a place; omitted where there is none to name
    :param end: text after a place; omitted in the same way
    """
    named = {"partition": None if partition == "{}" else partition, "page": page, "record": record}
    place = ", ".join(f"{kind} {value}" for kind, value in named.items() if value is not None)
    return f"{start}{place}{end}" if place else ""


def printable(text: str) -> str:
    """Replace unprintable characters by U+FFFD: a text of a source may hold control characters."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def well_formed(text: str) -> str:
    """Join surrogate pairs, and replace unpaired surrogates by U+FFFD, so that the text can be encoded."""
    # By the method of str itself, because a subclass may override encode.
    return text if text.isascii() else str.encode(text, "utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
