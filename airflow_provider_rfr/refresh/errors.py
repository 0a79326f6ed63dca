"""Errors on their way from a task to the driver and into a log."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import RfrError, SourceError, SparkJobError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.secret_names import secrets_in

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.config import RefreshConfig


def portable_error(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """The error if it can travel and names no secret; else a :class:`SourceError` that says the same."""
    text = redact(str(error), secrets)
    if isinstance(error, RfrError) and text == str(error) and _travels(error):
        return error
    name = "" if isinstance(error, RfrError) else f"{type(error).__name__}: "
    return SourceError(
        f"{name}{text}" if text else type(error).__name__,
        status=getattr(error, "status", None),
        partition=getattr(error, "partition", None),
        page=getattr(error, "page", None),
    )


def refuses_generation(error: BaseException) -> bool:
    """Whether the same rows would meet this error of a publish again.

    Of errors that are not of this package, what the machine and the network do passes; all else is about the rows.
    """
    if isinstance(error, RfrError):
        return error.refuses_generation
    return not isinstance(error, (OSError, EOFError, MemoryError))


def may_pass(error: BaseException) -> bool:
    """Whether a task that met this error may do better when Spark runs it again: the network, a store, memory.

    An object store's error has no number; the number of a local disk's (full, read-only) comes again.
    """
    if isinstance(error, RfrError):
        return False
    return isinstance(error, (ConnectionError, TimeoutError, EOFError, MemoryError)) or (
        isinstance(error, OSError) and error.errno is None
    )


def task_error(error: BaseException) -> BaseException:
    """A task's error as it travels to the driver, which takes the secrets out of what it tells."""
    if isinstance(error, RfrError):
        return portable_error(error)
    return error if _travels(error) else SparkJobError(f"a task failed: {type(error).__name__}: {error}")


def redact(text: str, secrets: Iterable[str]) -> str:
    """``text`` with every secret value taken out, also as it looks in an address, in JSON and in basic auth."""
    return Redactor(list(secrets)).text(text)


def secret_values(*containers: Any) -> list[str]:
    """Every text of some length in the values of nested mappings and lists."""
    found: list[str] = []
    for container in containers:
        if isinstance(container, Mapping):
            found += secret_values(*container.values())
        elif isinstance(container, (list, tuple)):
            found += secret_values(*container)
        elif container is not None and len(str(container)) >= 4 and not isinstance(container, bool):
            found.append(str(container))
    return found


def secrets_of(config: RefreshConfig) -> list[str]:
    """Every secret value that a refresh knows: of its source and of its catalog."""
    lake = config.lake
    return secret_values(config.source.secrets, secrets_in(lake.plain_properties()), lake.referred_secrets())


def _travels(error: BaseException) -> bool:
    try:
        return str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:  # noqa: BLE001 - whatever goes wrong, it does not travel
        return False
