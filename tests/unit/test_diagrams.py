"""The diagrams of docs/diagrams: each is drawn and shown, and the one of the packages is the import contracts."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

tomllib = pytest.importorskip("tomllib")
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMES = sorted(path.stem for path in (DOCS / "diagrams").glob("*.d2"))


@pytest.mark.parametrize("name", NAMES)
def test_a_diagram_is_drawn_for_light_and_dark_and_shown_with_a_text_for_those_who_cannot_see_it(name: str) -> None:
    drawn = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert "prefers-color-scheme:dark" in drawn
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert re.search(rf"!\[[^\]]{{20,}}\]\(images/{name}\.svg\)", pages)


def test_the_packages_are_drawn_in_the_layers_of_the_import_contract_and_dashed_where_they_may_import_airflow() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    without_airflow = {
        module
        for contract in contracts
        if "airflow" in contract.get("forbidden_modules", ())
        for module in contract["source_modules"]
    }
    [layers] = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    expected = [
        [
            (module.removeprefix("airflow_provider_rfr."), "box" if module in without_airflow else "airflow")
            for module in layer.split(" | ")
        ]
        for layer in layers
    ]
    text = (DOCS / "diagrams" / "packages.d2").read_text(encoding="utf-8")
    rows = re.findall(r"^layer\d+: \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert [re.findall(r"^  (\w+): \{class: (\w+);", row, re.MULTILINE) for row in rows] == expected
