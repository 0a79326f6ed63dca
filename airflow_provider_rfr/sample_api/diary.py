"""A file that records each served page, so that the record survives a kill of the API.

Each page is one JSON line: time, path, query, page, and ``[id, revision]`` of each record. The line is written
*before* the answer, unbuffered and in one call. So every page that a client received is in the file, whichever
process was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import orjson

from airflow_provider_rfr.sample_api.replies import EncodedReply


class Diary:
    """An append-only file; a restarted API continues the same file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, path: str, query: Mapping[str, str], reply: EncodedReply) -> None:
        """Record one page; ignore other answers."""
        if reply.page is None or reply.status != 200:
            return
        body = orjson.loads(reply.body)
        records = body if isinstance(body, list) else body["data"]
        line = {
            "at": time.time(),
            "path": path,
            "query": dict(query),
            "page": reply.page,
            "records": [[record["id"], record.get("revision", 0)] for record in records],
        }
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
