"""Names of options: parts with dots between them; a part that holds a dot stands in double quotes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_PART: Final = re.compile(r'(?:^|\.)(?:"((?:[^"]|"")*)"(?=\.|$)|([^.]*))')


def parts_of(name: str) -> list[str]:
    """The parts, without quotes."""
    return [match[2] if match[1] is None else match[1].replace('""', '"') for match in _PART.finditer(name)]


def name_of(parts: Iterable[str]) -> str:
    """The name that has these parts."""
    return ".".join(quoted(part) if set(part) & {".", '"'} else part for part in parts)


def quoted(part: str) -> str:
    """In double quotes."""
    return '"' + part.replace('"', '""') + '"'
