"""What was served, in a file: the journal in memory dies with the API, and a kill must not hide a page.

One JSON line a page: when, path, query, what was read, and ``[id, revision]`` of each record. A line is written
*before* the answer, in one call and past any buffer, so whatever a client holds is in the
file, whichever process was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import orjson

from airflow_provider_rfr.sample_api.replies import Reply


class Diary:
    """Appends to one file; a second API with the same file continues in it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, path: str, query: Mapping[str, str], reply: Reply) -> None:
        """Note one page; answers that are no page are left out."""
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
