"""Tables of the figures, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.kept import change, ratio
from benchmarks.kills import Kill
from benchmarks.runs import PLAIN, PRODUCT
from benchmarks.shapes import SHAPES, Shape

_ROWS = (
    ("wall_s", "wall, s", "{:.2f}"),
    ("wall_min_s", "  fastest run", "{:.2f}"),
    ("wall_max_s", "  slowest run", "{:.2f}"),
    ("session_s", "  until Spark is up", "{:.2f}"),
    ("cpu_s", "CPU of the tree, s", "{:.2f}"),
    ("peak_mb", "peak memory, MB", "{:.0f}"),
    ("records_per_s", "records/s", "{:.0f}"),
    ("share_of_limit", "share of the limit", "{:.0%}"),
    ("reading_share_of_limit", "  while reading", "{:.0%}"),
    ("api_cpu_s", "CPU of the API, s", "{:.2f}"),
)


def shape_lines(shape: Shape, figures: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """Return a table of all sides and their ratios to the script written by hand, then the seconds by phase."""
    others = [name for name in figures if name not in (PLAIN, PRODUCT, "runs", "kills")]
    yield f"\n{shape.title}; {shape.records:,} records, median of {figures['runs']}"
    yield (
        f"{'':22}"
        + "".join(f"{name:>10}" for name in (PLAIN, PRODUCT, "ratio", "to last"))
        + "".join(f"{name:>10}{'ratio':>8}" for name in others)
    )
    for name, label, form in _ROWS:
        if not any(name in figures[side] for side in (PLAIN, PRODUCT)):
            continue
        cells = [_cell(figures[side].get(name), form) for side in (PLAIN, PRODUCT)]
        cells += [_cell(ratio(figures, name)), _cell(change(figures, kept, name))]
        line = f"{label:22}" + "".join(f"{cell:>10}" for cell in cells)
        for side in others:
            line += f"{_cell(figures[side].get(name), form):>10}{_cell(ratio(figures, name, side)):>8}"
        yield line
    for side in (PLAIN, PRODUCT, *others):
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in figures[side]["seconds"].items())
        yield f"{side}, s by phase: {phases}"


def kill_lines(kill: Kill) -> Iterator[str]:
    """Return the cost of a kill."""
    yield f"SIGKILL at half: {kill.pages_before_kill} of {kill.pages_total} pages were served before it"
    yield (
        f"  served again: {kill.pages_refetched}, of which overlap checks {kill.overlap_checks}, empty pages confirmed "
        f"{kill.empty_confirmed}, lost by the kill {kill.pages_lost} ({kill.lost_share:.1%})"
    )
    yield (
        f"  rows: {kill.rows_published} published of {kill.rows_source}, "
        f"{kill.missing} missing, {kill.duplicates} doubled; the resume took {kill.resume_wall_s:.2f} s"
    )


def summary_lines(figures: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[str]:
    """Return one line a shape: wall time and memory, their ratios, and these to the last release's."""
    release = kept.get("release", "none")
    yield f"\nAll shapes. ratio: product to plain; to last: this ratio to that of the kept release ({release})"
    yield f"{'':10}" + "".join(f"{title:>40}" for title in ("wall, s", "peak memory, MB"))
    yield f"{'':10}" + 2 * "".join(f"{name:>10}" for name in (PLAIN, PRODUCT, "ratio", "to last"))
    for name in SHAPES:
        if (shape := figures["shapes"].get(name)) is None:
            continue
        line = f"{name:10}"
        for figure, form in (("wall_s", "{:.2f}"), ("peak_mb", "{:.0f}")):
            cells = [_cell(shape[side][figure], form) for side in (PLAIN, PRODUCT)]
            cells += [_cell(ratio(shape, figure)), _cell(change(shape, kept["shapes"].get(name, {}), figure))]
            line += "".join(f"{cell:>10}" for cell in cells)
        yield line


def _cell(value: float | None, form: str = "{:.2f}") -> str:
    return "-" if value is None else form.format(value)
