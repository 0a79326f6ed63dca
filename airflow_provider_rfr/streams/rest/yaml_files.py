"""Reads YAML files with fewer surprises than usual.

A key that stands twice is an error, only ``true`` and ``false`` are booleans (``no`` is Norway), and dates
stay text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_rfr.exceptions import SourceDefinitionError


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int)) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark)
            if isinstance(key, (str, int)):
                seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def read_yaml(file: str | Path) -> Any:
    """The content of a YAML or JSON file.

    :raises SourceDefinitionError: no such file, or its syntax is wrong
    """
    problem = place = ""
    try:
        with Path(file).open("rb") as stream:
            return yaml.load(stream, Loader=_Loader)
    except OSError as error:
        place, problem = "file", f"can't be read: {error.strerror}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "syntax"
        problem = str(error.problem)
    except yaml.YAMLError:
        place, problem = "syntax", "the file is not YAML"
    raise SourceDefinitionError(place, problem, file=str(file))
