"""A sample API: an HTTP server with deterministic data, several kinds of paging, and faults on demand.

Resources, all ``GET``:

* ``/customers?page=&page_size=``: page numbers, with ``pages`` and ``total``
* ``/customers/{id}/orders?cursor=&limit=``: children of a parent, ``next_cursor`` in the body
* ``/orders?offset=&limit=``: offsets, with ``total``
* ``/invoices?page=&per_page=``: a bare list, the next page in the ``Link`` header
* ``/shipments?updated_since=&updated_before=&cursor=&limit=``: records in the order of their last changes, from
  one moment on and before another; deleted ones have ``is_deleted``
* ``/partitions`` and ``/partitions/{p}/items?page=&page_size=``: many independent partitions, for measuring

Start it with ``python -m airflow_provider_rfr.sample_api``, or by `SampleApi` in tests, demos and benchmarks; `SHOP` is
a source for it. The module ``app`` describes the faults, and ``__main__`` the requests for tests, such as the log of
served pages.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from airflow_provider_rfr.sample_api.dataset import Sizes, canonical, checksum

__all__ = ["SHOP", "SampleApi", "Sizes", "canonical", "checksum"]

SHOP: Final = Path(__file__).with_name("shop.yaml")
"""A source that reads this API, with one stream for each way of paging."""
_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 300.0


class SampleApi:
    """A context manager that runs a sample API in its own process. The process ends when its parent ends.

    ::

        with SampleApi(Sizes(records=500), latency_ms=20) as api:
            api.set_faults({"kind": "rate_limit", "path": "/orders", "after": 3, "times": 1})
            ...  # read from api.base_url
            assert api.counts()["refetched"] == 0
    """

    def __init__(
        self,
        sizes: Sizes | None = None,
        *,
        latency_ms: float = 0.0,
        api_key: str | None = None,
        faults: Sequence[Mapping[str, Any]] = (),
        warm: bool = False,
        port: int = 0,
        changes: Sequence[Mapping[str, Any]] = (),
        diary: Path | None = None,
    ) -> None:
        self.sizes = sizes or Sizes()
        self.api_key = api_key
        self.base_url = ""
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [sys.executable, "-m", "airflow_provider_rfr.sample_api"]
        values = {**asdict(self.sizes), "port": port, "latency_ms": latency_ms, "diary": diary, "api_key": api_key}
        values |= {"faults": json.dumps(list(faults)), "changes": json.dumps(list(changes))}
        self._command += ["--until-stdin-closes", *(["--warm"] if warm else [])]
        self._command += [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]

    def __enter__(self) -> SampleApi:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the id of the API's process.

        :raises RuntimeError: the API is not started
        """
        if self._process is None:
            raise RuntimeError("the sample API is not started")
        return self._process.pid

    def start(self) -> None:
        """Start the process, and return when it answers requests.

        :raises RuntimeError: the process ended
        """
        self._process = subprocess.Popen(
            self._command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the sample API ended with {self._process.wait()} at its start")
        ready = json.loads(line)
        self.base_url, self.port = ready["base_url"], ready["port"]

    def stop(self) -> None:
        """End the process and wait for it. Stopping twice does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        process.communicate()

    def kill(self) -> None:
        """Kill the process with SIGKILL. Its state is lost, except for its diary."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def change(self, change: Mapping[str, Any]) -> None:
        """Change the data now.

        :param change: a fault of kind ``shrink`` or ``edit`` with its ``collection``, or ``change_shipments``
        """
        self._call("POST", "change", change)

    def change_shipments(
        self, *, edit: Sequence[int] = (), add: int = 0, remove: Sequence[int] = (), at: datetime | None = None
    ) -> None:
        """Change shipments now.

        :param edit: ids; a deleted one comes back
        :param add: so many, with the ids that follow the largest one
        :param remove: ids
        :param at: ``updated_at`` of them all, with a time zone; by default the time at which the API gets the request
        """
        change = {"kind": "change_shipments", "edit": list(edit), "add": add, "remove": list(remove)}
        self.change({**change, "at": None if at is None else at.isoformat()})

    def set_faults(self, *faults: Mapping[str, Any]) -> None:
        """Replace all faults with these; none to end all faults."""
        self._call("POST", "faults", list(faults))

    def faults(self) -> list[dict[str, Any]]:
        """Return the active faults. ``seen`` counts their matching requests, ``used`` those that they changed."""
        return list(self._call("GET", "faults"))

    def log(self, *, since: int = 0, path: str = "*") -> list[dict[str, Any]]:
        return list(self._call("GET", f"log?{urlencode({'since': since, 'path': path})}"))

    def counts(self, *, since: int = 0, path: str = "*", detail: bool = False) -> dict[str, Any]:
        """Count the requests and pages served; ``refetched`` counts pages that were served again."""
        query = urlencode({"since": since, "path": path, "detail": int(detail)})
        return dict(self._call("GET", f"counts?{query}"))

    def truth(self, path: str) -> dict[str, Any]:
        """Return count, ids and checksum of a collection (the same as `dataset.checksum`)."""
        return dict(self._call("GET", "truth" + quote(path)))

    def records(self, path: str) -> dict[int, dict[str, Any]]:
        """Return the records of a collection as they are now, by id; of ``/shipments`` those that are not deleted."""
        return {record["id"]: record for record in self._call("GET", "records" + quote(path))}

    def wait_for_pages(self, pages: int, timeout: float = _PATIENCE) -> None:
        """Wait until this number of different pages was served.

        :raises TimeoutError: it took longer than ``timeout`` seconds
        """
        self._call("GET", f"wait?pages={pages}", timeout=timeout)

    def reset(self) -> None:
        """Forget requests, faults and changes of the data."""
        self._call("POST", "reset", [])

    def _call(self, method: str, name: str, body: Any = None, timeout: float = _PATIENCE) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, f"/_admin/{name}", None if body is None else json.dumps(body))
            response = connection.getresponse()
            value = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(value["error"])
        return value
