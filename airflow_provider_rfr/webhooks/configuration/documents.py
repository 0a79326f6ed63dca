"""Reads YAML and JSON files strictly: a key that stands twice is an error, and no error shows what the file holds."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_rfr.webhooks.configuration.names import quoted

LARGEST_FILE = 4 * 1024 * 1024


class DocumentError(ValueError):
    """The file can't be read; the message says where, not what."""


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
        return json.loads(text, object_pairs_hook=_once) if is_json else yaml.load(text, _StrictLoader)
    except DocumentError:
        raise
    except json.JSONDecodeError as error:
        raise DocumentError(f"is no JSON at line {error.lineno}, column {error.colno}") from None
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        raise DocumentError(f"is no YAML at line {place.line + 1}" if place else "is no YAML") from None
    except (ValueError, RecursionError, OverflowError):
        raise DocumentError("holds a value that can't be read") from None


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise DocumentError(f"{quoted(key.value)} stands twice, at line {key.start_mark.line + 1}")
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DocumentError(f"{quoted(key)} stands twice")
        found[key] = value
    return found
