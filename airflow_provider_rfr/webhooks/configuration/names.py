"""Names of triggers: letters and numbers of any alphabet, and ``- _ .``"""

from __future__ import annotations

import json
import unicodedata

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake

LONGEST_NAME = 128
PATTERN = r"^[\w.\-]+$"
"""For JSON schema; as near as regular expressions of both Python and JavaScript come."""

_LONGEST_QUOTED = 60
_REMEDY = "use letters, numbers, - _ ."


def check_name(name: str, of: str = "trigger") -> str:
    """Raises a mistake that shows the first part that is wrong."""
    fault = _fault(name)
    if fault is not None:
        raise mistake(f"{quoted(name)} cannot be used as name for {of} ({fault})", _REMEDY)
    return name


def made_name(text: str) -> str:
    """A name made of any text."""
    usable = "".join(part if _fault(part) is None else "_" for part in text[:LONGEST_NAME])
    return usable or "_"


def label(name: str) -> str:
    """The name as errors show it, also where it is none."""
    return name if _fault(name) is None else quoted(name)


def quoted(text: str) -> str:
    """In quotes, on one line, and not too long."""
    cut = text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}…"
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def _fault(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > LONGEST_NAME:
        return f"it has more than {LONGEST_NAME} characters"
    wrong = next((part for part in name if part not in "-_." and unicodedata.category(part)[0] not in "LN"), None)
    return None if wrong is None else f"{quoted(wrong)} is invalid"
