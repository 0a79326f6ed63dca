"""Reads YAML and JSON files strictly: a key that stands twice is an error, and no error shows what the file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_rfr.documents import DocumentError, read_yaml
from airflow_provider_rfr.webhooks.configuration.names import quoted

LARGEST_FILE = 4 * 1024 * 1024


def read_document(path: str | Path) -> Any:
    """The file's content: JSON by its suffix, else YAML.

    :raises DocumentError: there is no such file, or it is neither
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise DocumentError(f"has more than {LARGEST_FILE} bytes")
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DocumentError("is not in UTF-8") from None
    except OSError as error:
        raise DocumentError(f"can't be read: {error.strerror or type(error).__name__}") from None
    return parse_document(text, is_json=file.suffix.lower() == ".json")


def parse_document(text: str, *, is_json: bool = False) -> Any:
    """The content of a file with this text; raises :class:`DocumentError`."""
    try:
        return json.loads(text, object_pairs_hook=_once) if is_json else read_yaml(text)
    except DocumentError as error:
        problem = f"{quoted(error.key)} stands twice," if error.key is not None else error.problem
        raise DocumentError(f"{problem} at line {error.line}" if error.line else problem.rstrip(",")) from None
    except json.JSONDecodeError as error:
        raise DocumentError(f"is no JSON at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError, OverflowError):
        raise DocumentError("holds a value that can't be read") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DocumentError("a key stands twice", key=key)
        found[key] = value
    return found
