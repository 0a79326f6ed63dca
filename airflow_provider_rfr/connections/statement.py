"""A parsed statement as a value. Printing it shows no plain value of a secret.

Option names are parts separated by dots; a part that contains a dot is written in double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from airflow_provider_rfr.secret_names import MASK, is_secret

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


_Plain = str | int | float | bool | None
DRAIN_SECONDS: Final = 600.0
BACKENDS: Final = ("env", "variable", "file")
"""Where secrets may be kept."""


class Verb(str, Enum):
    """What a statement does."""

    ALTER = "alter"
    ROTATE_KEYS = "rotate keys"
    RENAME = "rename"
    VALIDATE = "validate"


class ActionKind(str, Enum):
    """What is done with one option. ``RESET`` and ``DROP`` mean the same: back to the default, or away."""

    SET = "set"
    DROP = "drop"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Where a secret is kept, e.g. ``env:PG_PASSWORD``."""

    backend: str
    key: str

    def __str__(self) -> str:
        return f"{self.backend}:{self.key}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that is given beside the statement."""

    name: str

    def __str__(self) -> str:
        return f":{self.name}"


Value = _Plain | SecretReference | Parameter


@dataclass(frozen=True, slots=True)
class Action:
    """One option to change.

    :ivar option: e.g. ``host`` or ``extra.sslmode``
    :ivar value: for ``SET``; never shown, since a plain text may be a secret that does not belong there
    :ivar line: where in the statement, from 1; 0 where there is no statement
    :ivar column: ... and from 1
    """

    kind: ActionKind
    option: str
    value: Value = field(default=None, repr=False)
    line: int = 0
    column: int = 0

    @property
    def removes(self) -> bool:
        """Whether the option goes back to its default."""
        return self.kind is not ActionKind.SET


@dataclass(frozen=True, slots=True)
class Settings:
    """What the ``WITH`` part says.

    :ivar validate: whether the new settings are tried before they are stored
    :ivar restart: whether what uses the connection is restarted; else it goes on with its copy until its next run
    :ivar dry_run: only say what would be done
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
    """What somebody wants of a connection.

    :ivar connection: its id
    :ivar if_exists: a connection that is missing is no error
    :ivar actions: in the statement's order
    :ivar settings: what the ``WITH`` part says
    :ivar new_name: for ``RENAME``
    """

    verb: Verb
    connection: str
    if_exists: bool = False
    actions: tuple[Action, ...] = ()
    settings: Settings = Settings()
    new_name: str | None = None

    @property
    def set(self) -> Mapping[str, Value]:
        """What ``SET`` gives, by option; of a duplicate option the last."""
        return {action.option: action.value for action in self.actions if action.kind is ActionKind.SET}

    @property
    def drop(self) -> tuple[str, ...]:
        """Options of ``DROP``."""
        return tuple(action.option for action in self.actions if action.kind is ActionKind.DROP)

    @property
    def reset(self) -> tuple[str, ...]:
        """Options of ``RESET``."""
        return tuple(action.option for action in self.actions if action.kind is ActionKind.RESET)

    @property
    def validate(self) -> bool:
        """Whether the new settings are tried before they are stored."""
        return self.settings.validate

    @property
    def restart(self) -> bool:
        """Whether what uses the connection is restarted."""
        return self.settings.restart

    @property
    def dry_run(self) -> bool:
        """Whether it only says what would be done."""
        return self.settings.dry_run

    @property
    def drain_timeout(self) -> float:
        """Seconds for which a running refresh may take to reach its next checkpoint."""
        return self.settings.drain_timeout

    def __str__(self) -> str:
        return self._text(_action)

    def outline(self) -> str:
        """The same without any plain value: what is refused may hold a secret in an option that ought to have none."""
        return self._text(_outlined)

    def _text(self, told: Callable[[Action], str]) -> str:
        if self.verb is Verb.VALIDATE:
            return f"VALIDATE CONNECTION {_name(self.connection)}"
        start = f"ALTER CONNECTION {'IF EXISTS ' if self.if_exists else ''}{_name(self.connection)}"
        if self.verb is Verb.ROTATE_KEYS:
            return f"{start} ROTATE KEYS"
        if self.verb is Verb.RENAME:
            return f"{start} RENAME TO {_name(self.new_name or '')}"
        return " ".join([f"{start} {', '.join(map(told, self.actions))}", *_with(self.settings)])


def _name(name: str) -> str:
    return name if name.replace("_", "a").isalnum() and name.lower() != "if" else quoted(name)


def _option(action: Action) -> str:
    return ".".join(map(_name, parts_of(action.option)))


def _action(action: Action) -> str:
    option = _option(action)
    if action.removes:
        return f"{action.kind.name} ({option})"
    return f"SET ({option} = {_shown(action.option, action.value)})"


def _outlined(action: Action) -> str:
    if action.removes or isinstance(action.value, (SecretReference, Parameter)):
        return _action(action)
    return f"SET ({_option(action)})"


def _shown(option: str, value: Value) -> str:
    """A value as it may be shown: that of an option which is secret by its name is masked."""
    if isinstance(value, SecretReference):
        return f"SECRET {_text(str(value))}"
    if isinstance(value, Parameter):
        return str(value)
    if is_secret(option):
        return _text(MASK)
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f}s" if float(seconds).is_integer() else f"{seconds * 1000:.0f}ms"


def _with(settings: Settings) -> list[str]:
    default = Settings()
    said = []
    for name in ("validate", "restart", "dry_run", "new_identity"):
        if getattr(settings, name) != getattr(default, name):
            said.append(f"{name.upper()} = {str(getattr(settings, name)).lower()}")
    if settings.drain_timeout != default.drain_timeout:
        said.append(f"DRAIN_TIMEOUT = '{_duration(settings.drain_timeout)}'")
    return [f"WITH ({', '.join(said)})"] if said else []
