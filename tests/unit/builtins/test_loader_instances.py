"""Lists of instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_rfr.builtins.model import CatalogSpec, Instance, decode, encode
from tests.unit.builtins.declaring import load, problems, write

LAKES = """
kind: instances
name: lake
instances:
  us: main
  eu: Europe West
  "2024": 7
"""


def test_a_document_lists_instances_by_their_ids(tmp_path: Path) -> None:
    found = load(write(tmp_path, lakes=LAKES))
    assert found.instances == {"lake": (Instance("2024", "7"), Instance("eu", "Europe West"), Instance("us", "main"))}


def test_no_instances_are_something_else_than_no_list(tmp_path: Path) -> None:
    empty = load(write(tmp_path, lakes="kind: instances\nname: lake\ninstances: {}\n"))
    assert empty.instances == {"lake": ()} != load().instances


def test_the_list_travels_with_the_declaration(tmp_path: Path) -> None:
    found = load(write(tmp_path, lakes=LAKES))
    assert decode(CatalogSpec, encode(found)) == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: instances\nname: lake\n", ":1: lake: instances: is missing"),
        ("kind: instances\ninstances: {eu: x}\n", ":1: name: is missing"),
        ("kind: instances\nname: lake\ninstances: [eu]\n", ":3: lake: instances: must be a mapping"),
        (
            "kind: instances\nname: lake\ninstances: {eu: }\n",
            ":3: lake: instances.eu: must be text; if it is text to you, put it in quotes",
        ),
        (
            "kind: instances\nname: lake\ninstances: {eu: {name: x}}\n",
            ":3: lake: instances.eu: must be text; if it is text to you, put it in quotes",
        ),
        (
            "kind: instances\nname: lake\ninstances: {eu: ' '}\n",
            ":1: lake: an instance has an empty id or name; write ID: NAME",
        ),
        ("kind: instances\nname: lake\ninstances: {'': x}\n", ":1: lake: an instance has an empty id or name"),
        ("kind: instances\nname: a lake\ninstances: {}\n", ":1: a lake: 'a lake' is not a name"),
        ("kind: instances\nname: lake\ninstances: {}\nlake: 1\n", ":4: lake: lake: unknown field"),
        (f"{LAKES}---{LAKES}", ":8: lake: a document says so already: :1; keep one of the two"),
        ("kind: instances\nname: lake\ninstances: {eu: x, eu: y}\n", ":3: lake: duplicate key 'eu'"),
    ],
)
def test_what_is_wrong_with_a_list_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    [found] = problems(tmp_path, text)
    assert found.startswith(told), found
