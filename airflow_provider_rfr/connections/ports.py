"""The services that an alteration needs.

Stored connections and tasks are reached by Airflow's API or in its database, so each has an interface.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.connections.types import ContentHash, Definition
from airflow_provider_rfr.store.connections import TaskRef, Use
from airflow_provider_rfr.store.engine import ControlStore


class _Gateway(Protocol):
    """A gateway to the stored connections, and to the caller's rights on them."""

    def read(self, name: str) -> Definition | None:
        """Return the connection with its secrets, as its users see it; None if there is none.

        :raises ConnectionShadowedError: it comes from a place that can't be written
        :raises ConnectionRightsError: the caller may not see it
        """

    def find(self, name: str) -> Definition | None:
        """Return any connection, as its users see it, wherever it comes from."""

    def referring(self, name: str) -> Sequence[str]:
        """Return the ids of stored connections whose options name this one."""

    def commit(self, expected: str, hashes: ContentHash, candidate: Definition) -> None:
        """Store the candidate as a whole, if the stored connection still has the expected hash.

        :raises ConnectionConflictError: it has another one
        """

    def commit_tested(self, expected: str, hashes: ContentHash, candidate: Definition) -> bool:
        """Store the candidate after Airflow itself has tried it; return False if Airflow does not do that.

        :raises ConnectionConflictError: the stored connection has another hash
        :raises ConnectionValidationError: the candidate does not work
        """

    def rename(self, expected: str, hashes: ContentHash, definition: Definition, new_name: str) -> None:
        """Store the connection under another name.

        :raises ConnectionConflictError: the stored connection has another hash, or the new name is taken
        """

    def drop(self, expected: str, hashes: ContentHash, definition: Definition) -> None:
        """Delete the connection.

        :raises ConnectionConflictError: what is stored has another hash
        """

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """Return those of the connections that the caller may not edit."""

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        """Return those of the secrets that connections may not be given; none of them is read for it."""


class _Tasks(Protocol):
    """The scheduler's tasks."""

    def state(self, task: TaskRef) -> str | None:
        """Return Airflow's name of the state.

        It is ``gone`` for a task that no longer exists, and None if Airflow can't be asked.
        """

    def start(self, task: TaskRef) -> None:
        """Clear the task, so that it continues where it stopped.

        :raises RfrError: it can't be started
        """


@dataclass(frozen=True, slots=True)
class Services:
    """The services that an alteration uses.

    :ivar read_secret: returns the value of a secret; raises ConfigurationError if there is none
    :ivar test: tries the candidate, and tells whether its type can be tried here; raises ConnectionValidationError if
        the candidate does not work
    :ivar identify: returns the identity of the upstream that a connection leads to, None if that can't be found out;
        raises ConnectionValidationError if the upstream should answer, and does not
    :ivar check_use: checks that a task could use the candidate; raises ConnectionValidationError if it could not
    :ivar report: is called with each line of progress
    :ivar store_conn_id: the connection that says where the control store is, if there is one
    """

    store: ControlStore
    hashes: ContentHash
    gateway: _Gateway
    tasks: _Tasks
    read_secret: Callable[[SecretReference], str]
    test: Callable[[Definition], bool]
    identify: Callable[[Definition], str | None]
    check_use: Callable[[Definition, Use], None]
    report: Callable[[str], None]
    store_conn_id: str = ""
    sleep: Callable[[float], None] = time.sleep
