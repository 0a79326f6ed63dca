"""The health check of the containers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from demo.airflow_stack import free_port
from demo.probe import main as probe


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server with one document."""
    (tmp_path / "health.json").write_text('{"master": {"status": "ALIVE"}}')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_service_is_healthy_that_answers_with_the_expected_values(address: str) -> None:
    assert probe([f"{address}/health.json"]) == 0
    assert probe([f"{address}/health.json", "master.status=A*"]) == 0


def test_the_probe_says_what_is_not_well(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [f"http://127.0.0.1:{free_port()}/"],
        [f"{address}/nothing"],
        [f"{address}/health.json", "master.status=DEAD"],
        [f"{address}/health.json", "no.such.path=*E"],
        [f"{address}/", "status=ALIVE"],
    ):
        assert probe(arguments) == 1
        assert arguments[0] in capsys.readouterr().out
