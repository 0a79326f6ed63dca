"""An S3-compatible store, and AWS Glue, on loopback: moto's server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse
from moto.server import ThreadedMotoServer

_UPDATE = threading.Lock()
_update_table = GlueResponse.update_table


def _update_this_version(response: GlueResponse) -> Any:
    """Refuse the update of another version of a table than the present one, as AWS does and moto does not."""
    wanted, name = response.parameters.get("VersionId"), response.parameters["TableInput"]["Name"]
    with _UPDATE:
        table = response.glue_backend.get_table(response.parameters["DatabaseName"], name)
        if wanted is not None and wanted != table.as_dict()["VersionId"]:
            raise GlueClientError("ConcurrentModificationException", f"{name} has changed since version {wanted}")
        return _update_table(response)


@contextmanager
def moto_server() -> Iterator[tuple[str, int]]:
    """Yield host and port of a new server, which logs no line a request."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    with patch.object(GlueResponse, "update_table", _update_this_version):
        server.start()
        try:
            yield server.get_host_and_port()
        finally:
            server.stop()
