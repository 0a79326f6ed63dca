"""Sealed documents in files, for the command line: text in, text out; nothing is written.

Errors give line and column and nothing of the text, which may be secret. They are raised outside of ``except`` blocks,
so that no context with a secret is attached to them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_rfr import documents
from airflow_provider_rfr.documents import DocumentError, StrictLoader
from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing._documents import reseal, seal
from airflow_provider_rfr.webhooks.sealing._sops import shown

_MAX_FILE = 2 * 2**20
_STR, _FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"


def seal_file(path: str | Path, recipients: Sequence[str]) -> str:
    """Return the file's text with its triggers sealed.

    Comments are dropped; a file that is sealed already is not changed.

    :raises SealError: as :func:`seal`, with the file's name
    """
    return _rewritten(path, lambda document: seal(document, recipients))


def reseal_file(
    path: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    recipients: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return the text of a sealed file under a new data key; see :func:`reseal`."""
    return _rewritten(
        path, lambda document: reseal(document, changes=changes, recipients=recipients, environment=environment)
    )


def read_file(path: str | Path) -> Any:
    """Return the document in a file: JSON if its name ends so, else YAML.

    :raises SealError: the file can't be read, is not UTF-8, has wrong syntax, duplicate keys or anchors
    """
    return _read(path)[1]


def _rewritten(path: str | Path, change: Callable[[Any], Any]) -> str:
    text, document = _read(path)
    try:
        changed = change(document)
    except SealError as error:
        problem = str(error)
    else:
        if changed == document:
            return text
        return json.dumps(changed, indent=2, ensure_ascii=False) + "\n" if _is_json(path) else _write_yaml(changed)
    raise SealError(f"{shown(path)}: {problem}")


def _read(path: str | Path) -> tuple[str, Any]:
    """Return the file's text and document."""
    try:
        with Path(path).open("rb") as file:
            text = str(file.read(4 * _MAX_FILE + 1), "utf-8-sig")
        return text, _read_json(text) if _is_json(path) else _read_yaml(text)
    except SealError as error:
        problem = str(error)
    except (OSError, ValueError) as error:
        problem = f"can't be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
    raise SealError(f"{shown(path)}: {problem}")


def _is_json(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".json"


def _checked_size(text: str) -> str:
    if len(text) > _MAX_FILE:
        raise SealError(f"the file is larger than {_MAX_FILE:,} characters")
    return text


def _read_json(text: str) -> Any:
    """Parse JSON.

    :raises SealError: wrong syntax, a duplicate key, NaN or infinity
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def refused(constant: str) -> Any:
        raise ValueError

    try:
        return json.loads(_checked_size(text), object_pairs_hook=unique, parse_constant=refused)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: is not JSON"
    except (ValueError, RecursionError):
        problem = "duplicate key, invalid number, or nested too deeply"
    raise SealError(problem)


class _Loader(StrictLoader):
    """A YAML loader that refuses anchors, and keys that are not text: a sealed document can't have them."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor:
            problem = "anchors and aliases are not allowed in a sealed document; write the value out"
            raise DocumentError(problem, event.start_mark.line + 1, event.start_mark.column + 1)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag != _STR:
                mark = key.start_mark
                raise DocumentError("a key must be text; put it in quotes", mark.line + 1, mark.column + 1)
        return super().construct_mapping(node, deep)


def _read_yaml(text: str) -> Any:
    """Parse YAML.

    :raises SealError: wrong syntax, with line and column
    """
    try:
        return documents.read_yaml(_checked_size(text), _Loader)
    except DocumentError as error:
        problem = str(error)
    raise SealError(problem)


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes texts of several lines as blocks, and quotes texts that other readers may misread."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if _LINE_BREAKS.search(text) else "|" if "\n" in text else None
        return self.represent_scalar(_STR, text, style=style)


# Line breaks that PyYAML writes into plain and single-quoted text and does not read back.
_LINE_BREAKS = re.compile("[\r\x85\u2028\u2029]")
# Numbers for YAML 1.2, and so for the sops program, but text for PyYAML. A resolver makes PyYAML quote them.
_NUMBER = re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+)$")
_Dumper.add_implicit_resolver(_FLOAT, _NUMBER, list("-+.0123456789"))
_Dumper.add_representer(str, _Dumper.represent_text)


def _write_yaml(document: Any) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**30)
    return text
