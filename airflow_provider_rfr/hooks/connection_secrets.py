"""Where ``SECRET 'backend:key'`` is read from, and which of it connections may be given.

* ``env:NAME``: environment of the process that alters; Airflow's own settings and connections are never read
* ``variable:NAME``: a variable of Airflow's, from wherever it comes
* ``file:NAME``: a file below ``/run/secrets``, or below the folder of ``[rfr] secret_files``
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from airflow.providers.common.compat.sdk import conf

from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.fields import mask_secrets

_NEVER = ("env:AIRFLOW_*", "env:AIRFLOW__*", "env:_AIRFLOW*")
_BACKENDS = ("env", "variable", "file")


class SecretReader:
    """Reads secrets; each is masked in this process's log from then on.

    :param variable: gives Airflow's variable of that name, or None
    """

    def __init__(self, variable: Callable[[str], str | None]) -> None:
        self._readers: dict[str, Callable[[str], str | None]] = {
            "env": os.environ.get,
            "variable": variable,
            "file": _of_file,
        }

    def read(self, reference: SecretReference) -> str:
        """:raises ConfigurationError: there is no such backend, or nothing there"""
        reader = self._readers.get(reference.backend)
        if reader is None:
            raise ConfigurationError(
                f"SECRET '{reference}'", "names no backend that is known", f"one of {', '.join(_BACKENDS)}"
            )
        value = reader(reference.key)
        if not value:
            raise ConfigurationError(f"SECRET '{reference}'", "is not there, or empty", "set it where this runs")
        mask_secrets([value])
        return value


def not_allowed(secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
    """Those that connections of this installation may not be given: ``[rfr] connection_secrets`` lists what they may.

    Whoever chooses a connection's host and its secret could read the secret at that host.
    """
    text = conf.get("rfr", "connection_secrets", fallback="") or "*"
    allowed = [pattern.strip() for pattern in text.split(",") if pattern.strip()]
    return [each for each in secrets if not _is_allowed(str(each), allowed)]


def _is_allowed(name: str, allowed: Sequence[str]) -> bool:
    if any(fnmatchcase(name, pattern) for pattern in _NEVER):
        return False
    return any(fnmatchcase(name, pattern) for pattern in allowed)


def _of_file(name: str) -> str | None:
    folder = Path(conf.get("rfr", "secret_files", fallback="") or "/run/secrets").resolve()
    try:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            return None
        return file.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        # The error of text that is no UTF-8 holds the file's content.
        raise ConfigurationError(
            f"SECRET 'file:{name}'", f"can't be read: {type(error).__name__}", "give a readable file of UTF-8 text"
        ) from None
