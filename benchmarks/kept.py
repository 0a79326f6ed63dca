"""The figures of the last release, in `kept.json`, and ratios to them.

The ratio of the product to the script written by hand is compared, because it depends far less on the machine than
seconds do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.runs import PLAIN, PRODUCT

KEPT = Path(__file__).with_name("kept.json")


def read(path: Path = KEPT) -> dict[str, Any]:
    """Return the kept figures; no shapes where none are kept."""
    return dict(json.loads(path.read_text())) if path.exists() else {"shapes": {}}


def write(figures: Mapping[str, Any], path: Path = KEPT) -> None:
    """Keep these figures. Shapes that were not measured stay."""
    shapes = {**read(path)["shapes"], **figures["shapes"]}
    path.write_text(json.dumps({**figures, "shapes": shapes}, indent=1) + "\n")


def ratio(shape: Mapping[str, Any], figure: str, side: str = PRODUCT) -> float | None:
    """Return the ratio of a side to the script written by hand; None where it was not measured."""
    mine, plain = (shape.get(name, {}).get(figure) for name in (side, PLAIN))
    return float(mine / plain) if mine and plain else None


def change(shape: Mapping[str, Any], kept: Mapping[str, Any], figure: str) -> float | None:
    """Return the product's ratio now to its ratio as kept: more than 1 is more than at the last release."""
    now, before = ratio(shape, figure), ratio(kept, figure)
    return now / before if now and before else None
