"""What an alteration needs of the world: each port is told by the place that knows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.connections.types import ContentHash, Definition
from airflow_provider_rfr.store.connections import TaskRef, Use
from airflow_provider_rfr.store.engine import ControlStore


@dataclass(frozen=True, slots=True)
class Stored:
    """A connection where it really comes from.

    :ivar origin: e.g. ``Airflow's database``
    """

    definition: Definition
    origin: str


class _Gateway(Protocol):
    """Where connections are stored."""

    def read(self, name: str) -> Stored | None:
        """The connection with its secrets, as those who use it see it; None if there is none.

        :raises ConnectionShadowedError: it comes from a place that can't be written
        :raises ConnectionRightsError: the caller may not see it
        """
        ...

    def find(self, name: str) -> Definition | None:
        """Any connection, as those who use it see it, wherever it comes from."""
        ...

    def referring(self, name: str) -> Sequence[str]:
        """Ids of stored connections whose options name this one."""
        ...

    def commit(self, expected: str, hashes: ContentHash, candidate: Definition) -> None:
        """Store the candidate whole, if what is stored still has the expected hash.

        :raises ConnectionConflictError: it has another one
        """
        ...

    def commit_tested(self, expected: str, hashes: ContentHash, candidate: Definition) -> bool:
        """The same after Airflow itself has tried the candidate; False where Airflow does not do that.

        :raises ConnectionConflictError: what is stored has another hash
        :raises ConnectionValidationError: the candidate does not work
        """
        ...

    def rename(self, expected: str, hashes: ContentHash, definition: Definition, new_name: str) -> None:
        """Store it under another name.

        :raises ConnectionConflictError: what is stored has another hash, or the new name is taken
        """
        ...


class _Authority(Protocol):
    """What the caller may do."""

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """Those of the connections that the caller may not edit."""
        ...

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        """Those of the secrets that connections may not be given; none of them is read for it."""
        ...


class Secrets(Protocol):
    """Where secrets are kept."""

    def read(self, reference: SecretReference) -> str:
        """:raises ConfigurationError: there is no such secret, or no such backend"""
        ...


class _Validator(Protocol):
    """Tries settings on the machine where tasks run."""

    def test(self, candidate: Definition) -> bool:
        """Whether it was tried; False where nothing here knows how to try this type.

        :raises ConnectionValidationError: nothing answers there, or not to these credentials
        """
        ...

    def identity(self, definition: Definition) -> str | None:
        """Which upstream that is; None where that can't be told.

        :raises ConnectionValidationError: it ought to answer, and does not
        """
        ...

    def check_use(self, candidate: Definition, use: Use) -> None:
        """:raises ConnectionValidationError: that task could not go on with these settings"""
        ...


class Tasks(Protocol):
    """The scheduler's tasks."""

    def state(self, task: TaskRef) -> str | None:
        """As Airflow names it; ``gone`` for a task that is not there any more, None where it can't be asked."""
        ...

    def start(self, task: TaskRef) -> None:
        """Let it run again, from where it stopped; its tries are counted anew.

        :raises RfrError: it can't be started
        """
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that an alteration is done with.

    :ivar hashes: with the installation's key
    :ivar tell: is told what happens, line by line
    :ivar sleep: waits between two looks
    """

    store: ControlStore
    hashes: ContentHash
    gateway: _Gateway
    authority: _Authority
    secrets: Secrets
    validator: _Validator
    tasks: Tasks
    tell: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
