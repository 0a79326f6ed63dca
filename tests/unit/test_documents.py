"""YAML means the same in every package, and what could be read in two ways is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from airflow_provider_rfr.builtins.declarations import documents
from airflow_provider_rfr.documents import DocumentError, nearest, plain_value, problems_of, read_yaml, suggestion
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.refresh.config import read_config
from airflow_provider_rfr.webhooks.block import load_document
from airflow_provider_rfr.webhooks.sealing import read_file
from tests.unit.messages import raises

TEXT = """
a: no
d: 2024-01-01
t: 12:30:45
v: 1.10
octal: 0777
hex: 0x1F
under: 1_000
inf: .inf
yes: true
null_: ~
empty:
float: 1e3
quoted: 'no'
list: [on, off, False, -5]
"""
VALUE = {
    "a": "no",
    "d": "2024-01-01",
    "t": "12:30:45",
    "v": 1.1,
    "octal": 777,
    "hex": "0x1F",
    "under": "1_000",
    "inf": ".inf",
    "yes": True,
    "null_": None,
    "empty": None,
    "float": 1000.0,
    "quoted": "no",
    "list": ["on", "off", False, -5],
}


#: Each mapping merges the one before ten times.
BOMB = "[&0 {k: 1}, " + ", ".join(f"&{n} {{<<: [{', '.join([f'*{n - 1}'] * 10)}]}}" for n in range(1, 11)) + "]"


def of_builtins(path: Path) -> Any:
    (document,) = documents(path.read_text())
    assert not document.flaws
    return document.value


@pytest.mark.parametrize("read", [load_document, read_file, of_builtins])
def test_a_text_means_the_same_to_every_reader(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT)
    document = read(path)
    assert document == VALUE
    assert {name: type(value) for name, value in document.items()} == {
        name: type(value) for name, value in VALUE.items()
    }


@pytest.mark.parametrize(
    ("text", "said", "key"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: duplicate key", "a"),
        ("x: {k: 1, k: 2}", "line 1, column 11: duplicate key", "k"),
        ("{1: a, 1.0: b}", "line 1, column 8: duplicate key", "1.0"),
        ("{true: a, True: b}", "line 1, column 11: duplicate key", "True"),
        (BOMB, "line 1, column 221: merges make more than 20,000 keys; write fewer", None),
        ("a: [canary", "line 1, column 11: is not YAML", None),
        ("a: !!int canary", "line 1, column 4: tags are not read; leave it out", None),
        ("a: !!python/object:os.x {}", "line 1, column 4: tags are not read; leave it out", None),
        ("? [1]\n: 2\n", "line 1, column 3: is not YAML", None),
        ("\x00canary", "is not YAML", None),
        ("- " * 3000, "is nested too deeply", None),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_nothing_of_the_text(text: str, said: str, key: str | None) -> None:
    # Or what earlier tests left is finalized in the deepest recursion, and fails there.
    gc.collect()
    with pytest.raises(DocumentError) as raised:
        read_yaml(text)
    assert (str(raised.value), raised.value.key) == (said, key)
    assert raised.value.__context__ is None


def test_parts_may_be_named_and_used_again() -> None:
    assert read_yaml("a: &a {k: 1}\nb: *a\nc: {<<: *a, z: 2, k: 3}") == {
        "a": {"k": 1},
        "b": {"k": 1},
        "c": {"k": 3, "z": 2},
    }


@pytest.mark.parametrize("text", ["9" * 100, "9" * 101, "9" * 100_000, "1e999", "-1e-5", "+.5", "1.", "08"])
def test_a_number_that_is_too_large_to_be_one_stays_text(text: str) -> None:
    document = read_yaml(text)
    number = int(text) if len(text) == 100 else float(text)
    assert document == plain_value(text) == (text if len(text) > 100 or text == "1e999" else number)


def test_a_refresh_is_read_by_it_too(tmp_path: Path) -> None:
    path = tmp_path / "refresh.yaml"
    path.write_text("lake: {name: canary, name: other}\n")
    with raises(ConfigurationError) as raised:
        read_config(str(path))
    assert "canary" not in str(raised.value)


def test_the_nearest_name_is_found_without_case_and_not_among_too_many() -> None:
    assert nearest("TIMEOUTSEC", ["timeoutSecs", "timeout"]) == "timeoutSecs"
    assert nearest("name", ["name", "names"]) is None
    assert nearest("comnent", ["comment", *map(str, range(1_000))]) is None
    assert suggestion("x", []) == "allowed: nothing"


class Destination(BaseModel):
    port: int | list[int]
    pattern: str = Field(default="a", pattern="^[a-z]{1,3}$")


def test_branches_of_a_union_are_one_problem_and_values_are_shown_only_on_request() -> None:
    with pytest.raises(ValidationError) as refused:
        Destination.model_validate({"port": "canary", "pattern": "CANARY"})
    port, pattern = problems_of(refused.value, Destination).values()
    assert str(port) == "port: must be a whole number, or a list"
    assert str(pattern) == "pattern: string should match pattern '^[a-z]{1,3}$'"
    port, _ = problems_of(refused.value, Destination, shows=lambda path: path == "port").values()
    assert str(port) == "port: must be a whole number, or a list (it is 'canary')"
