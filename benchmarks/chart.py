"""The chart in the documentation, drawn from the kept figures.

For each shape a bar of wall time and one of peak memory, as multiples of the script written by hand, for the product
and each peer that was measured. It is plain SVG; colours follow the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

from benchmarks import kept
from benchmarks.peers import PEERS
from benchmarks.runs import PRODUCT
from benchmarks.shapes import SHAPES

_PANELS = (("wall_s", "wall time", "{:.1f} s"), ("peak_mb", "peak memory", "{:.0f} MB"))
_LABELS = {PRODUCT: "airflow_provider_rfr", "dlt": "dlt", "airbyte": "Airbyte's CDK"}
_LEFT, _PANEL, _TEXT, _TOP, _BAR, _GAP = 80, 280, 110, 64, 14, 10
_WIDTH = _LEFT + 2 * (_PANEL + _TEXT)
_STYLE = """
.ground { fill: #ffffff; }
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.note { fill: #59636e; }
.one { stroke: #59636e; stroke-dasharray: 3 3; }
.product { fill: #0969da; }
.dlt { fill: #bf8700; }
.airbyte { fill: #8250df; }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; }
text { fill: #e6edf3; }
.note { fill: #9198a1; }
.one { stroke: #9198a1; }
.product { fill: #4493f8; }
.dlt { fill: #d29922; }
.airbyte { fill: #ab7df8; }
}
"""


def draw(figures: Mapping[str, Any]) -> str:
    """Return the chart of these figures as SVG."""
    shapes = {name: figures["shapes"][name] for name in SHAPES if name in figures["shapes"]}
    sides = {name: [side for side in (PRODUCT, *PEERS) if side in shape] for name, shape in shapes.items()}
    height = _TOP + sum(len(bars) * _BAR + _GAP for bars in sides.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
        # A background of its own: the page may be light while the reader's system is dark.
        '<rect class="ground" width="100%" height="100%"/>',
        *_legend([side for side in (PRODUCT, *PEERS) if any(side in bars for bars in sides.values())]),
    ]
    for number, panel in enumerate(_PANELS):
        lines += _panel(shapes, sides, panel, _LEFT + number * (_PANEL + _TEXT), height)
    y = _TOP
    for name, bars in sides.items():
        lines.append(_text(4, y + len(bars) * _BAR / 2 + 4, name, "title"))
        y += len(bars) * _BAR + _GAP
    return "\n".join([*lines, "</svg>", ""])


def _legend(sides: list[str]) -> Iterator[str]:
    x = _LEFT
    for side in sides:
        yield f'<rect class="{side}" x="{x}" y="4" width="10" height="10"/>'
        yield _text(x + 15, 13, _LABELS[side])
        x += 25 + 8 * len(_LABELS[side])
    yield _text(x, 13, "as multiples of the script written by hand (dashed: 1)", "note")


def _panel(
    shapes: Mapping[str, Any], sides: Mapping[str, list[str]], panel: tuple[str, str, str], left: int, height: int
) -> Iterator[str]:
    figure, title, form = panel
    ratios = {(name, side): kept.ratio(shapes[name], figure, side) or 0.0 for name in shapes for side in sides[name]}
    scale = _PANEL / max([1.0, *ratios.values()])
    yield _text(left, 44, title, "title")
    y = _TOP
    for name, bars in sides.items():
        for side in bars:
            width = ratios[name, side] * scale
            yield f'<rect class="{side}" x="{left}" y="{y}" width="{width:.1f}" height="{_BAR - 3}"/>'
            label = f"{ratios[name, side]:.2f} ({form.format(shapes[name][side][figure])})"
            yield _text(left + width + 5, y + _BAR - 4, label, "note")
            y += _BAR
        y += _GAP
    x = left + scale
    yield f'<line class="one" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - _GAP + 4}"/>'


def _text(x: float, y: float, text: str, kind: str = "side") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
