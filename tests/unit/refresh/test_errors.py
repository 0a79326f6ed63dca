"""What an error says when it has left the task."""

from __future__ import annotations

import base64

import pytest

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.refresh.cluster import portable_error
from airflow_provider_rfr.refresh.config import redact
from airflow_provider_rfr.refresh.pages import encode_records
from tests.unit.messages import raises

SECRET = 'p@ss/word+1"x'


@pytest.mark.parametrize("form", [SECRET, "p%40ss%2Fword%2B1%22x", "p%40ss/word%2B1%22x", 'p@ss/word+1\\"x'])
def test_a_secret_is_taken_out_in_every_form_it_has_in_addresses_and_json(form: str) -> None:
    error = portable_error(OSError(f"no answer: /x?api_key={form}&page=2"), [SECRET])
    assert str(error) == "OSError: no answer: /x?api_key=***&page=2"
    assert base64.b64encode(b"short").decode() in redact(base64.b64encode(b"short").decode(), [SECRET])


def test_a_record_that_cant_be_written_is_named() -> None:
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(400):
        inner["a"] = inner = {}  # type: ignore[assignment]
    with raises(SourceError):
        encode_records([{"id": 1}, deep])
