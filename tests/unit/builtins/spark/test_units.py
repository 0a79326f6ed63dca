"""Cutting a piece of work, and going on with what is left of it."""

from __future__ import annotations

from typing import Any

from airflow_provider_rfr.builtins.spark._compute import _MAX_BYTES, _cut, _remaining
from airflow_provider_rfr.lake.data_files import FinishedUnit
from airflow_provider_rfr.lake.files import InputFile


def inputs(*sizes: int) -> list[InputFile]:
    scan: Any = None
    return [InputFile(scan, size, None, f"file-{number:04}") for number, size in enumerate(sizes)]


def test_files_of_some_size_are_units_of_their_own() -> None:
    files = inputs(_MAX_BYTES, _MAX_BYTES, 5)
    assert [each.inputs for each in _cut(files, sum(each.size for each in files))] == [(each,) for each in files]


def test_many_small_files_become_a_few_units_in_their_order() -> None:
    files = inputs(*[1000] * 640)
    units = _cut(files, 640_000)
    assert [len(each.inputs) for each in units] == [10] * 64
    assert [file for each in units for file in each.inputs] == files


def test_a_unit_is_never_larger_than_what_a_task_should_lose() -> None:
    units = _cut(inputs(*[_MAX_BYTES // 4] * 1000), _MAX_BYTES // 4 * 1000)
    assert {sum(file.size for file in each.inputs) for each in units} == {_MAX_BYTES}


def test_a_unit_is_called_by_its_inputs_alone() -> None:
    one, two = _cut(inputs(_MAX_BYTES, _MAX_BYTES), 2 * _MAX_BYTES)
    assert one.name != two.name
    assert _cut(inputs(_MAX_BYTES), 5 * _MAX_BYTES)[0].name == one.name
    assert _cut((), 0) == ()


def test_what_is_finished_is_kept_if_all_its_inputs_are_still_there_and_each_counts_once() -> None:
    files = inputs(*[_MAX_BYTES] * 4)
    whole, gone = FinishedUnit(("file-0000", "file-0001"), ()), FinishedUnit(("file-0002", "file-9999"), ())
    twice = FinishedUnit(("file-0001",), ())
    finished, units = _remaining(files, [whole, gone, twice])
    assert finished == (whole,)
    assert [each.inputs for each in units] == [(files[2],), (files[3],)]
