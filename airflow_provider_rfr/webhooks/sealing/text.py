"""YAML and JSON text of documents, read strictly, and written so that it can be edited and any reader agrees.

Messages give line and column, and nothing of the text: it may be secret.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from airflow_provider_rfr.exceptions import SealError

LONGEST = 2 * 2**20
_YAML = "tag:yaml.org,2002"
_TAGS = (None, f"{_YAML}:str", f"{_YAML}:map", f"{_YAML}:seq")


class _Refused(yaml.MarkedYAMLError):
    """With a problem of our own words."""


class _Loader(yaml.SafeLoader):
    """Scalars are read as the configuration's reader reads them, but dates are text. Neither keys twice nor anchors."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor:
            problem = "anchors and aliases are not kept in a seal; write it out"
            raise _Refused(problem=problem, problem_mark=event.start_mark)
        if event.tag not in _TAGS:
            raise _Refused(problem="tags are not kept in a seal", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag != f"{_YAML}:str":
                raise _Refused(problem="a key is not text; put it in quotes", problem_mark=key_node.start_mark)
            if key_node.value in seen:
                raise _Refused(problem="a key stands twice", problem_mark=key_node.start_mark)
            seen.add(key_node.value)
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
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("timestamp", "merge", "value")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _LINE_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar(f"{_YAML}:str", text, style=style)


_Dumper.add_representer(str, _text)


def read_yaml(text: str) -> Any:
    """:raises SealError: no YAML that a document can be, with line and column"""
    problem = ""
    try:
        return yaml.load(_checked(text), Loader=_Loader)  # a SafeLoader
    except _Refused as error:
        problem = f"{_place(error)}: {error.problem}"
    except yaml.MarkedYAMLError as error:
        problem = f"{_place(error)}: not YAML, or of a type that JSON does not have"
    except (yaml.YAMLError, ValueError, RecursionError):
        problem = "not YAML, or nested too deeply"
    raise SealError(problem)  # here, so that no context hangs on the error


def read_json(text: str) -> Any:
    """:raises SealError: no JSON, a key twice, or a number that is none"""
    problem = ""
    try:
        return json.loads(_checked(text), object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: not JSON"
    except (ValueError, RecursionError):
        problem = "a key stands twice in one JSON object, a number is none, or it is nested too deeply"
    raise SealError(problem)


def write_yaml(document: Any) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**30)
    return text


def write_json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _checked(text: str) -> str:
    if len(text) > LONGEST:
        raise SealError(f"the file is larger than {LONGEST:,} characters")
    return text


def _place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError
    return result


def _no_number(name: str) -> Any:
    raise ValueError
