"""Figures for people."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.crash import Crash
from benchmarks.shapes import Shape
from benchmarks.speed import Runs

_ROWS = (
    ("wall_s", "wall, s", "{:.2f}"),
    ("wall_min_s", "  fastest run", "{:.2f}"),
    ("wall_max_s", "  slowest run", "{:.2f}"),
    ("session_s", "  until session is up", "{:.2f}"),
    ("after_session_s", "  after that", "{:.2f}"),
    ("cpu_s", "CPU of the tree, s", "{:.2f}"),
    ("peak_mb", "peak memory, MB", "{:.0f}"),
    ("records_per_s", "records/s", "{:.0f}"),
    ("api_cpu_s", "CPU of the API, s", "{:.2f}"),
)


def speed_lines(shape: Shape, ours: Runs, theirs: Runs) -> Iterator[str]:
    """A table with the ratio of the product to the baseline, then where the product's time goes."""
    yield f"\n{shape.title} ({shape.records} records, median of {len(theirs.runs)})"
    yield f"{'':24}{'product':>12}{'baseline':>12}{'ratio':>9}"
    left = ours.figures(shape.records) if ours.runs else {}
    right = theirs.figures(shape.records) if theirs.runs else {}
    for name, label, form in _ROWS:
        a, b = left.get(name), right.get(name)
        ratio = f"{a / b:.2f}" if a and b else "-"
        yield f"{label:24}{_cell(a, form):>12}{_cell(b, form):>12}{ratio:>9}"
    for side in (ours, theirs):
        if side.runs:
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in side.phases().items())
            yield f"{side.name}, s by phase: {phases}"


def crash_lines(crash: Crash) -> Iterator[str]:
    yield f"SIGKILL at half: {crash.pages_before_kill} of {crash.pages_total} pages were served before it"
    yield (
        f"  served again: {crash.pages_refetched} ({crash.refetched_share:.1%}), of which overlap checks "
        f"{crash.overlap_checks}, lost by the kill {crash.pages_lost} ({crash.lost_share:.1%})"
    )
    yield (
        f"  rows: {crash.rows_published} published of {crash.rows_source}, "
        f"{crash.missing} missing, {crash.duplicates} doubled; the resume took {crash.resume_wall_s:.2f} s"
    )


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
