"""Documents in files, for the command line: text in, text out; nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.legacy import import_sealed
from airflow_provider_rfr.webhooks.sealing.pointers import shown
from airflow_provider_rfr.webhooks.sealing.sealer import reseal, seal
from airflow_provider_rfr.webhooks.sealing.text import LONGEST, read_json, read_yaml, write_json, write_yaml


def seal_file(path: str | Path, recipients: Sequence[str]) -> str:
    """The file's text with its triggers sealed; of a file that is sealed, its text as it is. Comments are dropped.

    :raises SealError: as :func:`seal`, with the file's name
    """

    def sealed(document: Any) -> Any:
        result = seal(document, recipients)
        return None if result == document else result

    return _rewritten(path, sealed)


def reseal_file(
    path: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    recipients: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The text of a sealed file under a new data key: see :func:`reseal`."""
    return _rewritten(
        path,
        lambda document: reseal(document, changes=changes, recipients=recipients, environment=environment),
    )


def import_file(path: str | Path, recipients: Sequence[str], *, environment: Mapping[str, str] = os.environ) -> str:
    """The text of a file that Estuary Flow or the sops program sealed, in our form: see :func:`import_sealed`."""
    return _rewritten(path, lambda document: import_sealed(document, recipients, environment=environment))


def read_file(path: str | Path) -> Any:
    """The document in a file, JSON by its name or YAML, read with more care than YAML usually is.

    :raises SealError: no such file, not UTF-8, its syntax is wrong, keys that stand twice, anchors
    """
    return _document(path, _content(path))


def _rewritten(path: str | Path, change: Callable[[Any], Any]) -> str:
    text = _content(path)
    document = _document(path, text)
    problem = ""
    try:
        result = change(document)
        write = write_json if _is_json(path) else write_yaml
        return text if result is None else write(result)
    except SealError as error:
        problem = str(error)
    raise SealError(f"{shown(path)}: {problem}")


def _document(path: str | Path, text: str) -> Any:
    problem = ""
    try:
        return read_json(text) if _is_json(path) else read_yaml(text)
    except SealError as error:
        problem = str(error)
    raise SealError(f"{shown(path)}: {problem}")


def _is_json(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".json"


def _content(path: str | Path) -> str:
    problem = "it is not UTF-8 text"
    try:
        with Path(path).open("rb") as file:
            return str(file.read(4 * LONGEST + 1), "utf-8-sig")
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or problem
    raise SealError(f"{shown(path)} can't be read: {problem}")
