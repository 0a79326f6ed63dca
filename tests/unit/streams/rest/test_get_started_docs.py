"""The source of docs/get_started.md for one's own API reads an API with a key and cursors to its end."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from rest_api import Api, Asked, Reply

from airflow_provider_rfr.streams.loader import load_stream

PAGE = (Path(__file__).parents[4] / "docs" / "get_started.md").read_text()
COUNT = 120


def tickets(asked: Asked) -> Reply:
    """Return a page of tickets as an API with a key and cursors does."""
    if asked.headers.get("X-Api-Key") != "secret-key":
        return Reply({"error": "no key"}, 401)
    begin, size = int(asked.query.get("cursor", 0)), int(asked.query["limit"])
    rows = [{"id": i, "created_at": "2026-01-01T00:00:00Z"} for i in range(begin + 1, min(begin + size, COUNT) + 1)]
    end = begin + size
    return Reply({"data": rows, "paging": {"next": str(end) if end < COUNT else None}})


def test_it_reads_all_pages_with_the_key(api: Api) -> None:
    api.answer = tickets
    [block] = re.findall(r"^    ```yaml\n(.*?)^    ```", PAGE, re.DOTALL | re.MULTILINE)
    definition = yaml.safe_load(block)
    source = {"definition": definition, "config": {"base_url": api.url}, "secrets": {"api_key": "secret-key"}}
    stream = load_stream(source, "tickets")
    assert [record["id"] for record in stream.read_records()] == list(range(1, COUNT + 1))
    assert [asked.query.get("cursor") for asked in api.asked] == [None, "50", "100"]
    assert {asked.path.partition("?")[0] for asked in api.asked} == {"/v1/tickets"}
