"""What is known of a type's options: by this the planner says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from airflow_provider_rfr.connections.definition import CORE, EXTRA, Definition, parts_of
from airflow_provider_rfr.secret_names import is_secret

REFERENCE_SUFFIX: Final = "_conn_id"
DEEPEST: Final = 32
"""Levels of nested extra fields."""


class OptionType(str, Enum):
    """What a value must be."""

    TEXT = "text"
    INTEGER = "an integer"
    BOOLEAN = "true or false"
    URL = "a web address"
    PORT = "a port, 1 to 65535"
    OBJECT = "a JSON object"
    ANY = "any value"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a type.

    :ivar name: as statements write it
    :ivar default: what counts where it is not set; only shown
    :ivar inalterable: it can't change while anything uses the connection: progress is kept by it
    :ivar is_reference: its value is the id of another connection
    :ivar choices: the only values, where they are few
    """

    name: str
    type: OptionType = OptionType.TEXT
    required: bool = False
    secret: bool = False
    default: Any = None
    inalterable: bool = False
    is_reference: bool = False
    choices: tuple[str, ...] = ()


Rule = Callable[[Definition], "tuple[str, str] | None"]
"""A check across fields: None, or the option and what is wrong, with what to write instead."""


@dataclass(frozen=True, slots=True)
class ConnectionType:
    """What is known of a type.

    :ivar options: by name
    :ivar exclusive: of each group at most one may be set; setting one takes the others away
    :ivar one_of: of each group one must be set
    :ivar rules: checks across fields
    :ivar is_open: whether extra fields beside those that are named are taken
    :ivar has_keys: whether keys can be rotated
    """

    name: str
    options: Mapping[str, Option]
    exclusive: tuple[frozenset[str], ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    rules: tuple[Rule, ...] = ()
    is_open: bool = True
    has_keys: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    def full_name(self, option: str) -> str:
        """The option's own name: an alias, and an extra field that is written without ``extra.``, are understood."""
        if option in self.options or option.startswith(EXTRA):
            return option
        option = self.aliases.get(option, option)
        return EXTRA + option if EXTRA + option in self.options else option

    def option(self, name: str) -> Option | None:
        """What is known of the option; of an extra field that the type does not name what its own name says."""
        found = self.options.get(name)
        if found is not None or not (self.is_open and name.startswith(EXTRA) and _is_path(parts_of(name))):
            return found
        last = parts_of(name)[-1]
        above = [each for each in self.options.values() if name.startswith(f"{each.name}.")]
        if any(each.type is not OptionType.OBJECT for each in above):
            return None
        # A field below a secret object (rfr_api's extra.secrets) is as secret as the object.
        inherited = any(each.secret for each in above)
        return Option(
            name,
            OptionType.ANY,
            secret=inherited or is_secret(name.removeprefix(EXTRA)),
            is_reference=last.endswith(REFERENCE_SUFFIX),
        )

    def is_secret(self, name: str) -> bool:
        """Whether the option's value must not be shown; of an unknown one what its name says."""
        found = self.option(name)
        return is_secret(name) if found is None else found.secret


def _is_path(parts: Sequence[str]) -> bool:
    return len(parts) <= DEEPEST and all(parts)


def core_options(**changes: Option) -> dict[str, Option]:
    """The fields that every connection has, with what a type says otherwise."""
    made = {name: Option(name) for name in CORE}
    made["port"] = Option("port", OptionType.PORT)
    made["password"] = Option("password", secret=True)
    return {**made, **changes}
