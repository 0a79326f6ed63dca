"""YAML documents with the line of everything in them.

Plain values mean what they mean in :mod:`airflow_provider_rfr.documents`. Aliases are refused: an object says
everything itself, and a few lines can't expand without bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple

import yaml

from airflow_provider_rfr.documents import plain_value

_DEEPEST: Final = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT: Final = "tag:yaml.org,2002:str"
_TAGS: Final = (None, "!", _TEXT, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_WRITE_OUT: Final = "write it out; an object says everything itself"


class Flaw(NamedTuple):
    """Something wrong in a text; ``line`` is from 1."""

    line: int
    problem: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place.

    :ivar line: from 1, as is ``column``
    :ivar value: None, a bool, a number or a text; a list of nodes; nodes by their keys
    :ivar text: a plain value as it was written
    :ivar raw: what the file has for a value without parts, with its quotes or its ``|``
    """

    line: int
    value: Any
    text: str | None = None
    column: int = 1
    raw: str = ""

    def place_in(self, line: int, column: int) -> tuple[int, int | None]:
        """Line and column in the file of a place in a text; no column where the file writes the text otherwise."""
        raw, lines = self.raw, str(self.value).split("\n")
        is_block, is_quoted = raw[:1] in ("|", ">"), raw[:1] in ("'", '"')
        # Of what is not escaped, YAML changes nothing but white space.
        places = range(raw.find("\n") + 1 if is_block else int(is_quoted), len(raw) - int(is_quoted))
        ink = [each for each in places if not raw[each].isspace()]
        number = len("".join("".join([*lines[: line - 1], lines[line - 1][: column - 1]]).split()))
        if "".join(raw[each] for each in ink) != "".join("".join(lines).split()) or number >= len(ink):
            return self.line, None
        above, before = raw.count("\n", 0, ink[number]), raw.rfind("\n", 0, ink[number])
        return self.line + above, ink[number] - before if above else self.column + ink[number]


def documents(text: str) -> Iterator[tuple[Node, list[Flaw]]]:
    """The documents of a text with what is wrong in them, empty ones left out.

    A mistake of syntax ends the text: it comes with a node without a value, after the documents before it.
    """
    reader = _Reader(text)
    try:
        for event in reader.events:
            if isinstance(event, yaml.DocumentStartEvent):
                reader.flaws = []
                node = reader.node(next(reader.events))
                if node.value is not None or reader.flaws:
                    yield node, reader.flaws
        return
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        near = "".join(text.splitlines()[max(line - 2, 0) : line])
        remedy = "indent with spaces: YAML takes no tabs" if "\t" in near else ""
        flaw = Flaw(line, str(error.problem or error.context), remedy)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        flaw = Flaw(line, f"the character {chr(error.character)!r} is not allowed")
    yield Node(flaw.line, None), [flaw]


class _Reader:
    """Makes nodes of events; ``flaws`` are those of the present document."""

    def __init__(self, text: str) -> None:
        self.events = iter(yaml.parse(text, Loader=_LOADER))
        self.flaws: list[Flaw] = []
        self._text = text

    def node(self, event: Any, depth: int = 0) -> Node:
        """The node that begins with an event; it takes all events of the node."""
        start, end, line = event.start_mark, event.end_mark, event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            self._flaw(line, f"*{event.anchor} is an alias", _WRITE_OUT)
            return Node(line, None)
        if event.tag not in _TAGS:
            self._flaw(line, f"the tag {event.tag} is not known")
        if isinstance(event, yaml.ScalarEvent):
            is_text = not event.implicit[0] or event.tag == _TEXT
            value = event.value if is_text else plain_value(event.value)
            return Node(line, value, event.value, start.column + 1, self._text[start.index : end.index])
        if depth == _DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"it is nested more than {_DEEPEST} deep", problem_mark=start)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(line, [self.node(each, depth + 1) for each in self._until(yaml.SequenceEndEvent)])
        return Node(line, self._mapping(depth + 1))

    def _mapping(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for event in self._until(yaml.MappingEndEvent):
            key, value = self.node(event, depth), self.node(next(self.events), depth)
            if not isinstance(key.value, str):
                self._flaw(key.line, f"the key {key.text or 'here'} is not text", "put it in quotes")
                continue
            if key.value == "<<":
                self._flaw(key.line, "<< merges mappings", _WRITE_OUT)
            elif key.value in found:
                self._flaw(key.line, f"duplicate key {key.value!r}", f"it is in line {lines[key.value]} too")
            found.setdefault(key.value, value)
            lines.setdefault(key.value, key.line)
        return found

    def _until(self, end: type) -> Iterator[Any]:
        return takewhile(lambda event: not isinstance(event, end), self.events)

    def _flaw(self, line: int, problem: str, remedy: str = "") -> None:
        self.flaws.append(Flaw(line, problem, remedy))
