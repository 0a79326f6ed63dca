"""What was opened does not show itself."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import pprint
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.webhooks.sealing import open_sealed, read_file, seal_file
from airflow_provider_rfr.webhooks.sealing._documents import Opened, hidden
from airflow_provider_rfr.webhooks.sealing._sops import KeySources, data_key


def test_an_opened_document_has_no_secret_in_its_repr(
    sealed: dict[str, Any], key: Any, document: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_sealed(sealed, environment=key.environment)
    logging.getLogger().warning("opened %s %r", opened, opened["config"]["startDownstream"]["headers"])
    first = opened["config"]["startDownstream"]
    parts = [first["signing"]["secrets"], first["allowedHosts"], first["success"], [opened, (first,)]]
    copies = [copy.deepcopy(opened), pickle.loads(pickle.dumps(opened))]
    shown = f"{opened} {opened['config']!r} {caplog.text} {parts!r} {copies!r} {opened!s} {parts[0]} {parts[1]!s}"
    assert "canary" not in shown
    assert "<opened: interval, config>" in shown
    assert opened == document
    assert json.loads(json.dumps(opened)) == document


def test_an_opened_document_is_a_dict_of_dicts(sealed: dict[str, Any], key: Any) -> None:
    opened = open_sealed(sealed, environment=key.environment)
    assert isinstance(opened, dict)
    assert {**opened}["config"]["other"]["with"]["jobId"] == 17
    assert isinstance(hidden({"a": [{"b": 1}]})["a"][0], Opened)


def test_what_was_looked_at_shows_public_keys_alone(sealed: dict[str, Any], key: Any) -> None:
    _, looked = data_key(KeySources.of(sealed["sops"]), key.environment)
    assert key.public in str(looked[0])
    assert key.secret not in pprint.pformat(looked) + repr(looked) + str(looked[0])


@pytest.mark.parametrize(
    "text",
    [
        "config: {a: {url: canary-url-7Qz\n",
        "config:\n  a:\n    headers: {Authorization: *canary-url-7Qz}\n",
        "config: !canary-url-7Qz x\n",
        "config: &canary-url-7Qz x\n",
        "a: canary-url-7Qz\na: canary-second-4Tm\n",
        "canary-url-7Qz: 1\ncanary-url-7Qz: 2\n",
        "a: 'canary-url-7Qz\n",
        "a: canary-url-7Qz: b: c\n",
        "\tcanary-url-7Qz",
        "%canary-url-7Qz\n--- a",
        "a: canary-url-7Qz\n---\nb: 1\n",
        "a: \x00canary-url-7Qz",
        "- canary-url-7Qz",
        "canary-url-7Qz",
    ],
)
def test_a_file_that_is_no_document_is_told_without_its_text(
    text: str, tmp_path: Path, recipients: list[str], refusal: Any
) -> None:
    for name in ("a.yaml", "a.json"):
        (tmp_path / name).write_text(text)
        assert refusal(seal_file, tmp_path / name, recipients).startswith(str(tmp_path / name))


def test_a_file_that_can_not_be_read_is_told_by_its_name(tmp_path: Path, refusal: Any) -> None:
    assert "No such file" in refusal(read_file, tmp_path / "none.yaml")
    assert "Is a directory" in refusal(read_file, tmp_path)
    (tmp_path / "latin.yaml").write_bytes("url: canary-header-ü-9Rk".encode("latin-1"))
    assert "not UTF-8" in refusal(read_file, tmp_path / "latin.yaml")


def test_comments_which_may_hold_secrets_are_dropped_by_sealing(tmp_path: Path, recipients: list[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("config:\n  a:\n    # url: https://x/canary-url-7Qz\n    url: https://x\n    payload: {}\n")
    assert "canary" not in seal_file(path, recipients)
