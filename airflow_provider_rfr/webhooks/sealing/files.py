"""Sealed documents in files, for the command line: text in, text out; nothing is written.

Messages give line and column, and nothing of the text, which may be secret.
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
from airflow_provider_rfr.webhooks.sealing.sealer import reseal, seal
from airflow_provider_rfr.webhooks.sealing.sops import shown

_LONGEST = 2 * 2**20
_YAML = "tag:yaml.org,2002"


class _Loader(StrictLoader):
    """Neither anchors nor keys that are no text: a seal could not keep them."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor:
            problem = "anchors and aliases are not kept in a seal; write it out"
            raise DocumentError(problem, event.start_mark.line + 1, event.start_mark.column + 1)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag != f"{_YAML}:str":
                mark = key.start_mark
                raise DocumentError("a key is not text; put it in quotes", mark.line + 1, mark.column + 1)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks; what any YAML may read as something else than text, in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Breaks that PyYAML writes into plain and single-quoted text and does not read back.
_LINE_BREAKS = re.compile("[\r\x85\u2028\u2029]")
# What YAML 1.2, and so the sops program, reads as numbers, and PyYAML as text.
_NUMBER = re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+)$")
_Dumper.add_implicit_resolver(f"{_YAML}:float", _NUMBER, list("-+.0123456789"))


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _LINE_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar(f"{_YAML}:str", text, style=style)


_Dumper.add_representer(str, _text)


def _read_yaml(text: str) -> Any:
    """:raises SealError: no YAML that a document can be, with line and column"""
    problem = ""
    try:
        return documents.read_yaml(_checked(text), _Loader)
    except DocumentError as error:
        problem = str(error)
    raise SealError(problem)  # here, so that no context hangs on the error


def _read_json(text: str) -> Any:
    """:raises SealError: no JSON, a key twice, or a number that is none"""
    problem = ""
    try:
        return json.loads(_checked(text), object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: not JSON"
    except (ValueError, RecursionError):
        problem = "duplicate key in one JSON object, a number is none, or it is nested too deeply"
    raise SealError(problem)


def _write_yaml(document: Any) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**30)
    return text


def _write_json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _checked(text: str) -> str:
    if len(text) > _LONGEST:
        raise SealError(f"the file is larger than {_LONGEST:,} characters")
    return text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError
    return result


def _no_number(name: str) -> Any:
    raise ValueError


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


def read_file(path: str | Path) -> Any:
    """The document in a file, JSON by its name or YAML, read with more care than YAML usually is.

    :raises SealError: no such file, not UTF-8, its syntax is wrong, duplicate keys, anchors
    """
    return _document(path, _content(path))


def _rewritten(path: str | Path, change: Callable[[Any], Any]) -> str:
    text = _content(path)
    document = _document(path, text)
    problem = ""
    try:
        result = change(document)
        write = _write_json if _is_json(path) else _write_yaml
        return text if result is None else write(result)
    except SealError as error:
        problem = str(error)
    raise SealError(f"{shown(path)}: {problem}")


def _document(path: str | Path, text: str) -> Any:
    problem = ""
    try:
        return _read_json(text) if _is_json(path) else _read_yaml(text)
    except SealError as error:
        problem = str(error)
    raise SealError(f"{shown(path)}: {problem}")


def _is_json(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".json"


def _content(path: str | Path) -> str:
    problem = "it is not UTF-8 text"
    try:
        with Path(path).open("rb") as file:
            return str(file.read(4 * _LONGEST + 1), "utf-8-sig")
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or problem
    raise SealError(f"{shown(path)} can't be read: {problem}")
