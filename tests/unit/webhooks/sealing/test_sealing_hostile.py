"""Documents that somebody made to break, stall or deceive the reader."""

from __future__ import annotations

import copy
import datetime
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.webhooks.block import _parse_document
from airflow_provider_rfr.webhooks.sealing import (
    check_sealed,
    open_sealed,
    read_file,
    reseal,
    seal,
    seal_file,
)
from airflow_provider_rfr.webhooks.sealing._documents import (
    _MAX_CHARACTERS,
    _MAX_DEPTH,
    _MAX_FILE,
    _MAX_NODES,
    _read_json,
    _read_yaml,
    _write_yaml,
    plain_copy,
)
from tests.soon import soon
from tests.unit.messages import check_messages


@pytest.fixture(autouse=True)
def in_bounded_time() -> Iterator[None]:
    with soon(time.thread_time):
        yield


def everywhere(document: Any, key: Any, refusal: Any, said: str) -> None:
    assert said in refusal(seal, document, [key.public])
    assert said in refusal(check_sealed, document)
    assert said in refusal(open_sealed, document, environment=key.environment)
    assert said in refusal(reseal, document, environment=key.environment)


def test_a_document_of_too_many_values_or_characters_is_refused(sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    for payload in ([0] * (_MAX_NODES + 1), {str(n): n for n in range(_MAX_NODES)}, "x" * (_MAX_CHARACTERS + 1)):
        sealed["config"]["other"]["payload"] = payload
        everywhere(sealed, key, refusal, "too large")


def test_a_bomb_of_aliases_is_refused_before_it_is_laid_out(sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    bomb: Any = "lol"
    for _ in range(30):
        bomb = [bomb] * 10
    sealed["config"]["other"]["payload"] = bomb
    everywhere(sealed, key, refusal, "too large")


def test_a_document_in_circles_or_too_deep_is_refused(sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    deep: Any = "x"
    for _ in range(_MAX_DEPTH + 1):
        deep = [deep]
    for payload in (circle, deep):
        sealed["config"]["other"]["payload"] = payload
        everywhere(sealed, key, refusal, f"deeper than {_MAX_DEPTH}")


def test_metadata_are_bounded_as_the_document_is(sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    deep: Any = {}
    for _ in range(_MAX_DEPTH + 1):
        deep = {"config": deep}
    sealed["sops"]["unknown"] = deep
    everywhere(sealed, key, refusal, "deeper than")


@pytest.mark.parametrize("wrong", [5, True, None, 1.5, ("a",), b"a"])
def test_keys_that_are_no_text_are_refused(wrong: Any, sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    sealed["config"]["other"]["payload"] = {wrong: "x"}
    everywhere(sealed, key, refusal, f"a key must be text, not {type(wrong).__name__}")


@pytest.mark.parametrize(
    "wrong",
    [
        b"x",
        datetime.date(2026, 1, 1),
        datetime.datetime(2026, 1, 1),
        {1, 2},
        object(),
        2**63,
        -(2**63) - 1,
        float("nan"),
        float("inf"),
        1j,
    ],
)
def test_values_that_json_does_not_have_are_refused(wrong: Any, sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    sealed["config"]["other"]["payload"] = {"x": wrong}
    everywhere(sealed, key, refusal, "/config/other/payload/x: a ")


def test_half_a_surrogate_pair_is_refused_as_key_and_as_value(document: dict[str, Any], key: Any, refusal: Any) -> None:
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


def test_texts_and_numbers_of_other_classes_are_sealed_as_what_they_are(key: Any) -> None:
    headers = {Masked("X-A"): Masked("https://real")}
    document = {"config": {"a": {"url": Masked("https://x"), "headers": headers, "with": {"id": Number.SEVEN}}}}
    opened = open_sealed(seal(document, [key.public]), environment=key.environment)["config"]["a"]
    assert opened == {"url": "https://x", "headers": {"X-A": "https://real"}, "with": {"id": 7}}
    assert type(opened["url"]) is str


def test_sops_elsewhere_in_the_document_seals_nothing(sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    metadata = sealed["sops"]
    nested = copy.deepcopy(sealed)
    nested["config"]["other"]["sops"] = metadata
    assert "/config/other/sops: unknown field" in refusal(open_sealed, nested, environment=key.environment)
    inside = {"config": {**sealed["config"], "sops": metadata}}
    assert "not sealed" in refusal(open_sealed, inside, environment=key.environment)
    payload = copy.deepcopy(sealed)
    payload["config"]["other"]["payload"] = {"sops": {"mac": "x"}}
    assert open_sealed(payload, environment=key.environment)["config"]["other"]["payload"] == {"sops": {"mac": "x"}}
    below = {"triggers": {"triggers": sealed}}
    assert "not sealed" in refusal(open_sealed, below, environment=key.environment)


def test_a_trigger_may_be_named_sops(key: Any) -> None:
    document = {"config": {"sops": {"url": "https://x", "payload": {}}}}
    assert open_sealed(seal(document, [key.public]), environment=key.environment) == document


def test_two_blocks_or_two_seals_are_refused(sealed: dict[str, Any], key: Any, refusal: Any) -> None:
    both = {"triggers": sealed, "sops": sealed["sops"]}
    check_messages(refusal(open_sealed, both, environment=key.environment))
    assert "another one below" in refusal(open_sealed, {**sealed, "triggers": sealed}, environment=key.environment)


def test_the_given_document_is_not_changed_and_may_be_frozen(
    sealed: dict[str, Any], document: dict[str, Any], key: Any
) -> None:
    before = copy.deepcopy(sealed)
    frozen = MappingProxyType({**sealed, "config": MappingProxyType(sealed["config"])})
    assert open_sealed(frozen, environment=key.environment) == document
    assert sealed == before
    assert plain_copy({"a": (1, 2)}) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x\n", "line 1, column 4: anchors and aliases"),
        ("a: &x {<<: *x}\n", "anchors"),
        ("a: *x\n", "anchors"),
        ("a: 1\na: 2\n", "line 2, column 1: duplicate key"),
        ("a: {b: 1, 'b': 2}\n", "duplicate key"),
        ("1: a\n", "a key must be text"),
        ("true: a\n", "a key must be text"),
        ("~: a\n", "a key must be text"),
        ("? [a]\n: b\n", "a key must be text"),
        ("? {a: b}\n: c\n", "a key must be text"),
        ("a: !!python/object/apply:os.system [ls]\n", "tags"),
        ("a: !!binary aGk=\n", "tags"),
        ("a: ! 5\n", "tags"),
        ("a: !!bool x\n", "tags"),
        ("a: !!timestamp x\n", "tags"),
        ("a: !!set {b}\n", "tags"),
        ("[" * 5000, "nested too deeply"),
        ("a: b\n---\nc: d\n", "is not YAML"),
        ("x" * (_MAX_FILE + 1), "larger than"),
    ],
)
def test_yaml_is_read_with_care(text: str, said: str, refusal: Any) -> None:
    assert said in refusal(_read_yaml, text)


SCALARS = "no yes on Off true TRUE 2026-01-01 1:30 1e3 1.5e3 0o17 017 0x1F 1_000 +1 .5 -1. .inf null ~ '5' '' 08"


def test_odd_scalars_mean_the_same_before_and_after_sealing() -> None:
    """Both to the configuration's reader and to this one, and to readers of YAML 1.2 no text is a number."""
    for scalar in SCALARS.split():
        value = _read_yaml(f"a: {scalar}\n")
        written = _write_yaml(value)
        read = _parse_document(f"a: {scalar}\n")
        assert value == read or str(read["a"]) == value["a"]
        assert _parse_document(written) == _read_yaml(written) == value
        assert not isinstance(value["a"], str) or written == f"a: '{value['a']}'\n"


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":{"b":1,"b":2}}',
        '{"a":NaN}',
        '{"a":Infinity}',
        "[" * 100_000,
        '{"a":' + "9" * 5000 + "}",
        "{",
        "",
    ],
)
def test_json_is_read_with_care(text: str, refusal: Any) -> None:
    refusal(_read_json, text)


def test_a_huge_file_is_not_read_whole(tmp_path: Path, recipients: list[str], refusal: Any) -> None:
    path = tmp_path / "a.yaml"
    with path.open("wb") as file:
        file.truncate(2**30)
    assert "larger than" in refusal(seal_file, path, recipients)


def test_a_document_at_its_limits_is_sealed_and_opened_in_seconds(key: Any) -> None:
    config = {
        f"t{n}": {"url": f"https://x/{n}", "headers": {f"H{m}": "v" for m in range(50)}, "payload": {}}
        for n in range(500)
    }
    document = {"config": config}
    assert open_sealed(seal(document, [key.public]), environment=key.environment) == document


def test_plain_yaml_readers_see_the_sealed_file_as_we_do(tmp_path: Path, key: Any, document: dict[str, Any]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(document))
    path.write_text(seal_file(path, [key.public]))
    assert yaml.safe_load(path.read_text()) == read_file(path)
