"""The table of versions: which combinations are tried, and how their results are kept in the docs."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests import matrix
from tests.matrix import AIRFLOWS, SPARKS, Cell, Result, cells, read_report, write_page

tomllib = pytest.importorskip("tomllib")
TODAY = date(2026, 11, 29)
REPORT = """<testsuites><testsuite>
<testcase name="test_a"/><testcase name="test_b"><failure/></testcase><testcase name="test_c"><error/></testcase>
<testcase name="test_d"><skipped/></testcase><testcase name="test_e"/>
</testsuite></testsuites>"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "compatibility.md"
    copy.write_text(matrix.PAGE.read_text())
    monkeypatch.setattr(matrix, "PAGE", copy)
    return copy


def result_of(airflow: str, spark: str, **more: object) -> Result:
    versions = {"apache-airflow": airflow, "pyspark": spark, "python": "3.11.7"}
    demo = {"rows_published": 48000, "rows_source": 48000}
    return Result(Cell(airflow[:3], spark[:3], "3.11"), versions, demo, passed=12, **more)


def rows_of(page: Path, airflow: str, spark: str) -> list[str]:
    return [line for line in page.read_text().splitlines() if line.startswith(f"| {airflow} | {spark} ")]


def test_each_airflow_is_tried_with_each_spark_that_has_an_extra() -> None:
    extras = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tried = {(cell.airflow, cell.spark) for cell in cells(AIRFLOWS, SPARKS)}
    assert tried == {
        (airflow, f"{name[5]}.{name[6]}") for airflow in AIRFLOWS for name in extras if name[:5] == "spark"
    }


def test_each_python_of_the_metadata_has_a_cell() -> None:
    classifiers = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = {text.rpartition(" ")[2] for text in classifiers if text.startswith("Programming Language :: Python :: 3.")}
    assert {cell.python for cell in cells(AIRFLOWS, SPARKS)} == named


def test_a_result_replaces_the_row_of_its_minor_versions_and_no_other(page: Path) -> None:
    write_page([result_of("3.1.8", "4.0.4"), result_of("3.1.8", "4.1.3")], TODAY)
    write_page([result_of("3.1.9", "4.0.5", skipped=1)], TODAY)
    assert not rows_of(page, "3.1.8", "4.0.4")
    assert rows_of(page, "3.1.8", "4.1.3")
    row = "| 3.1.9 | 4.0.5 | 3.11.7 | 48,000 of 48,000 | 12 passed, 1 skipped | 2026-11-29 |"
    assert rows_of(page, "3.1.9", "4.0.5") == [row]


def test_rows_are_sorted_by_versions_and_the_text_around_them_stays(page: Path) -> None:
    around = [line for line in page.read_text().splitlines() if not line.startswith("| 3.")]
    write_page([result_of("3.3.2", "4.1.3"), result_of("3.3.2", "3.5.10"), result_of("3.2.2", "4.3.0")], TODAY)
    lines = page.read_text().splitlines()
    assert [line for line in lines if not line.startswith("| 3.")] == around
    rows = [line for line in lines if line.startswith("| 3.")]
    assert rows == sorted(rows, key=matrix._key)


def test_a_cell_is_good_only_if_tests_passed_and_none_failed(tmp_path: Path) -> None:
    file, result = tmp_path / "tests.xml", Result(Cell("3.3", "4.1", "3.11"))
    assert not result.good
    file.write_text(REPORT)
    read_report(file, result)
    assert (result.passed, result.skipped, result.failed) == (2, 1, ["test_b", "test_c"])
    assert not result.good
    assert result_of("3.3.2", "4.1.3").good
    assert not result_of("3.3.2", "4.1.3", error="demo: exit code 1: x").good


def test_a_step_that_fails_is_named_in_the_row(page: Path) -> None:
    write_page([result_of("3.3.2", "4.1.3", error="install: exit code 1: no such version")], TODAY)
    assert "| install failed |" in rows_of(page, "3.3.2", "4.1.3")[0]
