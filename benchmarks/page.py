"""Write the kept figures into the documentation, as tables and as the chart: ``python -m benchmarks.page``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import chart, kept
from benchmarks.peers import PEERS
from benchmarks.runs import PLAIN, PRODUCT
from benchmarks.shapes import SHAPES

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- figures: written by make bench-chart -->\n", "<!-- end of figures -->\n"

_FEWEST_RUNS = 3


def tables(figures: Mapping[str, Any]) -> str:
    """Return the kept figures as Markdown."""
    shapes = {name: figures["shapes"][name] for name in SHAPES if name in figures["shapes"]}
    machine = figures["machine"]
    runs = sorted({shape["runs"] for shape in shapes.values()})
    about = (
        f"Release {figures['release']}, {machine['cores']} cores, Python {machine['python']}, "
        f"Spark {machine['pyspark']}, load before the first run {machine['load_before']}; "
        f"median of {' or '.join(map(str, runs))}."
    )
    if runs[0] < _FEWEST_RUNS:
        about = f"**A draft of too few runs.** {about}"
    parts = (_sides(shapes), _shares(shapes), _kills(shapes))
    return "\n\n".join([about, *("\n".join(part) for part in parts)]) + "\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(*titles: str) -> Iterator[str]:
    yield _row(*titles)
    yield "|---" * len(titles) + "|"


def _times(shape: Mapping[str, Any], side: str) -> str:
    ratios = [kept.ratio(shape, figure, side) for figure in ("wall_s", "peak_mb")]
    return " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios) if side in shape else "-"


def _sides(shapes: Mapping[str, Any]) -> Iterator[str]:
    others = [f"{peer}, ratios of both" for peer in PEERS]
    yield from _head("shape", "wall, s", "by hand", "ratio", "peak memory, MB", "by hand", "ratio", *others)
    for name, shape in shapes.items():
        cells = [name]
        for figure, form in (("wall_s", "{:.2f}"), ("peak_mb", "{:,.0f}")):
            cells += [form.format(shape[side][figure]) for side in (PRODUCT, PLAIN)]
            cells.append(f"**{kept.ratio(shape, figure):.2f}**")
        yield _row(*cells, *(_times(shape, peer) for peer in PEERS))


def _shares(shapes: Mapping[str, Any]) -> Iterator[str]:
    yield from _head("share of the limit", "whole refresh", "by hand", "while reading", "by hand")
    for name, shape in shapes.items():
        if name.startswith("W"):
            figures = ("share_of_limit", "reading_share_of_limit")
            yield _row(name, *(f"{shape[side][figure]:.0%}" for figure in figures for side in (PRODUCT, PLAIN)))


def _kills(shapes: Mapping[str, Any]) -> Iterator[str]:
    columns = ("pages_before_kill", "pages_refetched", "overlap_checks", "empty_confirmed")
    titles = ("served before", "served again", "overlap checks", "empty pages confirmed", "lost by the kill")
    yield from _head("killed at half", *titles, "missing, doubled rows")
    for name, shape in shapes.items():
        for kill in shape["kills"]:
            lost = f"{kill['pages_lost']} ({kill['lost_share']:.1%})"
            wrong = f"{kill['missing']}, {kill['duplicates']}"
            yield _row(name, *(f"{kill[column]:,}" for column in columns), lost, wrong)


def write() -> None:
    """Write the tables between the marks of the page, and the chart beside it."""
    figures, page = kept.read(), DOCS / "benchmarks.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{tables(figures)}\n{END}{rest.partition(END)[2]}")
    (DOCS / "images" / "benchmarks.svg").write_text(chart.draw(figures))


if __name__ == "__main__":
    write()
