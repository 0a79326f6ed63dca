"""Where the reading of one partition stands: not started, at a page, or complete.

A page token may be any JSON value except None: ``0``, ``""`` and ``False`` are tokens.  States have
one JSON form (``dump_state``), which carries a version; ``load_state`` also reads the forms that
Airbyte's Python CDK wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.json_values import JsonValue, canonical_json

STATE_VERSION: Final = 1
COMPLETE_SENTINEL: Final[Mapping[str, Any]] = {"__ab_full_refresh_sync_complete": True}
NO_CURSOR_SENTINEL: Final[Mapping[str, Any]] = {"__ab_no_cursor_state_message": True}
_VERSIONED_KEYS: Final = frozenset({"version", "state", "token"})


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No page was read; the next one is the first."""


@dataclass(frozen=True, slots=True)
class NextPage:
    """Every page before ``token`` was read.

    :ivar token: all that is needed to ask for the page, in another process too
    """

    token: JsonValue

    def __post_init__(self) -> None:
        if self.token is None:
            raise ValueError("None is not a page token; the first page is NotStarted(), the end is Complete()")
        if not isinstance(self.token, (str, int)):
            canonical_json(self.token, field="page token")


@dataclass(frozen=True, slots=True)
class Complete:
    """Every page was read."""


State: TypeAlias = NotStarted | NextPage | Complete


def dump_state(state: State) -> dict[str, Any]:
    """The JSON form that is stored; ``load_state`` reads it back to an equal state."""
    if isinstance(state, NextPage):
        return {"version": STATE_VERSION, "state": "next_page", "token": state.token}
    name = "complete" if isinstance(state, Complete) else "not_started"
    return {"version": STATE_VERSION, "state": name}


def load_state(value: Any) -> State:
    """Read a state in any form that was ever stored.

    Nothing (None, ``{}``, the CDK's "no cursor" marker) is NotStarted; the CDK's completion sentinel
    is Complete; ``{"next_page_token": X}`` is NextPage(X); any other mapping or a bare value is itself
    the token.

    :raises ConfigurationError: the versioned form of another version, or a broken one
    """
    if isinstance(value, (NotStarted, NextPage, Complete)):
        return value
    if value is None:
        return NotStarted()
    if not isinstance(value, Mapping):
        return NextPage(value)
    if not value or value == NO_CURSOR_SENTINEL:
        return NotStarted()
    if value == COMPLETE_SENTINEL:
        return Complete()
    if {"version", "state"} <= value.keys() <= _VERSIONED_KEYS:
        return _load_versioned(value)
    if value.keys() == {"next_page_token"}:
        token = value["next_page_token"]
        return NotStarted() if token is None else NextPage(token)
    return NextPage(dict(value))


def flat_state(state: State) -> dict[str, Any]:
    """The form that streams written for the CDK know: ``{}``, the token's mapping, the sentinel.

    ``load_state(flat_state(s)) == s`` for every state: a token that would be mistaken for something
    else, or is no mapping, is wrapped as ``{"next_page_token": token}``.
    """
    if isinstance(state, NotStarted):
        return {}
    if isinstance(state, Complete):
        return dict(COMPLETE_SENTINEL)
    token = state.token
    if isinstance(token, Mapping) and not _has_a_meaning_of_its_own(token):
        return dict(token)
    return {"next_page_token": token}


def _has_a_meaning_of_its_own(token: Mapping[str, Any]) -> bool:
    return (
        not token
        or token in (COMPLETE_SENTINEL, NO_CURSOR_SENTINEL)
        or {"version", "state"} <= token.keys() <= _VERSIONED_KEYS
        or token.keys() == {"next_page_token"}
    )


def _load_versioned(value: Mapping[str, Any]) -> State:
    version, name = value["version"], value["state"]
    if version != STATE_VERSION or isinstance(version, bool):
        raise ConfigurationError(
            "stream_state.version",
            f"{version!r} is unknown; this release reads version {STATE_VERSION}",
            "use the release that wrote the state, or start again with force_restart",
        )
    if name == "next_page" and value.get("token") is not None:
        return NextPage(value["token"])
    if name in ("not_started", "complete") and "token" not in value:
        return Complete() if name == "complete" else NotStarted()
    raise ConfigurationError(
        "stream_state.state",
        f"{dict(value)!r} is not a state",
        "allowed are not_started, complete, and next_page with a token",
    )
