"""Documents that somebody made to break, stall or deceive the reader."""

from __future__ import annotations

import copy
import datetime
import json
import logging
import pickle
import pprint
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from airflow_provider_rfr.documents import read_yaml
from airflow_provider_rfr.webhooks._sops import KeySources, data_key
from airflow_provider_rfr.webhooks.sealing import (
    _MAX_CHARACTERS,
    _MAX_DEPTH,
    _MAX_FILE,
    _MAX_NODES,
    Opened,
    _read_json,
    _write_yaml,
    check_sealed,
    hidden,
    open_sealed,
    plain_copy,
    read_file,
    reseal,
    seal,
    seal_file,
)
from tests.soon import soon
from tests.unit.messages import check_messages


@pytest.fixture(autouse=True)
def in_bounded_time() -> Iterator[None]:
    with soon(time.thread_time):
        yield


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"config": [value]}
    return value


def bomb() -> Any:
    value: Any = "lol"
    for _ in range(30):
        value = [value] * 10
    return value


def circle() -> Any:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ([0] * (_MAX_NODES + 1), "too large"),
        (["x" * (_MAX_CHARACTERS + 1)], "too large"),
        (bomb(), "too large"),
        (circle(), f"deeper than {_MAX_DEPTH}"),
        (nested(_MAX_DEPTH), f"deeper than {_MAX_DEPTH}"),
        ({5: "x"}, "a key must be text, not int"),
        ({None: "x"}, "a key must be text, not NoneType"),
        ({"x": b"x"}, "/config/other/payload/x: a bytes"),
        ({"x": {1, 2}}, "/config/other/payload/x: a set"),
        ({"x": datetime.date(2026, 1, 1)}, "/config/other/payload/x: a date"),
        ({"x": 2**63}, "/config/other/payload/x: a int"),
        ({"x": -(2**63) - 1}, "/config/other/payload/x: a int"),
        ({"x": float("nan")}, "/config/other/payload/x: a float"),
    ],
)
def test_what_json_does_not_have_and_what_is_too_much_is_refused_everywhere(
    payload: Any, problem: str, sealed: Any, key: Any, refusal: Any
) -> None:
    sealed["config"]["other"]["payload"] = payload
    assert problem in refusal(seal, sealed, [key.public])
    assert problem in refusal(check_sealed, sealed)
    assert problem in refusal(open_sealed, sealed, environment=key.environment)
    assert problem in refusal(reseal, sealed, environment=key.environment)


def test_metadata_are_bounded_as_the_document_is(sealed: Any, opens: Any, refusal: Any) -> None:
    sealed["sops"]["unknown"] = nested(_MAX_DEPTH)
    assert "deeper than" in refusal(opens, sealed)


def test_half_a_surrogate_pair_is_refused_as_key_and_as_value(document: Any, key: Any, refusal: Any) -> None:
    for where in ({"\ud800": "x"}, {"x": "canary-url-7Qz\udfff"}):
        document["config"]["startDownstream"]["headers"] = where
        assert "surrogate" in refusal(seal, document, [key.public])


def test_names_that_would_write_into_logs_are_shown_harmlessly(changed: Any, refusal: Any) -> None:
    message = refusal(check_sealed, changed("config", "a\nroot: \x1b[2J" + "x" * 1000, {"url": "x"}))
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 500


class Masked(str):
    def __str__(self) -> str:
        return "***"


class Number(IntEnum):
    SEVEN = 7


def test_texts_and_numbers_of_other_classes_are_sealed_as_what_they_are(key: Any, opens: Any) -> None:
    headers = {Masked("X-A"): Masked("https://real")}
    document = {"config": {"a": {"url": Masked("https://x"), "headers": headers, "with": {"id": Number.SEVEN}}}}
    opened = opens(seal(document, [key.public]))["config"]["a"]
    assert opened == {"url": "https://x", "headers": {"X-A": "https://real"}, "with": {"id": 7}}
    assert type(opened["url"]) is str


def test_sops_elsewhere_in_the_document_seals_nothing(sealed: Any, opens: Any, refusal: Any) -> None:
    metadata = sealed["sops"]
    nested = copy.deepcopy(sealed)
    nested["config"]["other"]["sops"] = metadata
    assert "/config/other/sops: unknown field" in refusal(opens, nested)
    assert "not sealed" in refusal(opens, {"config": {**sealed["config"], "sops": metadata}})
    assert "not sealed" in refusal(opens, {"triggers": {"triggers": sealed}})
    sealed["config"]["other"]["payload"] = {"sops": {"mac": "x"}}
    assert opens(sealed)["config"]["other"]["payload"] == {"sops": {"mac": "x"}}


def test_a_trigger_may_be_named_sops(key: Any, opens: Any) -> None:
    document = {"config": {"sops": {"url": "https://x", "payload": {}}}}
    assert opens(seal(document, [key.public])) == document


def test_two_blocks_or_two_seals_are_refused(sealed: Any, opens: Any, refusal: Any) -> None:
    check_messages(refusal(opens, {"triggers": sealed, "sops": sealed["sops"]}))
    assert "another one below" in refusal(opens, {**sealed, "triggers": sealed})


