"""Errors that travel from a task to the driver and into a log: the secrets in them, and whether a repeat may help."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_rfr.exceptions import RfrError, SourceError, SparkJobError
from airflow_provider_rfr.http.redaction import Redactor, secrets_in

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.config import RefreshConfig


def portable_error(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """Return the error if it can be pickled and names no secret.

    Return a :class:`SourceError` with the same text, redacted, otherwise.
    """
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
    """Tell whether a publish of the same rows would fail with this error again.

    Errors of the machine and the network pass; any other error that is not of this package is taken to be about the
    rows.
    """
    if isinstance(error, RfrError):
        return error.refuses_generation
    return not isinstance(error, (OSError, EOFError, MemoryError))


def may_pass(error: BaseException) -> bool:
    """Tell whether a task with this error may succeed when Spark repeats it: network, object store, memory."""
    if isinstance(error, RfrError):
        return False
    # PyArrow's errors of an object store have no errno; those of a local disk (full, read-only) have, and come again.
    return isinstance(error, (ConnectionError, TimeoutError, EOFError, MemoryError)) or (
        isinstance(error, OSError) and error.errno is None
    )


def task_error(error: BaseException) -> BaseException:
    """Return a task's error, fit to travel to the driver; secrets are taken out there."""
    if isinstance(error, RfrError):
        return portable_error(error)
    return error if _travels(error) else SparkJobError(f"a task failed: {type(error).__name__}: {error}")


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` without secret values, also as they look in an address, in JSON and in basic auth."""
    return Redactor(list(secrets)).text(text)


def secret_values(*containers: Any) -> list[str]:
    """Return every value of at least four characters in nested mappings and lists, as text."""
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
    """Return every secret value in the document: of the source, the catalog and the control store."""
    lake, containers = config.lake, [config.source.secrets]
    if config.store is not None:
        with suppress(ValueError):
            containers.append({"password": unquote(urlsplit(config.store.get_secret_value()).password or "")})
    return secret_values(*containers, secrets_in(lake.plain_properties()), lake.referred_secrets())


def _travels(error: BaseException) -> bool:
    try:
        return str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:  # noqa: BLE001 - however pickling fails, the error can't travel
        return False
