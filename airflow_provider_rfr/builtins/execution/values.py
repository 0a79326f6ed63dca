"""What a deploy did, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """A step that is done.

    :ivar how: the verb
    :ivar found: it was done already, by a run before this one
    :ivar evidence: what was found and left, e.g. ``rows``, ``snapshot_before`` and ``snapshot_after``
    """

    seq: int
    uuid: UUID | None
    name: str
    how: str
    found: bool = False
    evidence: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Applied:
    """A deploy that is finished.

    :ivar state: ``done``, or ``nothing`` where there was nothing to do
    :ivar revision: of the registry afterwards
    """

    deploy_id: str
    plan_hash: str
    state: str
    steps: tuple[AppliedStep, ...] = ()
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection of garbage did.

    :ivar deleted: names of what is gone
    :ivar kept: names of what has to wait, with why
    :ivar failed: names of what could not be deleted, with why; they are tried again
    """

    deleted: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    failed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