def test_the_given_document_is_not_changed_and_may_be_frozen(sealed: Any, document: Any, opens: Any) -> None:
    before = copy.deepcopy(sealed)
    frozen = MappingProxyType({**sealed, "config": MappingProxyType(sealed["config"])})
    assert opens(frozen) == document
    assert sealed == before
    assert plain_copy({"a": (1, 2)}) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x\n", "line 1, column 4: anchors and aliases"),
        ("a: &x {<<: *x}\n", "anchors"),
        ("a: 1\na: 2\n", "line 2, column 1: duplicate key"),
        ("1: a\n", "a key must be text"),
        ("? {a: b}\n: c\n", "a key must be text"),
        ("a: !!binary aGk=\n", "tags"),
        ("x" * (_MAX_FILE + 1), "larger than"),
    ],
)
def test_yaml_is_read_with_care(text: str, said: str, refusal: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert said in refusal(read_file, path)


SCALARS = "no yes on Off true TRUE 2026-01-01 1:30 1e3 1.5e3 0o17 017 0x1F 1_000 +1 .5 -1. .inf null ~ '5' '' 08"


def test_odd_scalars_mean_the_same_before_and_after_sealing() -> None:
    """Both to the configuration's reader and to this one, and to readers of YAML 1.2 no text is a number."""
    for scalar in SCALARS.split():
        value = read_yaml(f"a: {scalar}\n", explicit=True)
        written = _write_yaml(value)
        read = read_yaml(f"a: {scalar}\n")
        assert value == read or str(read["a"]) == value["a"]
        assert read_yaml(written) == read_yaml(written, explicit=True) == value
        assert not isinstance(value["a"], str) or written == f"a: '{value['a']}'\n"


@pytest.mark.parametrize("text", ['{"a":{"b":1,"b":2}}', '{"a":NaN}', "[" * 100_000, '{"a":' + "9" * 5000 + "}", "{"])
def test_json_is_read_with_care(text: str, refusal: Any) -> None:
    refusal(_read_json, text)


def test_a_huge_file_is_not_read_whole(tmp_path: Path, recipients: Any, refusal: Any) -> None:
    path = tmp_path / "a.yaml"
    with path.open("wb") as file:
        file.truncate(2**30)
    assert "larger than" in refusal(seal_file, path, recipients)


def test_a_document_at_its_limits_is_sealed_and_opened_in_seconds(key: Any, opens: Any) -> None:
    config = {
        f"t{n}": {"url": f"https://x/{n}", "headers": {f"H{m}": "v" for m in range(50)}, "payload": {}}
        for n in range(500)
    }
    document = {"config": config}
    assert opens(seal(document, [key.public])) == document


# What was opened does not show itself.


def test_an_opened_document_has_no_secret_in_its_repr(
    sealed: Any, key: Any, document: Any, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_sealed(sealed, environment=key.environment)
    logging.getLogger().warning("opened %s %r", opened, opened["config"]["startDownstream"]["headers"])
    first = opened["config"]["startDownstream"]
    parts = [first["signing"]["secrets"], first["allowedHosts"], first["success"], [opened, (first,)]]
    copies = [copy.deepcopy(opened), pickle.loads(pickle.dumps(opened))]
    shown = f"{opened} {opened['config']!r} {caplog.text} {parts!r} {copies!r} {opened!s} {parts[0]} {parts[1]!s}"
    assert "canary" not in shown
    assert "<opened: interval, config>" in shown
    assert {**opened}["config"]["other"]["with"]["jobId"] == 17
    assert isinstance(hidden({"a": [{"b": 1}]})["a"][0], Opened)
    assert opened == document
    assert json.loads(json.dumps(opened)) == document


def test_what_was_looked_at_shows_public_keys_alone(sealed: Any, key: Any) -> None:
    _, looked = data_key(KeySources.of(sealed["sops"]), key.environment)
    assert key.public in str(looked[0])
    assert key.secret not in pprint.pformat(looked) + repr(looked) + str(looked[0])


@pytest.mark.parametrize(
    "text",
    [
        "config: {a: {url: canary-url-7Qz\n",
        "config:\n  a:\n    headers: {Authorization: *canary-url-7Qz}\n",
        "a: canary-url-7Qz\na: canary-second-4Tm\n",
        "a: \x00canary-url-7Qz",
        "canary-url-7Qz",
    ],
)
def test_a_file_that_is_no_document_is_told_without_its_text(
    text: str, tmp_path: Path, recipients: Any, refusal: Any
) -> None:
    for name in ("a.yaml", "a.json"):
        (tmp_path / name).write_text(text)
        assert refusal(seal_file, tmp_path / name, recipients).startswith(str(tmp_path / name))


def test_a_file_that_can_not_be_read_is_told_by_its_name(tmp_path: Path, refusal: Any) -> None:
    assert "No such file" in refusal(read_file, tmp_path / "none.yaml")
    assert "Is a directory" in refusal(read_file, tmp_path)
    (tmp_path / "latin.yaml").write_bytes("url: canary-header-ü-9Rk".encode("latin-1"))
    assert "not UTF-8" in refusal(read_file, tmp_path / "latin.yaml")


def test_comments_which_may_hold_secrets_are_dropped_by_sealing(tmp_path: Path, recipients: Any) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("config:\n  a:\n    # url: https://x/canary-url-7Qz\n    url: https://x\n    payload: {}\n")
    assert "canary" not in seal_file(path, recipients)
