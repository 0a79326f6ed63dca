"""YAML documents with the line of everything in them.

Plain values mean what they mean in :mod:`airflow_provider_rfr.documents`. Aliases are refused: an object says
everything itself, and a few lines can't expand without bounds. Nothing here recurses while it parses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from airflow_provider_rfr.documents import plain_value

_DEEPEST = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX = "tag:yaml.org,2002:"


@dataclass(slots=True)
class Node:
    """A value and its place.

    :ivar line: from 1, as is ``column``
    :ivar value: None, a bool, a number or a text; a list of nodes; nodes by their keys
    :ivar text: a plain value as it was written
    :ivar raw: what stands in the file for a value without parts, with its quotes or its ``|``
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


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong in a text."""

    line: int
    problem: str
    remedy: str = ""


class YamlProblem(Exception):
    """The rest of a text can't be read."""

    def __init__(self, line: int, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.flaw = Flaw(line, problem, remedy)


@dataclass(slots=True)
class _Open:
    """A list or a mapping whose end has not come yet."""

    node: Node
    key: str | None = None
    lines: dict[str, int] = field(default_factory=dict)


def documents(text: str) -> Iterator[tuple[Node, Sequence[Flaw]]]:
    """The documents of a text with what is wrong in them, empty ones left out.

    :raises YamlProblem: after the documents before it
    """
    composer = _Composer(text)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            done = composer.take(event)
            if done is not None:
                flaws, composer.flaws = composer.flaws, []
                if done.value is not None or flaws:
                    yield done, flaws
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        near = "".join(text.splitlines()[max(line - 2, 0) : line])
        remedy = "indent with spaces: YAML takes no tabs" if "\t" in near else ""
        raise YamlProblem(line, str(error.problem or error.context), remedy) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblem(line, f"the character {chr(error.character)!r} is not allowed") from None
    except yaml.YAMLError:
        raise YamlProblem(1, "the file is not YAML") from None


class _Composer:
    def __init__(self, text: str) -> None:
        self._text = text
        self.flaws: list[Flaw] = []
        self._open: list[_Open] = []

    def take(self, event: Any) -> Node | None:
        """The document, when this event ends it."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            line = event.start_mark.line + 1
            self._check_tag(event, line, "str")
            is_text = not event.implicit[0] or event.tag == _PREFIX + "str"
            value = event.value if is_text else plain_value(event.value)
            start, end = event.start_mark, event.end_mark
            return self._put(Node(line, value, event.value, start.column + 1, self._text[start.index : end.index]))
        if kind in (yaml.MappingEndEvent, yaml.SequenceEndEvent):
            return self._put(self._open.pop().node)
        if kind in (yaml.MappingStartEvent, yaml.SequenceStartEvent):
            line = event.start_mark.line + 1
            self._check_tag(event, line, "map", "seq")
            if len(self._open) == _DEEPEST:
                raise YamlProblem(line, f"it is nested more than {_DEEPEST} deep")
            self._open.append(_Open(Node(line, {} if kind is yaml.MappingStartEvent else [])))
        elif kind is yaml.AliasEvent:
            line = event.start_mark.line + 1
            self._flaw(line, f"*{event.anchor} is an alias", "write it out; an object says everything itself")
            return self._put(Node(line, None))
        return None

    def _flaw(self, line: int, problem: str, remedy: str = "") -> None:
        self.flaws.append(Flaw(line, problem, remedy))

    def _check_tag(self, event: Any, line: int, *known: str) -> None:
        if event.tag is not None and event.tag not in ("!", *(_PREFIX + each for each in known)):
            self._flaw(line, f"the tag {event.tag} is not known")

    def _put(self, node: Node) -> Node | None:
        if not self._open:
            return node
        holder = self._open[-1]
        if isinstance(holder.node.value, list):
            holder.node.value.append(node)
        elif holder.key is not None:
            holder.node.value.setdefault(holder.key, node)
            holder.key = None
        elif not isinstance(node.value, str):
            self._flaw(node.line, f"the key {node.text or 'here'} is not text", "put it in quotes")
            holder.key = ""
        else:
            holder.key = node.value
            if holder.key == "<<":
                self._flaw(node.line, "<< merges mappings", "write it out; an object says everything itself")
            elif holder.key in holder.lines:
                line = holder.lines[holder.key]
                self._flaw(node.line, f"duplicate key {holder.key!r}", f"it is in line {line} too")
            holder.lines.setdefault(holder.key, node.line)
        return None
