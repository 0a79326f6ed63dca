"""Reads YAML, strictly and with one meaning everywhere: that of YAML 1.2, without its rarer forms.

Only ``true`` and ``false`` are booleans (``no`` is Norway), dates, versions and times stay text, numbers are decimal,
and a duplicate key is an error. Imports nothing of this package, so that every part of it can use this module.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

_LONGEST_NUMBER: Final = 100
_PREFIX: Final = "tag:yaml.org,2002:"
_TAGS: Final = (None, *(f"{_PREFIX}{kind}" for kind in ("str", "map", "seq")))
_INT: Final = re.compile(r"[-+]?[0-9]+$")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def plain_value(text: str) -> str | int | float | bool | None:
    """Return the value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER or not _FLOAT.match(text):
        return text
    number = int(text) if _INT.match(text) else float(text)
    return number if math.isfinite(number) else text


class DocumentError(ValueError):
    """A text can't be read. The message has nothing of its content, which may be secret.

    :ivar line: from 1, as is ``column``; None if unknown
    :ivar problem: without the place
    :ivar key: the duplicate key, if that is the problem
    :ivar detail: what the parser says, for texts that hold no secret
    """

    def __init__(
        self, problem: str, line: int | None = None, column: int | None = None, key: str | None = None, detail: str = ""
    ) -> None:
        self.problem = problem
        self.line = line
        self.column = column
        self.key = key
        self.detail = detail
        super().__init__(f"line {line}, column {column}: {problem}" if line else problem)


class StrictLoader(yaml.SafeLoader):
    """The loader; a base for stricter ones."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) not in _TAGS:
            problem = "tags are not read; leave it out"
            raise DocumentError(problem, event.start_mark.line + 1, event.start_mark.column + 1)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_PREFIX}merge":
                continue
            if (key.tag, key.value) in seen:
                mark = key.start_mark
                raise DocumentError("duplicate key", mark.line + 1, mark.column + 1, key.value)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag == f"{_PREFIX}merge"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in (
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    StrictLoader.add_implicit_resolver(f"{_PREFIX}{_kind}", _pattern, _first)
StrictLoader.add_constructor(f"{_PREFIX}float", lambda _, node: plain_value(node.value))


def read_yaml(text: str | bytes, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Parse the one document of a text.

    :param loader: a stricter one
    :raises DocumentError: it is not YAML, has a duplicate key or tags, or is nested too deeply
    """
    problem, detail, line, column = "is not YAML", "", None, None
    try:
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        mark, detail = error.problem_mark or error.context_mark, str(error.problem or error.context)
        if mark is not None:
            line, column = mark.line + 1, mark.column + 1
    except yaml.YAMLError:
        pass
    except DocumentError:
        raise
    except RecursionError:
        problem = "is nested too deeply"
    # Out here, so that no error that holds the text becomes the context.
    raise DocumentError(problem, line, column, detail=detail)
