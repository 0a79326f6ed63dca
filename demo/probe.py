"""``python -m demo.probe URL [PATH=PATTERN ...]``: a health check for images that have no curl.

It fails unless the URL answers with status 200, and the value at each path in the JSON answer matches its pattern.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import urllib.request
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 for a healthy service; for another, print the problem in one line and return 1."""
    url, *wanted = sys.argv[1:] if arguments is None else arguments
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=4) as answer:
            text = answer.read()
        content = json.loads(text) if wanted else None
    except (OSError, ValueError) as error:
        print(f"{url}: {error}")
        return 1
    for path, _, pattern in (condition.partition("=") for condition in wanted):
        if not fnmatch.fnmatchcase(str(value := value_at(content, path)), pattern):
            print(f"{url}: {path} is {value!r}, not {pattern!r}")
            return 1
    return 0


def value_at(content: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for name in path.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    return content


if __name__ == "__main__":
    sys.exit(main())
