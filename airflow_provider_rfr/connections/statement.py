"""A parsed statement as a value. Printing it masks options that are secret by their names; its outline has no value.

Option names are parts separated by dots; a part that contains a dot is written in double quotes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Final

from airflow_provider_rfr.http.redaction import MASK, is_secret_extra

_PART: Final = re.compile(r'(?:^|\.)(?:"((?:[^"]|"")*)"(?=\.|$)|([^.]*))')
_DURATION: Final = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def parts_of(name: str) -> list[str]:
    """Return the parts of an option's name, without quotes."""
    return [match[2] if match[1] is None else match[1].replace('""', '"') for match in _PART.finditer(name)]


def name_of(parts: Iterable[str]) -> str:
    """Return the name that has these parts."""
    return ".".join(_quoted(part) if set(part) & {".", '"'} else part for part in parts)


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


def duration(value: object) -> float | None:
    """Return seconds, from a number, a timedelta or text such as ``10m``; None for anything else."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if value >= 0 and math.isfinite(value) else None
    found = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def boolean(value: object) -> bool | None:
    """Return a boolean, from itself or its name in text; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "on": True, "false": False, "off": False}.get(str(value).strip().lower())


DRAIN_SECONDS: Final = 600.0
BACKENDS: Final = ("env", "variable", "file")
"""Where secrets may be kept."""


class Verb(str, Enum):
    ALTER = "alter"
    ROTATE_KEYS = "rotate keys"
    RENAME = "rename"
    DROP = "drop"
    COMMENT = "comment"
    VALIDATE = "validate"


class ActionKind(str, Enum):
    """The kind of an action on one option. ``RESET`` and ``DROP`` mean the same: back to the default, or removed."""

    SET = "set"
    DROP = "drop"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A reference to a secret, e.g. ``env:PG_PASSWORD``."""

    backend: str
    key: str

    def __str__(self) -> str:
        return f"{self.backend}:{self.key}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named value that is given separately from the statement."""

    name: str

    def __str__(self) -> str:
        return f":{self.name}"


Value = str | int | float | bool | None | SecretReference | Parameter


@dataclass(frozen=True, slots=True)
class Action:
    """One option to change, e.g. ``host`` or ``extra.sslmode``.

    :ivar value: for ``SET``; never shown, since a plain text may be a misplaced secret
    :ivar line: place in the statement's text, from 1, as is ``column``; 0 where it came from Python
    """

    kind: ActionKind
    option: str
    value: Value = field(default=None, repr=False)
    line: int = 0
    column: int = 0

    @property
    def removes(self) -> bool:
        """Tell whether the option goes back to its default."""
        return self.kind is not ActionKind.SET


@dataclass(frozen=True, slots=True)
class Settings:
    """The ``WITH`` part.

    :ivar validate: whether the new settings are tried before they are stored
    :ivar restart: whether tasks that use the connection restart; else they keep their copy until their next run
    :ivar dry_run: only report the plan
    :ivar drain_timeout: seconds for which a running refresh may take to reach its next checkpoint
    :ivar new_identity: take another upstream, and read everything from its beginning
    """

    validate: bool = True
    restart: bool = True
    dry_run: bool = False
    drain_timeout: float = DRAIN_SECONDS
    new_identity: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about a connection.

    :ivar if_exists: a connection that is missing is not an error
    :ivar actions: of ``ALTER``; of ``COMMENT`` the one that changes ``description``
    :ivar new_name: for ``RENAME``
    :ivar cascade: of ``DROP``: users of the connection do not refuse it
    """

    verb: Verb
    connection: str
    if_exists: bool = False
    actions: tuple[Action, ...] = ()
    settings: Settings = Settings()
    new_name: str | None = None
    cascade: bool = False

    @property
    def set(self) -> Mapping[str, Value]:
        """Return the values of ``SET`` by option; of a duplicate option the last."""
        return {action.option: action.value for action in self.actions if action.kind is ActionKind.SET}

    def __str__(self) -> str:
        if self.verb is Verb.COMMENT:
            text = self.set.get("description")
            return f"{self.outline()} IS {'NULL' if text is None else _text(str(text))}"
        return self._text(_action)

    def outline(self) -> str:
        """Return the statement without any plain value.

        A refused statement may hold a secret in an option that is not secret.
        """

        def outlined(action: Action) -> str:
            if action.removes or isinstance(action.value, (SecretReference, Parameter)):
                return _action(action)
            return f"SET ({_option(action)})"

        return self._text(outlined)

    def _text(self, shown: Callable[[Action], str]) -> str:
        if self.verb is Verb.VALIDATE:
            return f"VALIDATE CONNECTION {_name(self.connection)}"
        if self.verb is Verb.COMMENT:
            return f"COMMENT ON CONNECTION {_name(self.connection)}"
        named = f"CONNECTION {'IF EXISTS ' if self.if_exists else ''}{_name(self.connection)}"
        if self.verb is Verb.DROP:
            return f"DROP {named}{' CASCADE' if self.cascade else ''}"
        start = f"ALTER {named}"
        if self.verb is Verb.ROTATE_KEYS:
            return f"{start} ROTATE KEYS"
        if self.verb is Verb.RENAME:
            return f"{start} RENAME TO {_name(self.new_name or '')}"
        changed = []
        for name in ("validate", "restart", "dry_run", "new_identity"):
            value = getattr(self.settings, name)
            if value != getattr(Settings(), name):
                changed.append(f"{name.upper()} = {str(value).lower()}")
        seconds = self.settings.drain_timeout
        if seconds != DRAIN_SECONDS:
            text = f"{seconds:.0f}s" if float(seconds).is_integer() else f"{seconds * 1000:.0f}ms"
            changed.append(f"DRAIN_TIMEOUT = '{text}'")
        end = f" WITH ({', '.join(changed)})" if changed else ""
        return f"{start} {', '.join(map(shown, self.actions))}{end}"


def _name(name: str) -> str:
    return name if name.replace("_", "a").isalnum() and name.lower() != "if" else _quoted(name)


def _option(action: Action) -> str:
    return ".".join(map(_name, parts_of(action.option)))


def _action(action: Action) -> str:
    if action.removes:
        return f"{action.kind.name} ({_option(action)})"
    value = action.value
    if isinstance(value, SecretReference):
        shown = f"SECRET {_text(str(value))}"
    elif isinstance(value, Parameter):
        shown = str(value)
    elif is_secret_extra(action.option):
        shown = _text(MASK)
    else:
        shown = _text(value) if isinstance(value, str) else json.dumps(value)
    return f"SET ({_option(action)} = {shown})"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
