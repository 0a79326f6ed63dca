"""docker-compose.yaml and its environment file, read as Compose reads them, as far as this project uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
COMPOSE_FILE = ROOT / "docker-compose.yaml"
EXAMPLE = ROOT / ".env.example"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?:(?P<kind>:[-?])(?P<more>[^}]*))?\})")


def read_environment(text: str) -> dict[str, str]:
    """The values of an environment file."""
    lines = (line.partition("=") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


def read_compose(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The document with its variables filled in.

    :raises KeyError: a variable that has to be set is not
    """
    return dict(_filled(yaml.safe_load(text), environment))


def variables(text: str) -> set[str]:
    """Names of the variables that the file uses, comments left out."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {found["name"] for found in _VARIABLE.finditer("\n".join(lines)) if found["name"]}


def image_environment(dockerfile: str) -> dict[str, str]:
    """What the image itself sets."""
    return dict(re.findall(r"^ENV (\w+)=(\S+)$", dockerfile, re.M))


def _filled(part: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(part, dict):
        return {name: _filled(each, environment) for name, each in part.items()}
    if isinstance(part, list):
        return [_filled(each, environment) for each in part]
    if not isinstance(part, str):
        return part

    def value(found: re.Match[str]) -> str:
        if found["escaped"]:
            return "$"
        if given := environment.get(found["name"]):
            return given
        if found["kind"] == ":-":
            return str(found["more"])
        raise KeyError(found["name"])

    return _VARIABLE.sub(value, part)
