"""``/_admin``: faults, the journal and the truth, for tests and demos. It needs no key and is never faulty.

* ``GET /_admin/health``
* ``GET | POST | DELETE /_admin/faults``: the faults in force; POST replaces them by a JSON list
* ``GET /_admin/log?since=N&path=GLOB``: the data requests
* ``GET /_admin/counts?since=N&path=GLOB&detail=1``: pages served once, and more often
* ``GET /_admin/wait?pages=N``: answers after N different pages were served
* ``POST /_admin/change``: a fault of a kind that changes data (``shrink``, ``edit``), at once
* ``POST /_admin/reset``: forget requests, faults and changes of the data
* ``GET /_admin/truth/COLLECTION``: ids and checksum as they are now; ``/customers/orders`` and
  ``/partitions/items`` stand for the children of all
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import orjson

from airflow_provider_rfr.sample_api.app import ReceivedRequest, ReplyPlan, SampleApp, split_target
from airflow_provider_rfr.sample_api.dataset import checksum, records_of
from airflow_provider_rfr.sample_api.faults import Fault
from airflow_provider_rfr.sample_api.pages import EncodedReply, error_reply, json_reply

PREFIX = "/_admin/"


def administer(app: SampleApp, request: ReceivedRequest) -> ReplyPlan:
    """Answer one request below ``/_admin``."""
    path, query = split_target(request.target)
    name = path.removeprefix(PREFIX)
    try:
        if name == "wait":
            pages = int(query["pages"])
            return ReplyPlan(json_reply({"pages": pages}), subscribe=partial(app.journal.when, pages))
        return ReplyPlan(_reply(app, request, name, query))
    except (ValueError, TypeError) as error:
        return ReplyPlan(error_reply(400, str(error)))
    except KeyError as error:
        return ReplyPlan(error_reply(404, f"nothing exists at {error.args[0]}"))


def _reply(app: SampleApp, request: ReceivedRequest, name: str, query: Mapping[str, str]) -> EncodedReply:
    if name.startswith("truth/"):
        return json_reply(truth(app, name.removeprefix("truth")))
    if name == "faults":
        return _faults(app, request)
    if name == "counts":
        detail = query.get("detail", "0") != "0"
        return json_reply(app.journal.counts(query.get("path", "*"), int(query.get("since", 0)), detail))
    if name == "log":
        since, path = int(query.get("since", 0)), query.get("path", "*")
        entries = (entry for entry in app.journal.entries if entry.sequence > since and fnmatchcase(entry.path, path))
        return json_reply([entry.to_json() for entry in entries])
    if name == "health":
        return json_reply({"ok": True})
    if name == "reset" and request.method == "POST":
        app.reset()
        return json_reply({"ok": True})
    if name == "change" and request.method == "POST":
        app.change(Fault.from_json(orjson.loads(request.body)))
        return json_reply({"ok": True})
    raise KeyError(PREFIX + name)


def truth(app: SampleApp, path: str) -> dict[str, Any]:
    """Return count, ids and checksum of a collection.

    :raises KeyError: no such collection
    """
    records = list(records_of(app.dataset.family(path)))
    return {"count": len(records), "ids": [record["id"] for record in records], "checksum": checksum(records)}


def _faults(app: SampleApp, request: ReceivedRequest) -> EncodedReply:
    if request.method == "POST":
        app.faults.replace(orjson.loads(request.body))
    elif request.method == "DELETE":
        app.faults.replace([])
    return json_reply([fault.to_json() for fault in app.faults.faults])
