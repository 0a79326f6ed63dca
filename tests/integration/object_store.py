"""An S3-compatible store, and AWS Glue, on loopback: moto's server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer


@contextmanager
def moto_server() -> Iterator[tuple[str, int]]:
    """Yield host and port of a new server, which logs no line a request."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()
    finally:
        server.stop()
