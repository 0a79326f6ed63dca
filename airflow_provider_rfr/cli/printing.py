"""Values on the terminal, for people or for scripts."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from airflow_provider_rfr.store.clock import instant


def print_value(value: Any, args: Namespace) -> None:
    """Print lists and mappings: for scripts where ``--output`` says so, else a line each."""
    if not print_data(value, args):
        print("\n".join(lines_of(value)) or "nothing")


def print_data(value: Any, args: Namespace) -> bool:
    """Print the value as JSON or YAML where ``--output`` asks for that; else print nothing, and return False."""
    if args.output not in ("json", "yaml"):
        return False
    text = json.dumps(value, indent=2, default=str)
    print(text if args.output == "json" else yaml.safe_dump(json.loads(text), sort_keys=False).rstrip())
    return True


def lines_of(value: Any) -> Iterator[str]:
    """The same for people."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if isinstance(each, (Mapping, list)):
                yield f"{name}:" if each else f"{name}: none"
                yield from (f"  {line}" for line in lines_of(each))
            else:
                yield f"{name}: {'none' if each is None else each}"
    elif isinstance(value, list):
        for each in value:
            named = each.items() if isinstance(each, Mapping) else ((None, each),)
            yield "  ".join(str(text) if name is None else f"{name}={text}" for name, text in named if text is not None)


def moment(milliseconds: int | None) -> str | None:
    """A time of the control store."""
    return None if milliseconds is None else instant(milliseconds).isoformat(timespec="seconds")
